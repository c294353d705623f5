"""Where numbers come from: the commit of the code, the kind of machine and the version of torch."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

COMMIT = "HISTFL_COMMIT"  # names the commit where the code was copied without its history


@cache
def origin(device: str) -> dict[str, str | None]:
    """The commit, the machine's kind and torch's version, for a run on `device`."""
    return {"commit": _commit(), "machine": machine(device), "torch": str(torch.__version__)}


def machine(device: str) -> str:
    """The processor that does the work; no name of a host."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{_cpu_name()}, {os.cpu_count()} cores"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    if COMMIT in os.environ:
        return os.environ[COMMIT]
    try:
        # Installed inside another project's folder, this file is not of that repository.
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        found, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", "../../..")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{found} with changes" if changes else found


def _git(*words: str) -> str:
    """What git says of the repository around this file."""
    asked = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
