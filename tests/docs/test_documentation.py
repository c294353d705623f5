"""The documentation keeps its word: examples run, equations are where it says, the site builds."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from histfl.api import _HOMES
from histfl.cli import main
from histfl.data.splits import SPLITS
from histfl.runs.build import prepare
from histfl.runs.config import Config
from histfl.runs.execute import execute
from histfl.runs.loading import load_config
from histfl.training.cloud import CLOUD_STEPS
from histfl.training.methods import METHODS
from histfl.training.metrics import METRICS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
# Goes before a page's own settings: the commands as written, on a small problem.
SHRINK = ["model.hidden=16", "training.rounds=1", "training.edge_rounds=1"]
SHRINK += ["training.local_steps=1", "training.batch_size=10"]
GOES_ON = ("howto/serve.md",)  # whose Python reads what its commands wrote


def blocks(page: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def registries() -> Iterator[None]:
    """What a page adds to them is gone after it."""
    before = [(registry, dict(registry)) for registry in (CLOUD_STEPS, METHODS, METRICS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries: None
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks(page, "python"))
    if "import optuna" in text:
        pytest.importorskip("optuna", reason="the extra dev is not installed")
    if page in GOES_ON:
        run_commands(page)
    exec(compile(text, page, "exec", dont_inherit=True), {"__name__": "page"})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside tensorboard
def test_the_commands_of_a_page_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(page, capsys)


def run_commands(page: str, capsys: pytest.CaptureFixture[str] | None = None) -> None:
    for text in blocks(page, "toml"):
        name = re.match(r"# (\S+\.toml)\n", text)
        assert name, f"{page}: the first line of a TOML file names it"
        Path(name[1]).write_text(text, "utf-8")
    for line in "".join(blocks(page, "sh")).splitlines():
        program, command, *rest = shlex.split(line)
        assert program == "histfl", line
        if command in ("run", "sweep", "quickstart"):
            sources = 0 if command == "quickstart" else 1
            small = [word for setting in SHRINK for word in ("--set", setting)]
            rest = [*rest[:sources], *small, *rest[sources:]]
        if [command, *rest[:1]] == ["deploy", "try"]:
            rest += [word for setting in SHRINK for word in ("--set", setting)]
        with pytest.raises(SystemExit) as ended:
            main([command, *rest])
        assert ended.value.code == 0, f"{line}\n{capsys.readouterr().err if capsys else ''}"


QUOTING = ("concepts.md", "edge-and-cloud.md", "methods.md", "howto/sweep.md")


def test_tables_of_stored_results_are_as_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "results" / "show.py"), run_name="__main__")
    printed = tables(capsys.readouterr().out)
    headers = {table[0] for table in printed}
    quoted = [
        table
        for page in (ROOT / "README.md", *(DOCS / name for name in QUOTING))
        for table in tables(page.read_text("utf-8"))
        if table[0] in headers
    ]
    assert len(quoted) == 7
    for table in quoted:
        assert table in printed


def tables(markdown: str) -> list[list[str]]:
    """The lines of each table."""
    return [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE)]


def test_every_equation_is_where_the_map_says() -> None:
    """In its own docstring."""
    rows = equations()
    assert len(rows) > 30
    for label, name in rows:
        assert label in mentions(str(inspect.getdoc(resolved(name)))), (
            f"{name} does not say that it is {label}"
        )


def test_every_equation_that_the_code_names_is_on_the_map() -> None:
    named = {
        label
        for path in (ROOT / "histfl").rglob("*.py")
        for label in mentions(path.read_text("utf-8"))
        if label.startswith("Eq.")
    }
    assert named == {label for label, _ in equations() if label.startswith("Eq.")}


def equations() -> list[tuple[str, str]]:
    text = (DOCS / "equations.md").read_text("utf-8")
    return re.findall(r"^\| ([^|]+?) \|[^|]+\| `([\w.]+)` \|$", text, flags=re.MULTILINE)


def mentions(text: str) -> set[str]:
    """Labels of the paper in a text; `Eq. (22) and (39)` names two."""
    found = {f"Eq. ({n})" for n in re.findall(r"Eq\. \((\w+)\)", text)}
    found |= {f"Eq. ({n})" for n in re.findall(r"Eq\. \(\w+\) and \((\w+)\)", text)}
    return found | set(
        re.findall(r"Theorem \d|Algorithm \d|Sec\. [IV]+-[A-E]", text.replace(", V", ", Sec. V"))
    )


def resolved(name: str) -> Any:
    """The object of a dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is nowhere")


def test_the_rooms_are_those_whose_imports_are_checked() -> None:
    contract, *_ = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    checked = [set(re.findall(r"histfl\.(\w+)", layer)) for layer in reversed(contract["layers"])]
    (line,) = re.findall(r"^`seeds`.*$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), flags=re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", rooms)) for rooms in line.split(" < ")] == checked


@pytest.mark.parametrize("page", ["howto/own-data.md", "concepts.md"])
def test_every_split_is_explained(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert [name for name in SPLITS if f"`{name}`" not in text] == []


def test_the_pages_of_settings_are_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "write_configuration.py"))
    written, reference = made["page"](), (DOCS / "reference.md").read_text("utf-8")
    assert made["with_keywords"](reference) == reference, "run python docs/write_configuration.py"
    for keyword in _HOMES:
        assert f"| `{keyword}` |" in reference
    assert (DOCS / "configuration.md").read_text("utf-8") == written, "run python docs/write_configuration.py"
    for section, table in Config.model_fields.items():
        keys = getattr(table.annotation, "model_fields", {})
        assert keys or section == "optimiser", section  # which has the options of a choice alone
        for key, field in keys.items():
            assert field.description, f"{section}.{key} has no description"
            assert f"| `{key}` |" in written


def test_the_citation_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_every_key_of_a_record_is_explained() -> None:
    config = load_config("quickstart", [*SHRINK, "network.clients=4", "theory.every=1"])
    (record,) = execute(prepare(config, device="cpu")).records
    _, _, section = (DOCS / "results.md").read_text("utf-8").partition("## A round's record")
    table = section.partition("\n## ")[0]
    for key in (*record, *record["latency"]):
        assert f"`{key}`" in table, key


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = [*(tmp_path / "site").rglob("*.html")]
    assert len(pages) >= len(PAGES)
    for path in pages:
        loaded = re.findall(
            r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", path.read_text("utf-8")
        )
        assert [url for url in loaded if "canonical" not in url] == [], path
