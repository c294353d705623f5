"""What this machine can hold: whatever is surely larger is refused beforehand, with the estimate and the remedy.

Estimates are from below, so that nothing that works is refused.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from histfl.errors import UsageError

_CGROUPS = ("memory.max", "memory/memory.limit_in_bytes")  # of a container, version 2 and 1


def machine_memory() -> int | None:
    """Bytes of memory that this process may have, with swap; None where the system does not say."""
    found = [*_installed(), *_allowed()]
    return min(found) if found else None


def check_memory(what: str, needed: float, remedy: str) -> None:
    """A UsageError where `what` takes more bytes than there are."""
    there = machine_memory()
    if there is not None and needed > there:
        raise UsageError(
            f"{what} would take at least {in_gigabytes(needed)}, and this machine has {in_gigabytes(there)}; {remedy}"
        )


def in_gigabytes(count: float) -> str:
    """A number of bytes as it is shown."""
    return f"{count / 1e9:,.0f} GB" if count >= 1e11 else f"{count / 1e9:.2g} GB"


def _installed() -> list[int]:
    with suppress(OSError, ValueError, KeyError):  # Linux
        rows = (line.split() for line in Path("/proc/meminfo").read_text("ascii").splitlines())
        kilobytes = {row[0]: int(row[1]) for row in rows if len(row) > 1}
        return [1024 * (kilobytes["MemTotal:"] + kilobytes.get("SwapTotal:", 0))]
    with suppress(OSError, ValueError, AttributeError):  # other Unix
        return [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    return []


def _allowed() -> list[int]:
    """Limits of the container and of the process."""
    found = []
    for name in _CGROUPS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            found.append(int((Path("/sys/fs/cgroup") / name).read_text("ascii")))
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            found.append(soft)
    return found
