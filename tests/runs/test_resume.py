"""Nothing is lost on interruption, and a resumed run equals an uninterrupted one bit by bit."""

import itertools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch
from commands import SMALL, Answer

from histfl.cli.output import Interrupted, interruptible

Command = Callable[..., Answer]
LONG = [*SMALL, "--set", "training.rounds=12"]
SAME = ("rounds.jsonl", "model.safetensors", "config.toml")
OPTIONS = {
    "hist": [],
    "aircomp": [
        *("--set", "uplink.name=aircomp", "--set", "network.dropout=0.3"),
        *("--set", "method.name=rolling", "--set", "method.scale=0.5"),
    ],
    "sampled": [
        "--set",
        "network.participants=1",
        "--set",
        "network.active_cells=2",
        "--set",
        "training.momentum=0.5",
        "--set",
        "method.name=overlap",
    ],
}


def start(out: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "histfl", "run", *LONG, *arguments, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, as these tests may be, ignores the interrupt and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_rounds(out: Path, rounds: int, process: "subprocess.Popen[str]") -> None:
    ended = False
    while not ended:
        ended = process.poll() is not None
        path = out / "rounds.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= rounds:
            return
        time.sleep(0.005)
    pytest.fail(f"the run ended before round {rounds}: {process.communicate()}")


def test_killed_and_resumed(histfl_command: Command, tmp_path: Path) -> None:
    whole, parts, options = tmp_path / "whole", tmp_path / "parts", OPTIONS["aircomp"]
    assert histfl_command("run", *LONG, *options, "--out", whole).code == 0
    moments = random.Random(1)
    for rounds in (1, 6):
        process = start(parts, *options, "--resume")
        wait_for_rounds(parts, rounds, process)
        time.sleep(moments.random() * 0.05)
        process.kill()
        process.communicate()
    assert histfl_command("run", *LONG, *options, "--out", parts, "--resume").code == 0
    for name in SAME:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


class Killed(BaseException):
    """What nothing in the product expects."""


@pytest.mark.parametrize("options", [OPTIONS["hist"], OPTIONS["sampled"]], ids=["hist", "sampled"])
def test_ended_at_any_write_and_resumed(
    histfl_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """The process ends while it writes its first file, its second one, and so on up to its last."""
    command = ("run", *SMALL, "--set", "training.rounds=2", *options)
    assert histfl_command(*command, "--out", tmp_path / "whole").code == 0
    real, left = os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for moment in itertools.count(1):
        left, parts = moment, tmp_path / f"ended-{moment}"
        with suppress(Killed):
            histfl_command(*command, "--out", parts)
            break  # it has no more to write
        assert histfl_command(*command, "--out", parts, "--resume").code == 0
        for name in SAME:
            assert (tmp_path / "whole" / name).read_bytes() == (parts / name).read_bytes(), (moment, name)
    assert moment > 2 * 2 + 3  # a record and a checkpoint a round, model, summary and configuration


@pytest.mark.parametrize(
    ("stop", "engine"), [(signal.SIGINT, "auto"), (signal.SIGTERM, "auto"), (signal.SIGTERM, "ray")]
)
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path, stop: signal.Signals, engine: str) -> None:
    more = ("--set", "training.rounds=100000")  # than it will get to
    process = start(tmp_path / "run", *more, "--engine", engine)
    wait_for_rounds(tmp_path / "run", 2, process)
    process.send_signal(stop)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "SIGTERM" not in err  # Ray's word for it
    assert "--resume" in err.splitlines()[-1]
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("given", "added"),
    [
        (["--out", "here"], ["--resume"]),
        (["--out=here", "--resume"], []),
        (["--set", "model.hidden=3"], ["--out", "here", "--resume"]),
    ],
)
def test_the_line_to_go_on_with_has_each_option_once(
    monkeypatch: pytest.MonkeyPatch, given: list[str], added: list[str]
) -> None:
    command = ["histfl", "run", "mlp", *given]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(Interrupted) as raised, interruptible(Path("here")):
        raise KeyboardInterrupt
    assert str(raised.value).endswith(f"go on with: {shlex.join([*command, *added])}")


def test_a_run_can_be_extended(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *LONG, "--out", tmp_path / "whole")
    histfl_command("run", *SMALL, "--out", tmp_path / "parts")
    answer = histfl_command("run", *LONG, "--out", tmp_path / "parts", "--resume")
    assert answer.code == 0
    for name in SAME:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_folder_is_never_overwritten(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path)
    before = (tmp_path / "rounds.jsonl").read_bytes()
    answer = histfl_command("run", *SMALL, "--out", tmp_path)
    assert answer.code == 2
    assert "--resume" in answer.err
    assert (tmp_path / "rounds.jsonl").read_bytes() == before


def test_another_configuration_is_refused_by_its_key(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path)
    answer = histfl_command("run", *SMALL, "--set", "training.seed=2", "--out", tmp_path, "--resume")
    assert answer.code == 2
    assert "training.seed = 1, not 2" in answer.err


def garbage(path: Path) -> None:
    path.write_bytes(b"not a checkpoint")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_bytes(safetensors.torch.save({"x": torch.zeros(3)}))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_run(path: Path) -> None:
    before = path.read_bytes()
    path.write_bytes(re.sub(rb'\\"run\\":\\"....', rb'\\"run\\":\\"0000', before))
    assert path.read_bytes() != before


