"""Plugins of installed packages: their names stand in a configuration like those of histfl."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Answer
from test_trust import CODE, RUN

Command = Callable[..., Answer]
PLUGINS = """
[histfl.models]
their-net = their_plugins:net

[histfl.datasets]
their-data = their_plugins:data

[histfl.splits]
by-turns = their_plugins:split

[histfl.channels]
flat = their_plugins:channel
"""
CONFIGURATION = """
[model]
name = "their-net"
width = 4

[data]
name = "their-data"
split = "by-turns"

[uplink]
channel = "flat"
"""
SHAPE = ["--input-shape", "1,28,28", "--classes", "10", "--draws", "1"]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a plugin of every kind, laid out as pip does, and a configuration that names them."""
    packages = tmp_path / "packages"
    about = packages / "their_plugins-1.0.dist-info"
    about.mkdir(parents=True)
    (packages / "their_plugins.py").write_text(CODE)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: their-plugins\nVersion: 1.0\nLicense-Expression: MIT\n"
    )
    (about / "entry_points.txt").write_text(PLUGINS)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.chdir(tmp_path)
    Path("theirs.toml").write_text(CONFIGURATION)
    yield
    sys.modules.pop("their_plugins", None)


def test_a_configuration_names_plugins_without_trust(histfl_command: Command) -> None:
    ran = histfl_command("run", "theirs.toml", *RUN, "--out", "runs/theirs", "--json")
    assert ran.code == 0, ran.err
    assert [ran.json[key] for key in ("model", "dataset", "split")] == ["their-net", "their-data", "by-turns"]
    kept = "runs/theirs/config.toml"
    further = ["--set", "training.rounds=2", "--resume"]
    assert histfl_command("run", kept, *RUN, *further, "--out", "runs/theirs").code == 0
    assert histfl_command("report", "runs/theirs").code == 0
    planned = histfl_command("plan", "theirs.toml", *SHAPE, "--json")
    assert planned.code == 0, planned.err
    assert planned.json["parameters"] == 784 * 4 + 4 + 4 * 10 + 10
    shown = histfl_command("data", "show", kept, "--json")
    assert shown.code == 0, shown.err
    counts = [sum(client) for client in shown.json["clients"]]
    assert max(counts) - min(counts) <= 1


def test_they_are_listed_and_meant(histfl_command: Command) -> None:
    listed = histfl_command("data", "list", "--json").json["datasets"]
    assert listed[-1] == {
        "name": "their-data",
        "description": "a plugin of their-plugins: their_plugins:data",
        "licence": "MIT",
        "download_megabytes": None,
    }
    assert "their-data" in histfl_command("data", "list").out
    for setting, near in (
        ("model.name=their-nett", "their-net"),
        ("data.name=their-dat", "their-data"),
        ("data.split=by-turn", "by-turns"),
        ("uplink.channel=flatt", "flat"),
    ):
        answer = histfl_command("run", "quickstart", *RUN, "--set", setting)
        assert answer.code == 2
        assert f"did you mean {near!r}?" in answer.err
    for command in ("fetch", "where"):
        answer = histfl_command("data", command, "their-data")
        assert answer.code == 2
        assert "data set 'their-data' is a plugin, their_plugins:data" in answer.err
