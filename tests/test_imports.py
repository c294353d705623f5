"""The plan of the house: imports go one way, also those inside functions, and no module grows past 400 lines."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "histfl"
FILES = {
    path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
}
MODULES = {name for name in FILES.values() if not name.endswith("__init__")}  # those only gather names


def imported(tree: ast.AST) -> set[str]:
    """The package's modules that a file imports anywhere, but for annotations alone."""
    skipped = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inside in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & MODULES


def graph(files: dict[Path, str]) -> dict[str, set[str]]:
    return {
        name: imported(ast.parse(path.read_text("utf-8"))) for path, name in files.items() if name in MODULES
    }


def test_no_import_goes_round_in_a_circle() -> None:
    found = graph(FILES)
    assert len(found) > 100
    assert "histfl.training.jobs" in found["histfl.engines.vectorised"]
    TopologicalSorter(found).prepare()


def test_a_circle_through_a_function_would_be_found() -> None:
    inside = ast.parse("def later():\n    from histfl.runs.run import Run\n")
    with pytest.raises(CycleError):
        TopologicalSorter(
            {"histfl.runs.run": {"histfl.runs.store"}, "histfl.runs.store": imported(inside)}
        ).prepare()


def test_no_module_is_longer_than_400_lines() -> None:
    long = {name: len(path.read_text("utf-8").splitlines()) for path, name in FILES.items()}
    assert {name: lines for name, lines in long.items() if lines > 400} == {}
