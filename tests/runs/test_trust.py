"""A configuration that somebody sent calls nothing of its own unless the user trusts it."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Answer
from runs_for_tests import write_run

from histfl.errors import UsageError
from histfl.runs.build import prepare
from histfl.runs.loading import load_config
from histfl.runs.store import RunFolder

Command = Callable[..., Answer]
CODE = """
from pathlib import Path
from subprocess import getoutput

import torch
from torch import nn

Path(__file__).with_name("imported").touch()


def net(input_shape, num_classes, cmd="", width=8):
    size = torch.Size(input_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, num_classes))


def data():
    from histfl.data import load

    return load("fashion-mnist-mini")


def split(labels, clients_per_cell):
    clients = int(clients_per_cell.sum())
    return [range(client, len(labels), clients) for client in range(clients)]


class channel:
    def draw(self, clients, antennas, generator, dtype=torch.complex128):
        shape = (*([clients] if isinstance(clients, int) else clients), antennas)
        return torch.ones(shape, dtype=dtype)
"""
SETTINGS = {"model.name": "net", "data.name": "data", "data.split": "split", "uplink.channel": "channel"}
FEW = [
    *("network.cells=2", "network.clients=4", "training.rounds=1", "training.edge_rounds=1"),
    *("training.local_steps=1", "training.batch_size=5", "data.test_samples=20"),
]
SET_FEW = [part for setting in FEW for part in ("--set", setting)]
RUN = [*SET_FEW, "--device", "cpu"]
COMMANDS: dict[str, tuple[list[str], list[str]]] = {  # what follows the file, and the kinds it calls
    "run": ([*RUN, "--out", "runs/theirs"], list(SETTINGS)),
    "sweep": ([*RUN, "--vary", "training.seed=1,2", "--out", "runs/theirs"], list(SETTINGS)),
    "plan": (
        [*SET_FEW, "--draws", "1", "--input-shape", "1,28,28", "--classes", "10"],
        ["model.name", "uplink.channel"],
    ),
    "data show": (SET_FEW, ["data.name", "data.split"]),
}
CALLED = [(command, key) for command, (_, keys) in COMMANDS.items() for key in keys]
NOT_CALLED = [(name, key) for name, (_, keys) in COMMANDS.items() for key in SETTINGS if key not in keys]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In a working folder of its own, a module `theirs.code`; the file is there once it has been imported."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "theirs/imported"
    for name in ("theirs", "theirs.code"):
        sys.modules.pop(name, None)


def toml(*keys: str, module: str = "theirs.code", model: str = "") -> str:
    """A configuration that names callables of `module`, written to a file."""
    values = {"model.name": "mlp", "data.name": "fashion-mnist-mini", "data.split": "iid"}
    values |= {key: f"{module}:{SETTINGS[key]}" for key in keys}
    sections: dict[str, str] = {"model": model}
    for path, value in values.items():
        section, key = path.split(".")
        sections[section] = sections.get(section, "") + f'{key} = "{value}"\n'
    text = "".join(f"[{section}]\n{lines}" for section, lines in sections.items())
    Path("theirs.toml").write_text(text, "utf-8")
    return "theirs.toml"


def refused(answer: Answer, *said: str) -> None:
    assert answer.code == 2, answer.err
    assert not answer.out
    assert len(answer.err.strip().splitlines()) == 1, answer.err
    for words in said:
        assert words in answer.err


def of_their_code(key: str, file: str = "theirs.toml") -> tuple[str, str]:
    call = f"would import theirs.code and call its {SETTINGS[key]}"
    return f"{file}: {key} = 'theirs.code:{SETTINGS[key]}' {call}", "add --trust theirs.code"


@pytest.mark.parametrize(("command", "key"), CALLED)
def test_a_file_calls_nothing_until_the_user_trusts_the_module(
    command: str, key: str, histfl_command: Command, imported: Path
) -> None:
    words, file = command.split(), toml(key)
    options = COMMANDS[command][0]
    for trust in ((), ("--trust", "theirs"), ("--trust", "theirs.code.deeper"), ("--trust", "os")):
        refused(histfl_command(*words, file, *options, *trust), *of_their_code(key))
    assert not imported.exists()
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_trusted_file_and_what_is_typed_are_called(
    command: str, histfl_command: Command, imported: Path
) -> None:
    options, called = COMMANDS[command]
    words = [*command.split(), toml(*called), *options]
    answer = histfl_command(*words, "--trust", "os", "--trust", "theirs.code")
    assert answer.code == 0, answer.err
    assert imported.exists()
    typed = [part for key in called for part in ("--set", f"{key}=theirs.code:{SETTINGS[key]}")]
    answer = histfl_command(*words, *typed, *(["--resume"] if "--out" in words else []))
    assert answer.code == 0, answer.err


def test_a_typed_name_is_no_word_for_another_key(histfl_command: Command, imported: Path) -> None:
    file = toml(*SETTINGS)
    typed = [
        part
        for key in ("model.name", "data.name")
        for part in ("--set", f"{key}=theirs.code:{SETTINGS[key]}")
    ]
    refused(histfl_command("run", file, *RUN, *typed), *of_their_code("data.split"))
    refused(histfl_command("run", file, *RUN, "--set", "model.width=4"), *of_their_code("model.name"))
    assert not imported.exists()


def test_what_is_varied_and_the_model_of_a_plan_are_typed(histfl_command: Command, imported: Path) -> None:
    varied = ["--vary", "data.split=iid,theirs.code:split", "--out", "runs/both"]
    answer = histfl_command("sweep", toml("data.split"), *RUN, *varied)
    assert answer.code == 0, answer.err
    file, options = toml("model.name"), COMMANDS["plan"][0]
    refused(histfl_command("plan", file, *options, "--vary", "cells=2,3"), *of_their_code("model.name"))
    answer = histfl_command("plan", toml(), *options, "--model", "theirs.code:net")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(("command", "key"), NOT_CALLED)
def test_what_a_command_does_not_call_needs_no_trust(
    command: str, key: str, histfl_command: Command, imported: Path
) -> None:
    answer = histfl_command(*command.split(), toml(key), *COMMANDS[command][0])
    assert answer.code == 0, answer.err
    assert not imported.exists()


def test_an_ideal_uplink_calls_no_channel(histfl_command: Command, imported: Path) -> None:
    answer = histfl_command("run", toml("uplink.channel"), *RUN, "--set", "uplink.name=ideal")
    assert answer.code == 0, answer.err
    assert not imported.exists()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_trust_is_remembered_nowhere(command: str, histfl_command: Command, imported: Path) -> None:
    words = [command, toml(*SETTINGS), *COMMANDS[command][0]]
    done = histfl_command(*words, "--trust", "theirs.code")
    assert done.code == 0, done.err
    kept = [path.read_text() for path in Path("runs").rglob("config.toml")]
    assert all("trust" not in text for text in kept)
    more = [*words, "--set", "training.rounds=2", "--resume"]
    refused(histfl_command(*more), *of_their_code("model.name"))
    resumed = histfl_command(*more, "--trust", "theirs.code")
    assert resumed.code == 0, resumed.err
    assert "there is no checkpoint" not in resumed.err


def test_trust_changes_no_fingerprint(imported: Path) -> None:
    file = toml(*SETTINGS)
    typed = load_config(file, [f"{key}=theirs.code:{name}" for key, name in SETTINGS.items()])
    for config in (load_config(file), load_config(file, trusted=["theirs.code"])):
        assert config.fingerprint() == typed.fingerprint()
        assert config.to_toml() == typed.to_toml()
    for config in (load_config(file), pickle.loads(pickle.dumps(load_config(file)))):
        with pytest.raises(UsageError, match=r"add --trust theirs\.code"):
            prepare(config, device="cpu")
    assert not imported.exists()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("subprocess:getoutput", 'cmd = "touch imported"\n'),
        ("os:system", 'command = "touch imported"\n'),
        ("builtins:eval", "source = \"open('imported', 'w')\"\n"),
        ("torch:load", 'f = "imported"\n'),
        ("theirs.code:getoutput", 'cmd = "touch imported"\n'),
    ],
)
def test_a_command_of_pythons_library_runs_in_no_case(
    name: str, options: str, histfl_command: Command, imported: Path
) -> None:
    module = name.partition(":")[0]
    Path("theirs.toml").write_text(
        f'[model]\nname = "{name}"\n{options}[data]\nname = "fashion-mnist-mini"\n'
    )
    trusts = ["--trust", module, "--trust", "subprocess"]
    for command in ("run", "plan", "sweep"):
        words = [command, "theirs.toml", *COMMANDS[command][0]]
        for more in (trusts, ["--set", f"model.name={name}"]):
            refused(
                histfl_command(*words, *more),
                f"model.name = {name!r} would call",
                "name a function of your own",
            )
        refused(histfl_command(*words), "theirs.toml: model.name = ")
    for key, command in (("data.name", "data show"), ("data.split", "data show"), ("uplink.channel", "plan")):
        words = [*command.split(), toml(), *COMMANDS[command][0], *trusts]
        refused(histfl_command(*words, "--set", f"{key}={name}"), f"{key} = {name!r} would call")
    assert not Path("imported").exists()


@pytest.fixture
def shared(imported: Path) -> Path:
    """A run folder that somebody sent: a finished run, whose configuration names their code."""
    folder = write_run(Path("shared"), "theory.every=1", *FEW)
    config = RunFolder(folder).read_config()
    for key, name in SETTINGS.items():
        section, _, inside = key.partition(".")
        changed = getattr(config, section).model_copy(update={inside: f"theirs.code:{name}"})
        config = config.model_copy(update={section: changed})
    RunFolder(folder).write_config(config)
    RunFolder(folder).checkpoint_path.touch()
    return folder


def test_a_shared_run_folder_calls_nothing(histfl_command: Command, shared: Path, imported: Path) -> None:
    file = f"{shared}/config.toml"
    said = of_their_code("model.name", file)
    refused(histfl_command("run", file, "--out", shared, "--resume"), *said)
    refused(histfl_command("run", file, "--out", "runs/mine"), *said)
    refused(histfl_command("sweep", file, "--vary", "training.seed=1,2", "--out", "runs/mine"), *said)
    refused(histfl_command("plan", file, "--input-shape", "1,28,28", "--classes", "10"), *said)
    refused(histfl_command("data", "show", file), *of_their_code("data.name", file))
    # Its configuration against the user's own: it is compared, and nothing of it is called.
    mine = histfl_command("run", "quickstart", *RUN, "--out", shared, "--resume")
    refused(mine, "holds a run with data.name = 'theirs.code:data', not 'fashion-mnist-mini'")
    shown = histfl_command("report", shared)
    assert shown.code == 0, shown.err
    histfl_command("bound", shared)
    assert not imported.exists()
    with pytest.raises(UsageError, match=r"shared/config\.toml: model\.name"):
        prepare(RunFolder(shared).read_config(), device="cpu")


def test_a_bound_of_a_shared_run_calls_nothing(histfl_command: Command, imported: Path) -> None:
    theirs = [part for key in ("theory.every=1", "method.name=hist") for part in ("--set", key)]
    trained = histfl_command(
        "run", toml(*SETTINGS), *RUN, *theirs, "--trust", "theirs.code", "--out", "runs/theirs"
    )
    assert trained.code == 0, trained.err
    imported.unlink()
    sys.modules.pop("theirs.code")
    for command in ("bound", "report"):
        answer = histfl_command(command, "runs/theirs")
        assert answer.code == 0, answer.err
    assert not imported.exists()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_trust_names_a_module(command: str, histfl_command: Command, imported: Path) -> None:
    words = [*command.split(), toml("model.name"), *COMMANDS[command][0]]
    refused(
        histfl_command(*words, "--trust", "theirs.code:net"),
        "--trust 'theirs.code:net': name a module, such as --trust theirs.code",
    )
