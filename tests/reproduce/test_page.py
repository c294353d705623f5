"""The documentation's page is the one that the kept results give."""

from pathlib import Path

from histfl.reproduce.artefact import Scale
from histfl.reproduce.files import kept_findings
from histfl.reproduce.pages import write_documentation
from histfl.reproduce.registry import ARTEFACTS, artefacts
from histfl.reproduce.summary import SCALED

ROOT = Path(__file__).parents[2]


def test_every_finding_is_kept_and_named_by_a_choice_or_the_summary() -> None:
    named = {choice.finding for artefact in artefacts(ARTEFACTS, Scale()) for choice in artefact.choices}
    assert (named | {SCALED}) - {""} == kept_findings(ROOT / "results" / "reproduction").keys()


def test_the_page_in_the_documentation_is_up_to_date(tmp_path: Path) -> None:
    found = artefacts(ARTEFACTS, Scale())
    page = write_documentation(found, ROOT / "results" / "reproduction", tmp_path)
    shown = ROOT / "docs" / page.name
    assert page.read_text("utf-8") == shown.read_text("utf-8"), "run: histfl reproduce page"
    figures = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.svg")}
    assert figures == {
        path.relative_to(ROOT / "docs") for path in (ROOT / "docs/figures/reproduction").glob("*.svg")
    }
