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
    """Training produced a non-finite loss; the message ends with what helps, `further` keys to lower among it."""

    def __init__(self, what: str, further: str = "") -> None:
        self.what, self.further = what, further
        lower = " or ".join(key for key in (further, "training.learning_rate") if key)
        super().__init__(
            f"{what}; lower {lower} or set training.clip_norm (over the air a higher SNR helps too)"
        )

    def __reduce__(self) -> tuple[type[DivergedError], tuple[str, str]]:
        return type(self), (self.what, self.further)  # in another process its words are not said twice


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
    """The noun with `a` or `an`; of one that is spelled out, such as RMSE or mIoU, as its first letter is said."""
    spelled = any(letter.isupper() for letter in noun.partition(" ")[0])
    return f"{'an' if noun[:1].lower() in ('aefhilmnorsx' if spelled else 'aeiou') else 'a'} {noun}"


def capitalised(words: str) -> str:
    """With a capital at the start, where the first word has none of its own."""
    first = words.partition(" ")[0]
    return words[:1].upper() + words[1:] if first.islower() else words


def shown(value: object) -> str:
    """A value as its owner would write it, in one line that is not too long."""
    try:
        text = repr(value)
    except Exception:  # one that cannot be written, or a number with too many digits
        return f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy for a mistyped name: the nearest known one, or where none is near, `otherwise`. Near are also one of
    its words (`num_rounds`) and one of which it is the initials (`lr`)."""
    names, words = list(known), name.split("_")
    words = words if len(words) > 1 else []
    near = (
        difflib.get_close_matches(name, names, n=1, cutoff=0.9)
        or [each for each in names if each in words or _initials(each) == name]
        or [each for each in names if each.removesuffix("s") in words]
        or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    )
    return f"did you mean {near[0]!r}?" if near else otherwise


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was asked for that is not there; told by the words, since torch has no type of error for a
    CPU's and is not imported here."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in said or "out of memory" in said)
    )