def of_another_round(path: Path) -> None:
    before = path.read_bytes()
    path.write_bytes(before.replace(b'\\"rounds_done\\":3', b'\\"rounds_done\\":2'))
    assert path.read_bytes() != before


@pytest.mark.parametrize(
    "damage", [garbage, truncated, flipped, foreign, empty, of_another_run, of_another_round]
)
def test_a_damaged_or_foreign_checkpoint_is_refused(
    histfl_command: Command, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path)
    damage(tmp_path / "checkpoint.safetensors")
    answer = histfl_command("run", *LONG, "--out", tmp_path, "--resume")
    assert answer.code == 2
    assert "checkpoint.safetensors is" in answer.err
    assert answer.err.count("\n") == 1


def test_missing_or_damaged_records_are_refused(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path)
    records = (tmp_path / "rounds.jsonl").read_bytes()
    for damaged in (
        b"",
        records[:40] + b"\n",
        b"\xff\n" + records,
        records.replace(b'"round": 2', b'"round": 7'),
        re.sub(rb'"accuracy": [0-9.]+', b'"accuracy": NaN', records),
    ):
        (tmp_path / "rounds.jsonl").write_bytes(damaged)
        answer = histfl_command("run", *LONG, "--out", tmp_path, "--resume")
        assert answer.code == 2, damaged
        assert "rounds.jsonl" in answer.err


def test_records_of_another_run_are_refused(histfl_command: Command, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        histfl_command("run", *SMALL, "--set", f"training.seed={seed}", "--out", tmp_path / seed)
    shutil.copy(tmp_path / "2" / "rounds.jsonl", tmp_path / "1" / "rounds.jsonl")
    answer = histfl_command("run", *LONG, "--out", tmp_path / "1", "--resume")
    assert answer.code == 2
    assert "has not the 3 rounds of checkpoint.safetensors" in answer.err


def test_a_run_without_its_checkpoint_is_left_as_it_is(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    answer = histfl_command("run", *LONG, "--out", tmp_path, "--resume")
    assert answer.code == 2
    assert "has 3 rounds and no checkpoint.safetensors to go on from" in answer.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_no_link_leads_a_file_out_of_the_folder(histfl_command: Command, tmp_path: Path) -> None:
    histfl_command("run", *SMALL, "--out", tmp_path / "run")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("report.html.unfinished", "report.html.0123abcd.unfinished"):
        (tmp_path / "run" / name).symlink_to(precious)
    (tmp_path / "run" / "report.html.4567abcd.unfinished").write_text("of a killed process")
    assert histfl_command("report", tmp_path / "run").code == 0
    assert precious.read_text() == "mine"
    assert not list((tmp_path / "run").glob("*.unfinished"))


def test_nothing_to_resume_is_said(histfl_command: Command, tmp_path: Path) -> None:
    answer = histfl_command("run", *SMALL, "--out", tmp_path / "new", "--resume", "--json")
    assert answer.code == 0
    assert (
        f"--resume: there is no checkpoint in {tmp_path / 'new'}; the run begins with round 1" in answer.err
    )
    again = histfl_command("run", *SMALL, "--out", tmp_path / "new", "--resume", "--json")
    assert "--resume" not in again.err
    assert again.json["rounds"] == answer.json["rounds"]
    (tmp_path / "new" / "checkpoint.safetensors").unlink()
    lost = histfl_command("run", *SMALL, "--out", tmp_path / "new", "--resume")
    assert lost.code == 2
    assert "the run begins with round 1" not in lost.err  # it does not: there are rounds


def test_two_processes_do_not_share_a_folder(histfl_command: Command, tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--set", "training.rounds=100000")
    wait_for_rounds(tmp_path / "run", 1, process)
    answer = histfl_command(
        "run", *LONG, "--set", "training.rounds=100000", "--out", tmp_path / "run", "--resume"
    )
    process.kill()
    process.communicate()
    assert answer.code == 2
    assert "another process" in answer.err


def test_a_disk_that_takes_no_more_leaves_whole_files_only(tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: records fit, the checkpoint does not."""
    limit = 100_000
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "from histfl.cli import main; main()"
    )
    out = tmp_path / "run"
    arguments = ["run", *SMALL, "--set", "model.hidden=64", "--out", str(out)]
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "cannot write" in ended.stderr
    assert "File too large" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert {path.name for path in out.iterdir()} == {"config.toml", "rounds.jsonl", ".lock"}


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="needs the right to mount a small disk"
)
def test_a_disk_that_fills_up_leaves_whole_files_only(histfl_command: Command, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        answer = histfl_command("run", *SMALL, "--set", "model.hidden=64", "--out", disk / "run")
        assert answer.code == 1
        assert "No space left" in answer.err
        left = {path.name for path in (disk / "run").iterdir()}
        assert not {"summary.json", "model.safetensors"} & left
        assert not [name for name in left if name.endswith(".unfinished")]
        if "checkpoint.safetensors" in left:
            safetensors.torch.load_file(disk / "run" / "checkpoint.safetensors")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
