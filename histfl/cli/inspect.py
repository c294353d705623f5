"""The commands that train nothing: plan, bound, report, doctor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from histfl.cli.carry_out import show
from histfl.cli.options import Json, Plot, Set, Trust
from histfl.cli.output import console, print_json, say
from histfl.errors import DataError, UsageError
from histfl.terminal import StillAt, Terminal


def plan(
    network: Annotated[
        str,
        typer.Argument(
            metavar="NETWORK", help="A NETWORK.toml, a profile (uniform, paper), a configuration or a preset."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="mlp, lenet5, resnet18 or package.module:factory (default: mlp).")
    ] = None,
    settings: Set = [],  # noqa: B006
    trust: Trust = [],  # noqa: B006
    draws: Annotated[
        int | None, typer.Option(min=1, help="Rounds to average over (default: 200, fewer above 200 cells).")
    ] = None,
    vary: Annotated[
        list[str], typer.Option(metavar="KEY=A,B,C", help="Also plan each value, such as cells=2,4,6,8.")
    ] = [],  # noqa: B006
    input_shape: Annotated[
        str | None, typer.Option(help="A sample's shape, such as 1,28,28 (default: the data set's).")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="Number of classes (default: the data set's).")
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Submodel sizes, and what a round takes on a network in seconds, megabytes and joules; no training."""
    from histfl.planning.request import PlanRequest, make_plan, parse_shape
    from histfl.planning.show import about_sentence, draw_plan, plan_tables, worth_sentences

    if len(vary) > 1:
        raise UsageError(f"--vary {' --vary '.join(vary)}: a plan varies one setting; plan once for each")
    shape = None if input_shape is None else parse_shape(input_shape)
    request = PlanRequest(network, model, tuple(settings), draws, shape, classes, tuple(trust))
    with StillAt("planning", Terminal(stderr=True)) as still:
        planning = make_plan(request, vary[0] if vary else None, lambda doing: still.at(f"planning: {doing}"))
    if plot is not None:
        draw_plan(planning, plot)
    if as_json:
        print_json(planning.as_json())
        return
    screen = console()
    screen.print(about_sentence(planning.plan), highlight=False)
    screen.print(planning.plan.computing["computing"], highlight=False, markup=False)
    for table in plan_tables(planning):
        screen.print(table)
    for sentence in worth_sentences(planning):
        screen.print(sentence, highlight=False)
    if plot is not None:
        screen.print(f"drawn to {plot}", soft_wrap=True, highlight=False, markup=False)


def bound(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, with theory.every set.")],
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """What the convergence theorem says of a run, term by term, on its own constants."""
    from histfl.reports.bound import bound_in
    from histfl.reports.bound_page import draw_bound, sentences, tables

    found = bound_in(folder)
    if plot is not None:
        draw_bound(found, plot)
    if as_json:
        print_json(found.as_json())
        return
    screen = console()
    for table in tables(found):
        screen.print(table)
        screen.print()
    for sentence in sentences(found):
        screen.print(sentence, highlight=False, markup=False)
    if plot is not None:
        screen.print(f"drawn to {plot}", soft_wrap=True, highlight=False, markup=False)


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders with runs below them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write (default: report.html in the one DIR, or else here)."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also write PDF and PNG plots, CSV and LaTeX tables to this folder (extra figures)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """One page that compares any runs; a broken run is named and the rest is shown."""
    from histfl.reports import gather, write_figures, write_report

    gathered = gather(folders)
    page = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    write_report(page, f"histfl: {Path(os.path.realpath(page.parent)).name}", gathered)
    if not gathered.runs:
        others = "" if len(gathered.broken) == 1 else f"; {page} names all {len(gathered.broken)}"
        raise UsageError(f"no run can be shown: {': '.join(gathered.broken[0])}{others}")
    written = [] if figures is None else write_figures(figures, gathered)
    about = {
        "report": str(page),
        "runs": {run.name: run.summary for run in gathered.runs},
        "broken": dict(gathered.broken),
        "figures": [str(path) for path in written],
    }
    show(folders, page, about if as_json else None)
    if written and not as_json:
        say(f"figures: {figures}")


def doctor(as_json: Json = False) -> None:
    """What this machine offers: versions, devices, data sets."""
    findings = _examine()
    if as_json:
        print_json(findings)
        return
    table = Table("what", "found", box=None)
    for name, value in findings.items():
        table.add_row(name, str(value))
    console().print(table)


def _examine() -> dict[str, Any]:
    """Versions, devices and data sets, by name."""
    import torch

    from histfl.data import DATASETS, locate
    from histfl.devices import numba_installed
    from histfl.runs.records import versions

    findings: dict[str, Any] = dict(versions())
    findings["cpu cores"] = os.cpu_count()
    findings["cuda"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    missing = "not here; get them with: pip install 'histfl[fast]'"
    findings["compiled kernels"] = "numba" if numba_installed() else missing
    for name in DATASETS:
        try:
            findings[f"data: {name}"] = str(locate(name))
        except DataError:
            findings[f"data: {name}"] = f"not here; get it with: histfl data fetch {name}"
    return findings
