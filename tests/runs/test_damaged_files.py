"""Files of a run may be damaged or come from elsewhere: one line says so, and nothing else happens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Answer
from runs_for_tests import write_run

from histfl.reports import gather
from histfl.reports.page import report_page

ODD = ("null", "true", '"x"', "-1", "0", "1e308", "1e400", "NaN", "1" + "0" * 400, "[]", "{}", "[[1]]", "2.5")
ODD = (*ODD, "[" * 5000 + "]" * 5000, '"\\ud800"', '"<b>odd</b>"')


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside `value`; of lists their first item."""
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[Any, ...], text: str) -> str:
    """`value` as JSON, with `text` in place of what lies at `path`."""
    copy = json.loads(json.dumps(value))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = "@here@"
    return json.dumps(copy).replace('"@here@"', text)


@pytest.mark.parametrize("file", ["rounds.jsonl", "summary.json", "pictures.json"])
def test_a_report_of_damaged_numbers_is_a_report_without_the_run(tmp_path: Path, file: str) -> None:
    folder = write_run(tmp_path / "run", rounds=1)
    whole = (folder / file).read_text()
    value = json.loads(whole)
    mutants = [(path, text) for path in places(value) for text in ODD]
    shown = 0
    for path, text in random.Random(1).sample(mutants, min(250, len(mutants))):
        (folder / file).write_text(changed(value, path, text) + "\n")
        gathered = gather([tmp_path])
        if gathered.runs and shown < 25:  # what is read can be shown
            shown += 1
            page = report_page("title", gathered).encode(errors="backslashreplace")
            assert b"<b>odd</b>" not in page
    (folder / file).write_text(whole)
    assert gather([tmp_path]).runs


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "n" * 300),
        ("report", "n" * 300),
        ("bound", "n" * 300),
        ("plan", "n" * 300),
        ("run", "quickstart", "--set", "network.profile=a\0.toml"),
        ("run", "quickstart", "--set", "training.rounds=" + "[" * 3000),
        ("run", "quickstart", "--set", "training.rounds=" + "9" * 5000),
        ("run", "deep.toml"),
        ("run", "long.toml"),
        ("plan", "deep.toml"),
    ],
)
def test_odd_names_and_texts_are_one_line(
    histfl_command: Callable[..., Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.toml").write_text("a = " + "[" * 3000)
    (tmp_path / "long.toml").write_text("[training]\nrounds = " + "9" * 5000)
    answer = histfl_command(*arguments)
    assert answer.code == 2
    assert answer.err.startswith("histfl: ")
    assert answer.err.count("\n") == 1


def test_a_file_with_a_mark_of_its_bytes_order_is_read(
    histfl_command: Callable[..., Answer], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text('\ufeff[data]\nname = "fashion-mnist-mini"\n', encoding="utf-8")
    assert histfl_command("data", "show", tmp_path / "mine.toml", "--json").code == 0
