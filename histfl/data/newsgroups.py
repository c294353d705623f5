"""20 Newsgroups, the split by date (J. Rennie): 11,314 + 7,532 posts, 20 groups."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from histfl.data.dataset import TextData
from histfl.data.store import Source, TextPair
from histfl.errors import DataError, UsageError
from histfl.files import read_bytes

STRIPPABLE = ("headers", "footers", "quotes")
_TRAIN_FOLDER, _TEST_FOLDER = "20news-bydate-train", "20news-bydate-test"
# The lines that scikit-learn's fetch_20newsgroups(remove=...) counts as quoted or as announcing a quote;
# the same ones here, so that accuracies can be compared.
_QUOTE_ANYWHERE = ("writes in", "writes:", "wrote:", "says:", "said:")
_QUOTE_AT_START = ("In article", "Quoted from", "|", ">")
_QUOTE_LINE = re.compile(
    "|".join([*map(re.escape, _QUOTE_ANYWHERE), *("^" + re.escape(start) for start in _QUOTE_AT_START)])
)


def strip_headers(text: str) -> str:
    """What follows the first empty line; nothing where there is none."""
    return text.partition("\n\n")[2]


def strip_footers(text: str) -> str:
    """All above the last line that is blank or made of dashes; the text itself where there is none."""
    lines = text.strip().split("\n")
    rules = [number for number, line in enumerate(lines) if not line.strip().strip("-")]
    return "\n".join(lines[: rules[-1]]) if rules and rules[-1] > 0 else text


def strip_quotes(text: str) -> str:
    """Without the lines that quote or announce a quote."""
    return "\n".join(line for line in text.split("\n") if not _QUOTE_LINE.search(line))


def strip_post(text: str, parts: frozenset[str]) -> str:
    """`text` without the named parts, always in the order headers, footers, quotes."""
    if "headers" in parts:
        text = strip_headers(text)
    if "footers" in parts:
        text = strip_footers(text)
    if "quotes" in parts:
        text = strip_quotes(text)
    return text


def read_folder(folder: Path, parts: frozenset[str] = frozenset()) -> TextData:
    """The posts under `folder`, one subfolder a group: groups, then posts, in the order of their names."""
    try:
        groups = sorted(path for path in folder.iterdir() if path.is_dir())
        posts = [sorted(path for path in group.iterdir() if path.is_file()) for group in groups]
        texts = tuple(
            strip_post(read_bytes(path).decode("latin-1"), parts) for group in posts for path in group
        )
    except OSError as error:
        raise DataError(
            f"cannot read {folder}: {error.strerror or error}; fetch the data set again"
        ) from None
    if not texts:
        raise DataError(f"{folder} holds no posts; it must have one subfolder a newsgroup")
    targets = torch.repeat_interleave(
        torch.arange(len(groups)), torch.tensor([len(group) for group in posts])
    )
    return TextData(texts, targets, tuple(group.name for group in groups))


def load_text(folder: Path, parts: frozenset[str] = frozenset()) -> TextPair:
    """Training and test posts, without the named parts (of "headers", "footers", "quotes")."""
    if unknown := sorted(parts - set(STRIPPABLE)):
        raise UsageError(f"cannot strip {unknown[0]!r}; choose from {', '.join(STRIPPABLE)}")
    train, test = (read_folder(folder / part, parts) for part in (_TRAIN_FOLDER, _TEST_FOLDER))
    if train.class_names != test.class_names:
        raise DataError(
            f"{folder}: training and test posts come from different groups; fetch the data set again"
        )
    return train, test


SOURCE = Source(
    name="20newsgroups",
    description="18,846 posts to 20 newsgroups, split by date",
    licence="no licence stated; the posts are their authors', collected by K. Lang",
    download_megabytes=14.5,
    folder="20news-bydate",
    train_samples=11_314,
    other_folders=(".",),
    contents=(
        (_TRAIN_FOLDER, "1fac7bffd553bd147a3aa34a951f7ef15db7d4ddff38ef5b5f96eec8455329a3"),
        (_TEST_FOLDER, "8b0a7cfd9c57292cd0315eb6cf48c71abc930be04c5ae05d378f37d43a24e8c3"),
    ),
    base_url="http://qwone.com/~jason/20Newsgroups",
    downloads=(
        (
            "20news-bydate.tar.gz",
            "sha256:8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
        ),
    ),
    load_text=load_text,
)
