"""Texts as token ids: what a language model is trained on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from histfl.data.dataset import TensorData, TextData
from histfl.data.pretrained import load_tokenizer
from histfl.data.sources import load_text
from histfl.data.store import TensorPair
from histfl.errors import UsageError
from histfl.limits import check_memory

PADDING = -1
"""Stands after a text's last token. No tokenizer has this id, so that no text can contain it."""


def load_tokens(
    name: str,
    data_dir: Path | str | None = None,
    *,
    tokenizer: str,
    max_length: int = 128,
    strip: Iterable[str] = (),
) -> TensorPair:
    """(train, test) of the named text data set as token ids [sample, max_length] of `tokenizer`.

    `tokenizer` is a pretrained model's hub name or local folder, `strip` as in `load_text`.
    """
    train, test = load_text(name, data_dir, strip=strip)
    loaded = load_tokenizer(tokenizer, data_dir)
    return tokenise(train, loaded, max_length), tokenise(test, loaded, max_length)


def tokenise(data: TextData, tokenizer: Any, max_length: int) -> TensorData:
    """The first `max_length` tokens of every text, int64 [sample, max_length], then `PADDING`.

    `tokenizer` is one of transformers', which adds the special tokens its model was trained with.
    """
    if max_length < 1:
        raise UsageError(f"max_length = {max_length}; a text needs room for at least one token")
    check_memory(
        f"max_length = {max_length:,}: {len(data.texts):,} texts",
        8 * max_length * len(data.texts),
        "lower it",
    )
    rows = tokenizer(list(data.texts), truncation=True, max_length=max_length, padding=False)["input_ids"]
    tokens = torch.full((len(rows), max_length), PADDING, dtype=torch.int64)
    for place, row in zip(tokens, rows, strict=True):
        place[: len(row)] = torch.tensor(row, dtype=torch.int64)
    return TensorData(tokens, data.targets, data.class_names)
