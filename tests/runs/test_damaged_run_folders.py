"""Every file of a run damaged in every way: a command says so in one line, or a resumed run is as it was."""

from __future__ import annotations

import os
import random
import shutil
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SMALL, Answer

from histfl.terminal import printable

CONFIG = [*SMALL, "--set", "training.rounds=2"]
HOSTILE = "evil\x1b[2J\x1b]0;t\x07\u202e[red]\x9b"
Damage = Callable[[Path, random.Random], None]


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def flip(path: Path, chance: random.Random) -> None:
    raw = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 8))):
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    path.write_bytes(raw)


def insert(path: Path, chance: random.Random) -> None:
    raw = path.read_bytes()
    place = chance.randrange(len(raw) + 1)
    odd = chance.choice((b"\0", b"\x1b[2J", b"\xff\xfe", b"[" * 5000, b"9" * 5000, b"\n", raw))
    path.write_bytes(raw[:place] + odd + raw[place:])


def noise(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(2000)))


def replaced(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return damage


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**13)


DAMAGES: dict[str, Damage] = {
    "cut": cut,
    "flip": flip,
    "insert": insert,
    "noise": noise,
    "empty": replaced(Path.touch),
    "gone": replaced(lambda path: None),
    "pipe": replaced(os.mkfifo),
    "socket": replaced(bind),
    "folder": replaced(Path.mkdir),
    "device": replaced(lambda path: path.symlink_to("/dev/zero")),
    "loop": replaced(lambda path: path.symlink_to(path.name)),
    "sparse": replaced(sparse),
}
FILES = ("config.toml", "network.toml", "rounds.jsonl", "checkpoint.safetensors", "model.safetensors")
FILES = (*FILES, "pictures.json", "summary.json", "report.html")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a network file."""
    from histfl.cli import main

    folder = tmp_path_factory.mktemp("whole")
    (folder / "mine.toml").write_text("[[cells]]\ncount = 2\nclients = 4\n")
    profile = f"network.profile={folder / 'mine.toml'}"
    words = [*CONFIG[:1], *settings_of()]
    with pytest.raises(SystemExit) as ended:
        main(["run", *words, "--set", profile, "--out", str(folder / "run")])
    assert not ended.value.code
    return folder


def attacks(number: int) -> list[tuple[str, str, str]]:
    """Files, damages and commands: every file in every way, by one command after another."""
    every = [(file, damage) for file in FILES for damage in DAMAGES]
    random.Random(1).shuffle(every)
    commands = ("report", "resume", "bound")
    return [(*every[n % len(every)], commands[(n + n // len(every)) % 3]) for n in range(number)]


@pytest.mark.parametrize(
    "number", [10, pytest.param(3 * len(FILES) * len(DAMAGES), marks=pytest.mark.exhaustive)]
)
def test_a_damaged_run_is_named_or_as_it_was(
    histfl_command: Callable[..., Answer], whole: Path, tmp_path: Path, number: int
) -> None:
    rounds = (whole / "run" / "rounds.jsonl").read_bytes()
    asked = ("--set", f"network.profile={whole / 'mine.toml'}")
    for place, (file, damage, command) in enumerate(attacks(number)):
        folder = tmp_path / str(place) / "run"
        shutil.copytree(whole / "run", folder)
        DAMAGES[damage](folder / file, random.Random(place))
        words = {"report": ("report", folder), "bound": ("bound", folder)}.get(
            command, ("run", *CONFIG[:1], *settings_of(), *asked, "--out", folder, "--resume", "--json")
        )
        answer = histfl_command(*words)
        said = f"{file}, {damage}, {command}: {answer}"
        assert answer.code in (0, 1, 2), said
        if answer.code:
            assert answer.err.splitlines()[-1].startswith("histfl: "), said
        if answer.code == 0 and command == "resume":
            assert (folder / "rounds.jsonl").read_bytes() == rounds, said
        assert printable(answer.out + answer.err) == answer.out + answer.err, said
        shutil.rmtree(folder.parent)


def test_an_empty_configuration_is_no_run_of_all_defaults(
    histfl_command: Callable[..., Answer], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "run", tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("")
    answer = histfl_command("report", tmp_path / "run")
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("histfl: no run can be shown: run: ")
    assert line.endswith("config.toml is empty; use another folder")


@pytest.mark.parametrize("file", ["config.toml", "rounds.jsonl", "summary.json"])
def test_a_file_of_gigabytes_is_named_before_they_are_read(
    histfl_command: Callable[..., Answer], whole: Path, tmp_path: Path, file: str
) -> None:
    shutil.copytree(whole / "run", tmp_path / "run")
    os.truncate(tmp_path / "run" / file, 3 * 10**9)
    tracemalloc.start()
    answer = histfl_command("report", tmp_path / "run")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.code == 2
    assert file in answer.err
    assert most < 5 * 10**8


def test_a_page_that_links_to_itself_is_written_anew(
    histfl_command: Callable[..., Answer], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "run", tmp_path / "run")
    page = tmp_path / "run" / "report.html"
    replaced(lambda path: path.symlink_to(path.name))(page, random.Random(1))
    assert histfl_command("report", tmp_path / "run").code == 0
    assert "histfl: run" in page.read_text()


def settings_of() -> list[str]:
    """The settings of CONFIG but for the clients, which the network file has."""
    return [
        word
        for flag, value in zip(CONFIG[1::2], CONFIG[2::2], strict=True)
        if not value.startswith("network.clients")
        for word in (flag, value)
    ]


@pytest.mark.parametrize("number", [10, pytest.param(150, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", ["network", "configuration"])
def test_a_damaged_toml_file_is_planned_or_named(
    histfl_command: Callable[..., Answer], tmp_path: Path, kind: str, number: int
) -> None:
    text = {
        "network": "[[cells]]\ncount = 2\nclients = 4\ncpu_hz = [1e9, 2e9]\nsnr_db = 30\n",
        "configuration": '[data]\nname = "fashion-mnist-mini"\n[model]\nhidden = 16\n[network]\nclients = 8\n',
    }[kind]
    for place in range(number):
        chance = random.Random(place)
        path = tmp_path / f"{place}.toml"
        path.write_text(text)
        DAMAGES[chance.choice(list(DAMAGES))](path, chance)
        answer = histfl_command("plan", path, "--draws", 2)
        assert answer.code in (0, 2), (path, answer)
        if answer.code:
            assert answer.err.splitlines()[-1].startswith("histfl: "), (path, answer)
        assert printable(answer.out + answer.err) == answer.out + answer.err


def test_a_folders_name_cannot_steer_a_terminal(
    histfl_command: Callable[..., Answer], whole: Path, tmp_path: Path
) -> None:
    for name in (HOSTILE, f"{HOSTILE}-2"):
        shutil.copytree(whole / "run", tmp_path / HOSTILE / name)
    (tmp_path / HOSTILE / "broken\x1b[2J").mkdir()
    for words in (
        ("report", tmp_path / HOSTILE),
        ("report", tmp_path / HOSTILE, "--json"),
        ("bound", tmp_path / HOSTILE / HOSTILE, "--plot", tmp_path / "plot\x1b[2J.html"),
        ("bound", tmp_path / HOSTILE),
        ("run", *CONFIG, "--set", "training.rounds=1", "--out", tmp_path / HOSTILE / "new\x1b[2J"),
        ("run", "no\x1b[2J.toml"),
    ):
        answer = histfl_command(*words)
        assert answer.code in (0, 2)
        both = answer.out + answer.err
        assert both
        assert printable(both) == both
