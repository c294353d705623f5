"""The container files of the page on deployments: what they mount and start is what there is."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from commands import Answer
from typer.main import get_command

from histfl.cli import app
from histfl.deploy.refused import check_deployable
from histfl.errors import UsageError
from histfl.runs.loading import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "containers"
PAGE = ROOT / "docs" / "howto" / "deploy.md"

# The part of the Compose Specification that the file uses; docker compose refuses an unknown key.
TEXTS = {"type": "array", "items": {"type": "string"}}
SERVICE = {
    "type": "object",
    "required": ["image", "command", "volumes", "user", "restart"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string"},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"context": {"type": "string"}, "dockerfile": {"type": "string"}},
        },
        "command": TEXTS,
        "volumes": {**TEXTS, "items": {"type": "string", "pattern": r"^\./[\w./-]+:/[\w./-]+(:ro)?$"}},
        "user": {"type": "string"},
        "init": {"type": "boolean"},
        "read_only": {"type": "boolean"},
        "tmpfs": TEXTS,
        "cap_drop": TEXTS,
        "security_opt": TEXTS,
        "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
    },
}
COMPOSE = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "additionalProperties": SERVICE},
    },
}
INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "ENTRYPOINT", "CMD"}


@pytest.fixture
def compose() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))


@pytest.fixture
def kits(tmp_path: Path, histfl_command: Callable[..., Answer]) -> Path:
    """The kits of the network beside the compose file."""
    assert histfl_command("deploy", "init", FOLDER / "NETWORK.toml", "--out", tmp_path / "kits").code == 0
    return tmp_path / "kits"


def mounts(service: Any) -> dict[str, tuple[str, bool]]:
    """By the place inside: what lies there, and whether it may be written."""
    parts = [each.split(":") for each in service["volumes"]]
    return {inside: (outside, rest != ["ro"]) for outside, inside, *rest in parts}


def test_compose_takes_it(compose: Any) -> None:
    jsonschema.validate(compose, COMPOSE)
    for service in compose["services"].values():
        assert (FOLDER / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()


def test_it_mounts_the_kits_that_are_made(compose: Any, kits: Path) -> None:
    made = {folder.name for folder in kits.iterdir()} - {"authority"}
    assert compose["services"].keys() == made
    for name, service in compose["services"].items():
        inside = mounts(service)
        assert inside["/kit"] == (f"./kits/{name}", False)
        writable = [outside for outside, writes in inside.values() if writes]
        assert writable == (["./runs"] if name == "cloud" else [])
        about = tomllib.loads((kits / name / "kit.toml").read_text("utf-8"))
        assert service["command"][0] == about["role"]
        if "listen" in about:
            assert about["listen"]["host"] == name
        if "parent" in about:
            assert about["parent"]["host"] in compose["services"]


def test_no_container_is_root_s_or_may_more_than_it_needs(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["user"].startswith("${HISTFL_USER:?")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["restart"] == ("on-failure" if name == "cloud" else "unless-stopped")
    assert ["USER", "10001:10001"] in instructions()


def test_its_commands_are_ours_and_read_what_is_mounted(compose: Any) -> None:
    for service in compose["services"].values():
        parse(service["command"])
        inside = mounts(service)
        for word in service["command"][1:]:
            if word.startswith("/"):
                assert any(word == place or word.startswith(f"{place}/") for place in inside), word
    assert "--resume" in compose["services"]["cloud"]["command"]  # it is started again after a failure


def parse(arguments: list[str]) -> None:
    """A click error where these are not arguments of histfl's command line."""
    command: Any = get_command(app)
    context = command.make_context("histfl", list(arguments))
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["edge", "/kit", "--no-such"])
    with pytest.raises(Exception, match="No such command"):
        parse(["edges"])


def instructions() -> list[list[str]]:
    """Of the Dockerfile, each by its words."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text("utf-8").splitlines() if line[:1] != "#"]
    return [
        line.split(None, 1) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()
    ]


def test_the_dockerfile_is_one() -> None:
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) <= INSTRUCTIONS
    assert names[0] == "FROM"
    assert re.search(r":\d", found[0][1]), "an image without a version changes some day"
    assert names.index("USER") > max(number for number, name in enumerate(names) if name == "RUN")
    for name, words in found:
        if name == "COPY":
            for source in shlex.split(words)[:-1]:
                assert (ROOT / source).exists(), source
        if name in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(word, str) for word in json.loads(words))  # the form without a shell
        if name == "ENV":
            assert all("=" in word for word in shlex.split(words))
        if name == "RUN" and "pip install" in words:
            assert "--no-cache-dir" in words
            assert "--constraint constraints.txt" in words


def test_docker_compose_reads_it() -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "compose", "version"]).returncode:
        pytest.skip("docker compose is not installed")
    done = subprocess.run(
        ["docker", "compose", "--file", str(FOLDER / "compose.yaml"), "config", "--quiet"],
        env=os.environ | {"HISTFL_USER": "1000:1000"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_of_the_pages_are_ours() -> None:
    """Those that are shown and not run."""
    seen = 0
    for text in re.findall(
        r"^```(?:bash|text)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        for line in text.splitlines():
            words = shlex.split(line, comments=True) if "histfl " in line.split(":")[0] else []
            words = words[1:] if words and words[0].startswith("PYTHONPATH=") else words
            if words[:1] == ["histfl"]:
                parse(words[1:])
                seen += 1
    assert seen > 10
    (unit,) = re.findall(r"^ExecStart=\S+/histfl (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    parse(shlex.split(unit))


def test_what_the_page_says_is_refused_is_refused() -> None:
    section = PAGE.read_text("utf-8").partition("## What is refused")[2].partition("\n## ")[0]
    rows = [
        re.findall(r"`([\w.-]+=[\w.-]+)`", row.split("|")[1])
        for row in section.splitlines()
        if row.startswith("|")
    ]
    rows = [row for row in rows if row]
    assert len(rows) == 4
    for settings in rows:
        with pytest.raises(UsageError, match=settings[0].partition("=")[0]):
            check_deployable(load_config("quickstart", settings))
    for settings in (["uplink.name=tdma"], ["evaluate.per=client"], ["codec.name=top-k"]):
        check_deployable(load_config("quickstart", settings))


def test_memory_is_as_it_was_measured() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "deployment.json").read_text("utf-8"))["many"]
    text = PAGE.read_text("utf-8")
    for name in ("one `histfl client` process", "its edge", "its cloud", "50 clients in one process"):
        assert f"| {name} | {stored[name]['rss']} | {stored[name]['private']} |" in text
    assert f"{stored['of these a client']['rss']:.0f} MB a client" in text
