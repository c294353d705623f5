"""`histfl reproduce` as a user meets it, on the shortest of the real arms."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer

Command = Callable[..., Answer]
SHORT = ["fig7", "--quick", "--only", "participants-2-*", "--device", "cpu"]


@pytest.fixture(autouse=True)
def embedded_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data sets but the package's own."""
    monkeypatch.delenv("HISTFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_runs_are_kept_collected_and_told(histfl_command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    answer = histfl_command("reproduce", *SHORT, "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["runs"] == {"done": 2, "left": [], "diverged": []}
    found = answer.json["artefacts"]["fig7"]
    assert "14,000 embedded images" in found["smaller"]
    assert {row["holds"] for row in found["rows"]} == {
        "not yet run"
    }  # one number of participants is no trend
    assert Path(found["page"]).read_text("utf-8").count("participants") > 0
    kept = tmp_path / "kept"
    answer = histfl_command("reproduce", "collect", out, "--quick", "--to", kept, "--json")
    assert answer.code == 0, answer.err
    assert [Path(path).name for path in answer.json["fig7"]] == [
        "participants-2-shards-seed1.json",
        "participants-2-cell-iid-seed1.json",
    ]
    result = json.loads((kept / "fig7" / "participants-2-shards-seed1.json").read_text())
    assert result["rounds_done"] == 8
    assert result["command"].startswith("histfl reproduce fig7 --quick --only participants-2-shards-seed1")
    page = histfl_command("reproduce", "page", "--results", kept, "--docs", tmp_path / "docs")
    assert (page.code, page.out.strip()) == (0, str(tmp_path / "docs" / "reproduction.md"))
    again = histfl_command("reproduce", *SHORT, "--out", out)
    assert again.code == 0
    assert "Figure 7" in again.out
    assert "2 of them done before" in again.err


def test_the_exit_code_says_that_more_is_left(histfl_command: Command, tmp_path: Path) -> None:
    answer = histfl_command("reproduce", *SHORT, "--out", tmp_path / "new", "--minutes", "0", "--json")
    assert answer.code == 3
    assert len(answer.json["runs"]["left"]) == 2


def test_mistakes_are_one_line(histfl_command: Command, tmp_path: Path) -> None:
    for arguments, said in (
        (["fig4", "--only", "nobody"], "matches none"),
        (["fig4", "--seeds", "one"], "--seeds 'one'"),
        (["collect", tmp_path], "has no folder runs"),
        (["page", "--results", tmp_path / "none"], "is not a folder"),
        (["fig3"], "No such command"),
    ):
        answer = histfl_command("reproduce", *arguments)
        assert answer.code == 2
        assert said in answer.err
        assert len(answer.err.splitlines()) == 1
