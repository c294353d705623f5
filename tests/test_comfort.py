"""What makes `histfl.train` pleasant in scripts and notebooks."""

from __future__ import annotations

import builtins
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from commands import SMALL
from small_training import INPUTS, NETWORK, TARGETS, mlp, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import histfl
from histfl.cli import main
from histfl.data import load
from histfl.errors import CheckpointError, HistflError, UsageError


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> histfl.Run:
    return train(rounds=3, out=tmp_path_factory.mktemp("runs") / "kept", split="iid")


def weights(model: nn.Module) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def test_the_package_shows_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"train", "Network", "Run", "compare", "__version__"} <= set(dir(histfl))
    for arguments in (["--version"], ["-h"], ["run", "-h"], ["data", "list", "-h"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"histfl {histfl.__version__}\n")
    assert said.count("Show this message and exit") == 3


@pytest.mark.parametrize("group", [[], ["data"], ["deploy"], ["reproduce"]])
def test_lists_of_commands_tell_whole_sentences(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*group, "-h"])
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_the_package_is_a_command() -> None:
    for arguments, code in ((["--version"], 0), (["run", "nowhere"], 2)):
        ended = subprocess.run([sys.executable, "-m", "histfl", *arguments], capture_output=True, text=True)
        assert ended.returncode == code
        assert f"histfl {histfl.__version__}" in ended.stdout or "'nowhere' is neither" in ended.stderr


def test_a_kept_run_is_loaded_with_its_model(kept: histfl.Run, tmp_path: Path) -> None:
    assert kept.folder is not None
    other = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    loaded = histfl.Run.load(kept.folder, other)
    assert np.array_equal(loaded.accuracy, kept.accuracy)
    assert all(map(torch.equal, weights(loaded.model), weights(kept.model)))
    assert not all(map(torch.equal, weights(other), weights(kept.model)))  # it is copied
    assert histfl.Run.load(str(kept.folder)).model is None
    with pytest.raises(CheckpointError, match=r"does not fit the model.*; give the one that was trained"):
        histfl.Run.load(kept.folder, nn.Linear(8, 3))
    with pytest.raises(CheckpointError, match=r"nowhere: empty: no run was begun here"):
        histfl.Run.load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"Run.load\(model=3\): give a torch.nn.Module"):
        histfl.Run.load(kept.folder, 3)  # type: ignore[arg-type]


def test_a_run_of_the_command_line_is_loaded_with_what_serving_it_needs(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["run", *SMALL, "--set", "training.rounds=1", "--out", str(tmp_path / "run"), "--json"])
    run = histfl.Run.load(tmp_path / "run")
    assert run.summary["inputs"] == {"shape": [1, 28, 28], "dtype": "float32"}
    assert run.summary["normalisation"] == {"mean": [0.5], "std": [0.5]}
    _, test = load("fashion-mnist-mini")
    right = (run.model.eval()(test.inputs).argmax(dim=1) == test.targets).float().mean().item()
    assert right == pytest.approx(run.accuracy[-1])
    assert run.summary["class_names"] == list(test.class_names)


def test_runs_are_compared_by_their_folders(kept: histfl.Run, tmp_path: Path) -> None:
    other = train(rounds=3, method="hfedavg", out=tmp_path / "other")
    both = histfl.compare(str(kept.folder), tmp_path / "other")
    assert [run.summary["method"] for run in both.runs] == ["hist", "hfedavg"]
    assert both.rows[1]["megabytes_per_client"] == other.megabytes_per_client[-1]
    assert [run.name for run in histfl.compare(other, ours=str(kept.folder)).runs] == ["hfedavg", "ours"]
    (tmp_path / "other" / "summary.json").write_text("{")
    with pytest.raises(UsageError, match=r"compare: other: .*; leave it out"):
        histfl.compare(tmp_path / "other")
    with pytest.raises(UsageError, match="is no folder"):
        histfl.compare("nowhere")
    assert repr(histfl.compare(ours=kept)) == f"Comparison(ours: {histfl.compare(ours=kept).sentence})"


def test_a_run_shows_itself_in_a_line_and_as_a_table(kept: histfl.Run) -> None:
    assert repr(kept).startswith(f"Run(hist: 3 rounds, accuracy {kept.accuracy[-1]:.1%}, ")
    assert repr(kept).endswith(f" simulated s, in {kept.folder})")
    assert len(repr(kept).splitlines()) == 1
    assert "<table" in kept._repr_html_()


