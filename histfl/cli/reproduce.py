"""The `reproduce` commands: run a figure or table of the paper again, keep its numbers, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from histfl.cli.carry_out import MORE_IS_LEFT
from histfl.cli.options import (
    DataDir,
    Device,
    EngineName,
    GpusPerWorker,
    Json,
    MemoryGb,
    Minutes,
    Parallel,
    PrecisionName,
    RayAddress,
    ThreadsPerWorker,
    Workers,
    named_folder,
    whole_line,
)
from histfl.cli.output import console, interruptible, print_json, say
from histfl.errors import UsageError
from histfl.reproduce import TITLES
from histfl.terminal import Terminal

if TYPE_CHECKING:
    from histfl.reproduce.artefact import Artefact
    from histfl.runs.jobs import Tally

RESULTS = Path("results/reproduction")

reproduce_app = typer.Typer(
    help="The paper's figures and tables, run again, with its number beside ours.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Quick = Annotated[bool, typer.Option("--quick", help="A small version: two minutes on two cores.")]
SeedList = Annotated[str | None, typer.Option(help="Seeds, such as 1,2,3 (the default; with --quick: 1).")]
Only = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="Only arms of this name, such as 'fig4/hist-N4-*'.")
]
Kept = Annotated[Path, typer.Option(help="Where the kept results lie.")]


def _command(names: Sequence[str]) -> Callable[..., None]:
    def reproduce(
        quick: Quick = False,
        seeds: SeedList = None,
        only: Only = None,
        out: Annotated[
            Path | None,
            typer.Option(
                parser=named_folder,
                metavar="PATH",
                help="Folder for runs and pages (default: runs/reproduction[-quick]).",
            ),
        ] = None,
        data_dir: DataDir = None,
        device: Device = "auto",
        engine: EngineName = "auto",
        precision: PrecisionName = None,
        memory_gb: MemoryGb = None,
        parallel: Parallel = 1,
        workers: Workers = None,
        threads_per_worker: ThreadsPerWorker = 1,
        gpus_per_worker: GpusPerWorker = None,
        ray_address: RayAddress = None,
        minutes: Minutes = None,
        until: Annotated[
            float | None,
            typer.Option(
                min=0, max=1, help="End runs at this accuracy for now; without it they go on later."
            ),
        ] = None,
        keep_models: Annotated[
            bool, typer.Option("--keep-models", help="Keep finished runs' models.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        from histfl.engines import Cluster
        from histfl.reproduce.registry import artefacts, chosen_arms, scale_for
        from histfl.reproduce.runner import carry_out, ending_at, jobs_of
        from histfl.runs.jobs import Execution

        cluster = Cluster(workers, threads_per_worker, gpus_per_worker, ray_address)
        execution = Execution(data_dir, device, engine, memory_gb, parallel, minutes, cluster)
        scale = scale_for(quick=quick, seeds=seeds, data_dir=data_dir, precision=precision)
        folder = out or Path("runs") / ("reproduction-quick" if quick else "reproduction")
        found = artefacts(names, scale)
        arms = chosen_arms(found, only)
        if until is not None:
            arms = [ending_at(arm, until) for arm in arms]
        with interruptible(folder, resume_flag=None):
            jobs = jobs_of(arms, folder / "runs")
            tally = carry_out(jobs, execution, Terminal(stderr=True), keep_models=keep_models)
        _answer(found, folder, tally, as_json=as_json)

    return reproduce


def _answer(found: Sequence[Artefact], folder: Path, tally: Tally, *, as_json: bool) -> None:
    """All that the folder has of the artefacts, and what is left."""
    from histfl.files import storage_errors, write_whole
    from histfl.reproduce.files import run_results
    from histfl.reproduce.pages import answer_json, answer_page

    answers = {}
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for artefact in found:
        results = run_results(artefact, folder / "runs")
        rows, panels = artefact.rows(results), artefact.panels(results)
        page = folder / f"{artefact.name}.html"
        write_whole(page, answer_page(artefact, rows, panels).encode())
        answers[artefact.name] = {**answer_json(artefact, rows), "page": str(page)}
        if not as_json:
            _show(artefact.title, answers[artefact.name])
    if as_json:
        print_json({"artefacts": answers, "runs": tally.as_json})
    elif tally.left:
        say(f"{len(tally.left)} of the runs are left; the same command goes on with them", err=True)
    if tally.left:
        raise typer.Exit(MORE_IS_LEFT)


def _show(title: str, answer: dict[str, object]) -> None:
    screen = console()
    table = Table("what", "paper", "ours", "holds?", title=title, title_justify="left", show_lines=True)
    rows = answer["rows"]
    assert isinstance(rows, list)
    for row in rows:
        verdict = ", ".join(filter(None, (row["holds"], row["note"])))
        table.add_row(*(Text(text) for text in (row["what"], row["paper"], row["ours"], verdict)))
    screen.print(table)
    if answer["smaller"]:
        screen.print(Text(f"made smaller: {answer['smaller']}"))
    for row in rows:
        if row["why"]:
            screen.print(Text(f"{row['what']}: {row['why']}"))
    screen.print(f"page: {answer['page']}", soft_wrap=True, highlight=False, markup=False)


for _name, _title in TITLES.items():
    reproduce_app.command(_name, help=_title, short_help=_title)(_command([_name]))
reproduce_app.command("all", help="All of them.")(_command(list(TITLES)))


def collect(
    folders: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Folders given as --out.")],
    to: Kept = RESULTS,
    quick: Quick = False,
    seeds: SeedList = None,
    data_dir: DataDir = None,
    precision: PrecisionName = None,
    as_json: Json = False,
) -> None:
    """Keep the numbers of runs: a small file an arm, from which the page is written."""
    from histfl.reproduce.files import collect as keep
    from histfl.reproduce.registry import artefacts, scale_for

    scale = scale_for(quick=quick, seeds=seeds, data_dir=data_dir, precision=precision)
    for folder in folders:
        if not (folder / "runs").is_dir():
            raise UsageError(f"{folder} has no folder runs; give what histfl reproduce had as --out")
    found = artefacts(TITLES, scale)
    written = {a.name: [str(path) for f in folders for path in keep(a, f / "runs", to)] for a in found}
    if as_json:
        print_json(written)
        return
    for name, paths in written.items():
        say(f"{name}: {len(paths)} of {sum(a.name == name and len(a.arms) for a in found)} arms to {to}")


def page(
    results: Kept = RESULTS,
    docs: Annotated[Path, typer.Option(help="The documentation's folder.")] = Path("docs"),
    seeds: SeedList = None,
) -> None:
    """Write docs/reproduction.md and its figures from the kept results (extra figures)."""
    from histfl.reproduce.pages import write_documentation
    from histfl.reproduce.registry import artefacts, scale_for

    if not results.is_dir():
        raise UsageError(
            f"--results {results} is not a folder; histfl reproduce collect makes one of finished runs"
        )
    scale = scale_for(seeds=seeds)
    say(write_documentation(artefacts(TITLES, scale), results, docs))


for _keeping in (collect, page):
    reproduce_app.command(short_help=whole_line(_keeping))(_keeping)
