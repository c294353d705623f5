"""Runs, sweeps and reproductions, killed at a hundred of their writes and gone on with, end in the same files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import safetensors.torch
import torch
from commands import SMALL, Answer

from histfl.cli import main

SHORT = [*SMALL, "--set", "training.rounds=2"]
COMMANDS = {
    "run": (["run", *SHORT, "--set", "uplink.name=aircomp", "--set", "theory.every=2"], ["--resume"]),
    "sweep": (["sweep", *SHORT, "--vary", "method.name=hist,hfedavg"], ["--resume"]),
    "reproduce": (["reproduce", "fig7", "--quick", "--only", "participants-2-*", "--device", "cpu"], []),
}
POINTS = {"run": 20, "sweep": 35, "reproduce": 45}
OTHERWISE = ("summary.json", "origin.json", ".lock")  # seconds and places; pages tell the seconds too


def child(arguments: list[str], last: int | None, told: int) -> NoReturn:
    """The command in this process, which kills itself at its write number `last`; `told` hears how many there were."""
    writes = 0

    def counted(real: Any) -> Any:
        def write(*given: Any, **more: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **more)

        return write

    os.fsync, os.replace, os.unlink = counted(os.fsync), counted(os.replace), counted(os.unlink)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    code = 1
    try:
        main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        os.write(told, str(writes).encode())
        os._exit(code)


def carry_out(arguments: list[str], last: int | None = None) -> tuple[int, int]:
    """How the command ended in a process of its own, forked from this one, which has torch already; and its writes."""
    hears, told = os.pipe()
    process = os.fork()
    if process == 0:
        child(arguments, last, told)
    os.close(told)
    _, status = os.waitpid(process, 0)
    with os.fdopen(hears, "rb") as pipe:
        writes = int(pipe.read() or b"0")
    return os.waitstatus_to_exitcode(status), writes


def files(top: Path) -> dict[str, bytes]:
    """The content of every file but those that tell seconds and places, of which the name alone."""
    return {str(path.relative_to(top)): content(path) for path in top.rglob("*") if path.is_file()}


def content(path: Path) -> bytes:
    if path.name in OTHERWISE or path.suffix == ".html":
        return b""
    if path.name == "checkpoint.safetensors":  # beside its tensors it tells seconds
        tensors = safetensors.torch.load_file(path)
        return b"".join(name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors))
    return path.read_bytes()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_many_writes_and_gone_on_with(
    histfl_command: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("HISTFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.set_num_threads(1)  # as a fork leaves no thread but its own
    command, resume = COMMANDS[name]
    # Here first: the processes that follow, a third as long then, have all modules and compiled kernels from this one.
    assert histfl_command(*command, "--out", tmp_path / "here").code == 0
    code, writes = carry_out([*command, "--out", str(tmp_path / "whole")])
    assert code == 0
    assert writes >= POINTS[name]
    expected = files(tmp_path / "whole")
    assert expected == files(tmp_path / "here")
    for point in range(POINTS[name]):
        moment, out = 1 + point * writes // POINTS[name], tmp_path / f"killed-{point}"
        assert carry_out([*command, "--out", str(out)], moment)[0] == -signal.SIGKILL
        assert carry_out([*command, "--out", str(out), *resume])[0] == 0, moment
        assert files(out) == expected, moment