def test_a_run_tells_who_held_what() -> None:
    given = [[0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]
    run = train(split=given)
    assert run.split is not None
    assert [run.split.client(number).tolist() for number in range(4)] == given
    assert repr(run.split) == "Split(4 clients, 10 samples, 1 to 4 each)"


def test_on_round_sees_the_model_and_may_stop_the_run(tmp_path: Path) -> None:
    seen: list[list[torch.Tensor]] = []

    def look(record: dict[str, Any], model: nn.Module) -> str | None:
        seen.append([tensor.clone() for tensor in weights(model)])
        with torch.no_grad():
            model.get_parameter("0.weight").zero_()  # a copy: no harm done
        return "stop" if record["round"] == 2 else None

    run = train(rounds=5, on_round=look, out=tmp_path)
    plain = train(rounds=2)
    assert len(run.records) == 2
    assert run.records == plain.records
    assert all(map(torch.equal, seen[-1], weights(plain.model)))
    more = train(rounds=3, out=tmp_path, resume=True)
    assert more.records == train(rounds=3).records


def test_patience_ends_a_run_that_gets_no_better() -> None:
    settings = {"rounds": 12, "learning_rate": 1e-9}  # nothing moves
    run = train(patience=3, **settings)
    assert len(run.records) == 4
    assert len(train(**settings).records) == 12
    assert run.config.fingerprint() == train(rounds=1, learning_rate=1e-9).config.fingerprint()


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    train(rounds=2)
    assert capsys.readouterr().err == ""  # nobody looks
    run = train(rounds=2, progress=True)
    assert f"hist: round 2/2, accuracy {run.accuracy[-1]:.1%}, " in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, progress in ((True, None), (False, False)):
        screen = Terminal()
        with monkeypatch.context() as patched:
            patched.setenv("TERM", "xterm")
            patched.setattr(sys, "stderr", screen)
            run = train(rounds=2, progress=progress)
        assert (f"accuracy {run.accuracy[-1]:.1%}, " in screen.getvalue()) == said


class Handle:
    """What IPython's `display` gives, to write its place anew."""

    def __init__(self, shown: list[str]) -> None:
        self._shown = shown

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        self._shown[-1] = bundle["text/plain"]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A notebook as its kernel looks to a library: what stands in the cell."""
    shown: list[str] = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(bundle["text/plain"])
        return Handle(shown)

    ipython, inside = ModuleType("IPython"), ModuleType("IPython.display")
    inside.display = display  # type: ignore[attr-defined]
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell(), raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_progress_in_a_notebook_is_one_line_of_the_cell(notebook: list[str]) -> None:
    run = train(rounds=2)
    (line,) = notebook
    assert line.startswith(f"hist: round 2/2, accuracy {run.accuracy[-1]:.1%}, ")
    train(rounds=2, progress=False)
    assert len(notebook) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside tensorboard
def test_a_run_is_followed_by_a_tracker(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    train(rounds=2, out=tmp_path, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


def test_a_compiled_model_is_the_model(kept: histfl.Run) -> None:
    wrapped = torch.compile(mlp(), backend="eager")
    run = train(wrapped, rounds=3, split="iid")
    assert run.config.model.name == "Sequential"
    assert run.records == kept.records


def test_loaders_and_arrays_are_the_data_they_hold(
    kept: histfl.Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = TensorDataset(INPUTS, TARGETS)
    loaded = train(data=DataLoader(data, batch_size=7, shuffle=True), rounds=3)
    assert loaded.records == kept.records
    train(data=DataLoader(data, batch_size=7), batch_size=None)
    assert "batches of 50 samples; the DataLoader's own size is not read: give batch_size=7" in caplog.text
    np.save(tmp_path / "inputs.npy", INPUTS.numpy())
    on_disk = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    assert train(data=(on_disk, TARGETS.numpy()), rounds=3).records == kept.records


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "engine": ({"engine": 3}, "engine 3: use auto, reference"),
    "method": ({"metod": "hist"}, "train() has no setting 'metod'; did you mean 'method'?"),
    "setting": ({"edge_round": 3}, "did you mean 'edge_rounds'?"),
    "initials": ({"lr": 0.1}, "did you mean 'learning_rate'?"),
    "one of its words": ({"num_rounds": 3}, "did you mean 'rounds'?"),
    "a word of other packages": (
        {"epochs": 3},
        "here it is local_steps, the batches of a client in an edge round",
    ),
    "one of its words, not letters alike": ({"n_rounds": 3}, "did you mean 'rounds'?"),
    "nothing near": ({"qqq": 3}, "known: "),
    "letters alike by chance": ({"num_clients": 3}, "known: "),
    "of the network": ({"cells": 4}, "the network says it: network=histfl.Network.uniform("),
    "of the uplink": ({"bandwidth_hz": 1e6}, "uplink={'name': 'fdma', 'bandwidth_hz': ...}"),
    "progress": ({"progress": 3}, "train(progress=3): give True or False"),
    "tracker": ({"tensorboard": True}, "train(tensorboard=True) without out: name a folder"),
    "store": ({"mlflow": 3}, "train(mlflow=3): give True or False, or the address of a store"),
    "patience": ({"patience": 0}, "training.patience = 0: "),
    "stop": ({"on_round": lambda record, model, more: None}, "failed after round 1: TypeError"),
    "stop in capitals": (
        {"on_round": lambda record: "Stop"},
        "returned 'Stop' after round 1; to end the run",
    ),
    "stop, a truth": ({"on_round": lambda record: False}, "returned False after round 1; to end the run"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_said_in_one_line(name: str) -> None:
    given, said = BAD[name]
    with pytest.raises(HistflError) as error:
        train(**given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_configuration_of_a_python_run_says_what_it_lacks(kept: histfl.Run) -> None:
    assert kept.folder is not None
    text = (kept.folder / "config.toml").read_text("utf-8")
    note, _, _ = text.partition("\n\n")
    assert all(line.startswith("# ") for line in note.splitlines())
    said = " ".join(line.removeprefix("# ") for line in note.splitlines())
    assert "the model (a Sequential), the training and test data, the network" in said
    assert "'package.module:function'" in said
    assert histfl.Run.load(kept.folder).config == kept.config


def test_the_network_is_a_network() -> None:
    assert repr(histfl.Network.uniform(cells=40, clients_per_cell=3)) == "Network(120 clients in 40 cells)"
    with pytest.raises(UsageError, match=r"network=histfl\.Network"):
        train(network=[NETWORK])


def test_images_as_bytes_are_told_how_to_become_numbers() -> None:
    images = np.zeros((40, 8), np.uint8)
    with pytest.raises(UsageError, match=r"training samples.*by \.astype\('float32'\) / 255"):
        histfl.train(
            mlp(), (images, np.arange(40) % 3), (images, np.arange(40) % 3), network=NETWORK, rounds=1
        )
