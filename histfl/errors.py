"""The few error types; every message names the value, the place and the remedy."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

DISK_FAILURES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What the disk, not the user's path, is to blame for."""

LONGEST_REASON = 300
LONGEST_VALUE = 80


class HistflError(Exception):
    """A failure with one readable line for the user; `exit_code` is the command line's."""

    exit_code = 1


class UsageError(HistflError):
    """The user's input (a setting, a file, a model) cannot be used as it stands."""

    exit_code = 2


class DataError(UsageError):
    """A data set is missing, incomplete or not what its checksum says."""


class PartitionError(UsageError):
    """The model cannot be cut as asked."""


class CheckpointError(UsageError):
    """A checkpoint or run folder is damaged or belongs to another run."""


class DivergedError(HistflError):
    """Training produced a non-finite loss; the message ends with what helps."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what}; lower training.learning_rate or set training.clip_norm (over the air a higher SNR helps too)"
        )

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str]]:
        return type(self), (self.what,)  # in another process its words are not said twice


class StorageError(HistflError):
    """The disk failed: full, read-only or gone."""


def missing_extra(what: str, extra: str, error: ImportError) -> UsageError:
    """`what` needs packages that are not there: the line that installs them."""
    return UsageError(
        f"{what} needs the extra {extra} ({in_one_line(error)}); install it with: pip install 'histfl[{extra}]'"
    )


def in_one_line(error: BaseException) -> str:
    """An error of somebody else's code: its type and message, in one line that is not too long."""
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # one that cannot even be written
        said = type(error).__name__
    text = " ".join(said.split())
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def shown(value: object) -> str:
    """A value as its owner would write it, in one line that is not too long."""
    try:
        text = repr(value)
    except Exception:  # one that cannot be written, or a number with too many digits
        return f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy for a mistyped name: the nearest known one, or where none is near, `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise
