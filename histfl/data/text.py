"""Texts as token ids, and the pretrained transformers that read them; the one module that asks for `transformers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from histfl.data.dataset import TensorData, TextData
from histfl.data.sources import load_text
from histfl.data.store import TensorPair, places
from histfl.errors import UsageError, in_one_line, missing_extra
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


def load_tokenizer(base: str, data_dir: Path | str | None = None) -> Any:
    """The tokenizer of the pretrained model `base`."""
    return _load("AutoTokenizer", base, data_dir)


def load_transformer(base: str, data_dir: Path | str | None = None, **options: Any) -> Any:
    """The pretrained model `base` without a task's head, in eval mode; `options` as in `from_pretrained`."""
    return _load("AutoModel", base, data_dir, **options)


def folder_of(base: str, data_dir: Path | str | None = None) -> Path | None:
    """The local folder that `base` names, as a path or as a folder's name beside the data sets."""
    candidates = [Path(base).expanduser(), *(place / base for place in places(data_dir))]
    return next((folder for folder in candidates if folder.is_dir()), None)


def gguf_file(folder: Path) -> str | None:
    """The GGUF file in a folder that holds no other form of the model, if there is one."""
    if (folder / "config.json").exists():
        return None
    found = sorted(path.name for path in folder.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(f"{folder} holds {len(found)} GGUF files, {', '.join(found)}; leave one there")
    return found[0] if found else None


def _load(kind: str, base: str, data_dir: Path | str | None, **options: Any) -> Any:
    folder = folder_of(base, data_dir)
    options["trust_remote_code"] = False  # a model that brings code is refused, and nobody is asked
    if folder is not None and (file := gguf_file(folder)) is not None:
        options["gguf_file"] = file
    for path in folder.iterdir() if folder is not None else ():
        if not (path.is_file() or path.is_dir() or not path.exists()):
            raise UsageError(f"cannot load {base!r}: {path} is neither a file nor a folder; remove it")
    with _library() as transformers:
        load = getattr(transformers, kind).from_pretrained
        if folder is None:  # a copy in the hub's cache needs no network, and stays what it was
            with suppress(OSError, ValueError, KeyError):
                return load(base, local_files_only=True, **options)
        try:
            return load(str(folder or base), **options)
        except ImportError as error:
            raise missing_extra(f"the model {base!r}", "lora", error) from None
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"cannot load {base!r}: {in_one_line(error)}; name a model of the hub that can be reached, or a "
                "local folder with config.json and weights, or with one GGUF file"
            ) from None


@contextmanager
def _library() -> Iterator[Any]:
    """The library `transformers`, without its progress bars meanwhile."""
    try:
        import transformers
    except ImportError as error:
        raise missing_extra("a pretrained model", "lora", error) from None
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        if shown:
            logging.enable_progress_bar()
