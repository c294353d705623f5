"""What the machine has, against what something takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from histfl.errors import UsageError
from histfl.limits import check_memory, machine_memory


def test_what_fits_is_allowed_and_what_does_not_is_refused_with_the_estimate() -> None:
    there = machine_memory()
    assert there is not None
    assert 1e8 < there < 1e15
    check_memory("a thing", there, "take less")
    with pytest.raises(
        UsageError, match=r"^a thing would take at least [\d,.e+]+ GB, and this machine has .* GB; take less$"
    ):
        check_memory("a thing", there + 1, "take less")


def test_a_limit_of_the_process_counts() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9, -1));"
        "from histfl.limits import machine_memory; print(machine_memory())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(told.stdout) <= 3 * 10**9
