"""What a configuration may call, whatever its name hides."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from histfl.data import load
from histfl.errors import UsageError
from histfl.factories import DATA, KINDS, MODEL, Kind, check_callable, check_trust, find_factory, plugins
from histfl.models import MODELS
from histfl.models.vision import mlp
from histfl.wireless import PathLoss
from histfl.wireless.channels import CHANNELS

MINE = """
import functools
import subprocess
from builtins import eval as evaluate
from os import system
from subprocess import Popen, getoutput

import numpy
import torch
from torch import nn
from torch import load as torch_load

import histfl.data
from histfl.cli import main
from histfl.models.vision import mlp
from mine.deeper import deep

partly = functools.partial(functools.partial(getoutput), "true")
cached = functools.cache(getoutput)
wrapped = functools.wraps(getoutput)(lambda cmd: getoutput(cmd))
method = Popen.communicate
append = [].append
add = numpy.add


def net(width=3):
    return nn.Linear(width, width)


class Net(nn.Module):
    pass


class Builder:
    def __call__(self):
        return Net()

    def build(self):
        return Net()


frozen = torch.no_grad()(net)
narrow = functools.partial(net, width=2)
our_mlp = functools.partial(mlp, hidden=5)
images = functools.partial(histfl.data.load, "fashion-mnist-mini")
builder = Builder()
build = Builder().build
"""


@pytest.fixture
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's package `mine`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text(MINE)
    (tmp_path / "mine/deeper.py").write_text("def deep():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("mine", "mine.deeper"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
@pytest.mark.parametrize("file", [None, "theirs.toml"])
@pytest.mark.parametrize(
    "name",
    [
        *(
            "subprocess:getoutput",
            "os:system",
            "posix:system",
            "os.path:join",
            "builtins:eval",
            "runpy:run_path",
        ),
        *(
            "antigravity:fly",
            "torch:load",
            "torch.hub:load",
            "numpy:load",
            "pydantic.utils:x",
            "jinja2:Template",
        ),
        *("setuptools:setup", "_pytest.config:main"),
    ],
)
def test_pythons_library_and_what_histfl_builds_on_are_refused_before_an_import(
    name: str, file: str | None, kind: Kind
) -> None:
    before = set(sys.modules)
    with pytest.raises(
        UsageError, match=r"would call .*, which a configuration never does; name a function"
    ) as e:
        check_callable(kind, name, file=file)
    assert str(e.value).startswith(f"{file}: {kind.key} = {name!r}" if file else f"{kind.key} = {name!r}")
    with pytest.raises(UsageError, match="would call"):
        find_factory(kind, name, {})
    assert "antigravity" not in set(sys.modules) - before


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    ("attribute", "called"),
    [
        ("getoutput", "subprocess.getoutput, Python's own subprocess"),
        ("system", ".system, Python's own"),
        ("evaluate", "builtins.eval, Python's own builtins"),
        ("Popen", "subprocess.Popen"),
        ("partly", "subprocess.getoutput"),
        ("cached", "subprocess.getoutput"),
        ("wrapped", "subprocess.getoutput"),
        ("method", "subprocess.Popen.communicate"),
        ("append", "builtins.list.append"),
        ("add", "numpy, which histfl builds on"),
        ("torch_load", "torch, which histfl builds on"),
        ("__class__", "builtins.module"),
        ("__dir__", "Python's own builtins"),
        ("main", "histfl.cli.main, a part of histfl that makes no model"),
    ],
)
def test_a_callable_is_judged_by_where_it_comes_from(attribute: str, called: str) -> None:
    with pytest.raises(UsageError) as raised:
        find_factory(MODEL, f"mine:{attribute}", MODELS)
    assert str(raised.value).startswith(f"model.name = 'mine:{attribute}' would call ")
    assert called in str(raised.value)
    assert "name a function of your own" in str(raised.value)


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize("name", ["mine:os.system", "mine:subprocess.getoutput", "mine:net.__globals__"])
def test_a_name_reaches_no_deeper_than_its_module(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be imported: AttributeError"):
        find_factory(MODEL, name, MODELS)


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize(
    "attribute", ["net", "Net", "deep", "frozen", "narrow", "our_mlp", "builder", "build", "Builder"]
)
def test_what_a_user_wrote_is_called(attribute: str) -> None:
    assert callable(find_factory(MODEL, f"mine:{attribute}", MODELS))


@pytest.mark.usefixtures("_mine")
def test_histfls_own_are_found_by_their_place_too() -> None:
    assert find_factory(MODEL, "histfl.models.vision:mlp", MODELS) is mlp
    assert find_factory(KINDS["uplink.channel"], "histfl.wireless:PathLoss", CHANNELS) is PathLoss
    assert callable(find_factory(DATA, "mine:images", {}, ours=[load]))
    for name in (
        "histfl.cli:main",
        "histfl.files:write_whole",
        "histfl:train",
        "histfl.wireless:PathLoss",
        "histfl.cli.__main__:main",
    ):
        check_callable(
            MODEL, name, file="theirs.toml"
        )  # nothing of histfl needs trust: it is refused, or ours
        with pytest.raises(UsageError, match="a part of histfl that makes no model"):
            find_factory(MODEL, name, MODELS)
    assert "histfl.cli.__main__" not in sys.modules


@pytest.mark.parametrize("name", ["", "mine:net", "mine/net.py", "mine.", "two words"])
def test_what_is_trusted_is_a_module(name: str) -> None:
    with pytest.raises(UsageError, match="name a module, such as --trust"):
        check_trust([name])
    check_trust(["mine", "mine.nets", "_mine.v2", "my-net"])


def test_a_file_named_with_a_hyphen_can_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-net.py").write_text("def net():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"theirs\.toml: .* add --trust my-net$"):
        check_callable(MODEL, "my-net:net", file="theirs.toml")
    assert callable(find_factory(MODEL, "my-net:net", MODELS))
    sys.modules.pop("my-net")


@pytest.mark.parametrize("name", [":net", "mine:", ".mine:net", "mine/net.py:net", " mine:net"])
def test_a_name_of_no_function_is_told_how_to_be_written(name: str) -> None:
    with pytest.raises(UsageError, match=r"theirs\.toml: .* names no function; write it as package\.module"):
        check_callable(MODEL, name, file="theirs.toml")


def install(folder: Path, package: str, code: str, entry_points: str) -> None:
    """A package with plugins, laid out as pip does."""
    (folder / f"{package}.py").write_text(code)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {package}\nVersion: 1.0\nLicense-Expression: MIT\n"
    )
    (about / "entry_points.txt").write_text(entry_points)


def test_a_plugin_that_cannot_be_called_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("a_plugin_of_one", "a_plugin_of_two"):
        points = f"[histfl.models]\ntwice = {package}:net\n"
        if package == "a_plugin_of_one":
            points += f"broken = {package}:nothing\nshell = subprocess:getoutput\nnumber = {package}:number\n"
        install(tmp_path, package, "def net():\n    pass\n\n\nnumber = 3\n", points)
    monkeypatch.syspath_prepend(tmp_path)
    assert {"twice", "broken", "shell", "number"} <= set(plugins(MODEL))
    for name, said in (
        (
            "twice",
            "a plugin of a_plugin_of_(one|two) and a_plugin_of_(one|two); write .* package.module:factory",
        ),
        ("broken", "a_plugin_of_one:nothing, which cannot be imported: AttributeError"),
        ("shell", "would call subprocess.getoutput"),
        ("number", "not callable"),
        ("brokken", "did you mean 'broken'"),
    ):
        with pytest.raises(UsageError, match=said):
            find_factory(MODEL, name, MODELS)
