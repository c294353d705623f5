"""The command line: thin, one function a command."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from histfl.errors import HistflError, UsageError

if TYPE_CHECKING:
    from histfl.experiments.config import Config
    from histfl.experiments.live import Follower

app = typer.Typer(
    help="Federated learning over hierarchical wireless networks with independent submodels (HIST).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(
    help="Data sets: what there is, where it lies, how clients share it.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

Source = Annotated[str, typer.Argument(metavar="CONFIG_OR_PRESET", help="A TOML file, or a preset's name.")]
Set = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting; may be repeated.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results (default: a new one under runs/).")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $HISTFL_DATA, the cache, /usr/share/datasets)."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
EngineName = Annotated[str, typer.Option("--engine", help="auto, reference or vectorised.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last whole round in --out.")]
TensorBoardFlag = Annotated[
    bool, typer.Option("--tensorboard", help="Also write RUN/tensorboard (extra tensorboard).")
]
MLflowFlag = Annotated[
    bool,
    typer.Option("--mlflow", help="Also log to MLflow, sqlite:///mlflow.db if none is set (extra mlflow)."),
]
MLflowUri = Annotated[str | None, typer.Option(help="The MLflow store or server to log to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]


@app.command()
def run(
    source: Source,
    settings: Set = [],  # noqa: B006 (typer reads it as the option's default)
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    resume: Resume = False,
    tensorboard: TensorBoardFlag = False,
    mlflow: MLflowFlag = False,
    mlflow_uri: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Train once; the folder gets records, a checkpoint, the model, a summary and a report."""
    from histfl.experiments.config import load_config

    config = load_config(source, settings)
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the run to go on with")
    folder = out or free_folder(Path(source).stem)
    arms: dict[str, Config] = {config.method.name: config}
    choices = _Choices(data_dir, device, engine, resume, tensorboard, mlflow, mlflow_uri)
    summaries = _run_all(arms, {config.method.name: folder}, folder, choices)
    _show([folder], folder / "report.html", summaries[config.method.name] if as_json else None)


@app.command()
def sweep(
    source: Source,
    vary: Annotated[
        list[str], typer.Option(metavar="SECTION.KEY=A,B,C", help="Values to run; may be repeated.")
    ],
    settings: Set = [],  # noqa: B006
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    resume: Resume = False,
    tensorboard: TensorBoardFlag = False,
    mlflow: MLflowFlag = False,
    mlflow_uri: MLflowUri = None,
    as_json: Json = False,
) -> None:
    """Train every combination of the varied settings and compare them; resumable arm by arm."""
    from histfl.experiments.sweep import arms

    if resume and out is None:
        raise UsageError("--resume needs --out, the folder of the sweep to go on with")
    configs = {arm.name: arm.config for arm in arms(source, settings, vary)}
    folder = out or free_folder(f"{Path(source).stem}-sweep")
    folders = {name: folder / name for name in configs}
    choices = _Choices(data_dir, device, engine, resume, tensorboard, mlflow, mlflow_uri)
    summaries = _run_all(configs, folders, folder, choices)
    _show(list(folders.values()), folder / "report.html", summaries if as_json else None)


@app.command()
def quickstart(
    settings: Set = [],  # noqa: B006
    out: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    as_json: Json = False,
) -> None:
    """HIST against hierarchical FedAvg on embedded images, in under a minute."""
    from histfl.experiments.config import load_config

    names = ("hist", "hfedavg")
    configs = {name: load_config("quickstart", [*settings, f"method.name={name}"]) for name in names}
    folder = out or free_folder("quickstart")
    folders = {name: folder / name for name in names}
    summaries = _run_all(configs, folders, folder, _Choices(None, device, engine))
    _show(list(folders.values()), folder / "report.html", summaries if as_json else None)


@app.command()
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
    draws: Annotated[
        int | None, typer.Option(min=1, help="Rounds to average over (default: 200, fewer above 200 cells).")
    ] = None,
    vary: Annotated[
        str | None, typer.Option(metavar="KEY=A,B,C", help="Also plan each value, such as cells=2,4,6,8.")
    ] = None,
    input_shape: Annotated[
        str | None, typer.Option(help="A sample's shape, such as 1,28,28 (default: the data set's).")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="Number of classes (default: the data set's).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the plan to this HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """Submodel sizes and seconds a round on a network, uniform and optimised; no training."""
    from histfl.experiments.planning import PlanRequest, make_plan, parse_shape
    from histfl.experiments.planning_report import about_sentence, draw_plan, plan_tables, worth_sentences

    shape = None if input_shape is None else parse_shape(input_shape)
    planning = make_plan(PlanRequest(network, model, tuple(settings), draws, shape, classes), vary)
    if plot is not None:
        draw_plan(planning, plot)
    if as_json:
        _print_json(planning.as_json())
        return
    console = _console()
    console.print(about_sentence(planning.plan), highlight=False)
    for table in plan_tables(planning):
        console.print(table)
    for sentence in worth_sentences(planning):
        console.print(sentence, highlight=False)
    if plot is not None:
        console.print(f"drawn to {plot}", soft_wrap=True, highlight=False)


@app.command()
def bound(
    folder: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, with theory.every set.")],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the terms over the rounds to this HTML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What the convergence theorem says of a run, term by term, on its own constants."""
    from histfl.experiments.bound import bound_of
    from histfl.experiments.bound_page import draw_bound, sentences, tables

    found = bound_of(folder)
    if plot is not None:
        draw_bound(found, plot)
    if as_json:
        _print_json(found.as_json())
        return
    console = _console()
    for table in tables(found):
        console.print(table)
        console.print()
    for sentence in sentences(found):
        console.print(sentence, highlight=False, markup=False)
    if plot is not None:
        console.print(f"drawn to {plot}", soft_wrap=True, highlight=False)


@app.command()
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
    from histfl.experiments.report import gather, write_figures, write_report

    gathered = gather(folders)
    page = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    write_report(page, f"histfl: {page.resolve().parent.name}", gathered)
    if not gathered.runs:
        raise UsageError(
            f"no run can be shown, for example {': '.join(gathered.broken[0])}; {page} names all"
        )
    written = [] if figures is None else write_figures(figures, gathered)
    about = {
        "report": str(page),
        "runs": {run.name: run.summary for run in gathered.runs},
        "broken": dict(gathered.broken),
        "figures": [str(path) for path in written],
    }
    _show(folders, page, about if as_json else None)
    if written and not as_json:
        typer.echo(f"figures: {figures}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """What this machine offers: versions, devices, data sets."""
    from histfl.experiments.doctor import examine

    findings = examine()
    if as_json:
        _print_json(findings)
        return
    table = Table("what", "found", box=None)
    for name, value in findings.items():
        table.add_row(name, str(value))
    _console().print(table)


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The data sets that histfl knows."""
    from histfl.data import DATASETS

    rows = [{"name": s.name, "description": s.description, "licence": s.licence} for s in DATASETS.values()]
    if as_json:
        _print_json({"datasets": rows})
        return
    table = Table("name", "what it is", "licence", box=None)
    for row in rows:
        table.add_row(*row.values())
    _console().print(table)


@data_app.command("where")
def data_where(
    name: Annotated[str, typer.Argument(help="The data set.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Where a data set lies on this machine."""
    from histfl.data import locate

    place = locate(name, data_dir)
    _print_json({"name": name, "path": str(place)}) if as_json else typer.echo(place)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="The data set.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set and verify it."""
    from histfl.data import fetch

    place = fetch(name, data_dir)
    _print_json({"name": name, "path": str(place)}) if as_json else typer.echo(place)


@data_app.command("show")
def data_show(
    source: Source = "quickstart",
    settings: Set = [],  # noqa: B006
    data_dir: DataDir = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the mix to this HTML file.")] = None,
    as_json: Json = False,
) -> None:
    """The label mix per cell and client under a configuration's split."""
    from histfl.experiments.config import load_config
    from histfl.experiments.label_mix import draw_label_mix, label_mix_of

    mix = label_mix_of(load_config(source, settings), data_dir)
    if plot is not None:
        draw_label_mix(mix, plot)
    if as_json:
        _print_json(mix.as_json())
        return
    for table in mix.tables():
        _console().print(table)
    if plot is not None:
        typer.echo(f"drawn to {plot}")


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that exists."""
    for number in range(1, 1_000_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise UsageError("runs/ is full; give --out")


@dataclass(frozen=True)
class _Choices:
    """How runs are carried out and followed; nothing of it changes their numbers."""

    data_dir: Path | None
    device: str
    engine: str
    resume: bool = False
    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = None

    def followers(self, name: str, config: Config, folder: Path) -> list[Follower]:
        from histfl.experiments.live import MLflow, TensorBoard

        chosen: list[Follower] = [TensorBoard(folder / "tensorboard")] if self.tensorboard else []
        if self.mlflow or self.mlflow_uri:
            chosen.append(MLflow(name, config, folder, self.mlflow_uri, resume=self.resume))
        return chosen


def _run_all(
    configs: Mapping[str, Config], folders: Mapping[str, Path], top: Path, choices: _Choices
) -> dict[str, dict[str, Any]]:
    """Run each configuration into its folder; the comparison page in `top` follows them."""
    from histfl.experiments.build import build, load_ingredients
    from histfl.experiments.live import LivePage, telling
    from histfl.experiments.progress import progress
    from histfl.experiments.report import gather, write_report
    from histfl.experiments.run import execute
    from histfl.experiments.store import RunFolder

    page = LivePage(top / "report.html", f"histfl: {top.name}", folders.values())
    summaries = {}
    with _interruptible(top):
        for name, config in configs.items():
            followers = choices.followers(name, config, folders[name])
            ingredients = load_ingredients(config, data_dir=choices.data_dir)
            experiment = build(config, ingredients, device=choices.device, engine=choices.engine)
            folder = RunFolder(folders[name])
            with (
                progress(name, config.training.rounds, Console(stderr=True)) as show,
                telling(followers, folder) as told,
            ):
                hooks = (show, told.on_round, page.on_round)
                run = execute(experiment, folder, resume=choices.resume, on_round=_all_of(hooks))
                told.on_end(run)
            summaries[name] = run.summary
    write_report(page.path, page.title, gather(page.folders))
    return summaries


def _all_of(hooks: Sequence[Callable[[dict[str, Any]], None]]) -> Callable[[dict[str, Any]], None]:
    def on_round(record: dict[str, Any]) -> None:
        for hook in hooks:
            hook(record)

    return on_round


def _show(folders: Sequence[Path], page: Path, as_json: object | None) -> None:
    """The answer of the runs in `folders`, as a table and a sentence."""
    from histfl.experiments.report import answer_sentence, answer_table, arms_of, gather

    if as_json is not None:
        _print_json(as_json)
        return
    gathered = gather(folders)
    for name, reason in gathered.broken:
        typer.echo(f"not shown: {name}: {reason}", err=True)
    arms = arms_of(gathered.runs)
    answer = answer_table(arms)
    table = Table(*(column.heading for column in answer.columns), box=None)
    for row in answer.rows:
        table.add_row(*(Text(cell.text) for cell in row))
    console = _console()
    console.print(table)
    console.print(Text(answer_sentence(arms)))
    console.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)


def _console() -> Console:
    """Standard output; a table piped to a file or a pager keeps its width instead of being cut at 80."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


class Interrupted(HistflError):
    """The user or the system asked the process to stop."""

    exit_code = 130


@contextmanager
def _interruptible(folder: Path) -> Iterator[None]:
    """Ctrl-C and SIGTERM end in one line that says how to go on."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        arguments = " ".join(sys.argv[1:])
        missing = "" if "--out" in arguments else f" --out {folder}"
        missing += "" if "--resume" in arguments else " --resume"
        raise Interrupted(f"interrupted; go on with: histfl {arguments}{missing}") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: every failure a user can cause is one line and an exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except HistflError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except typer.Abort:
        _fail("aborted", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):  # not click's report of a wrong command line
            raise
        _fail(error.format_message(), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo("histfl: " + " ".join(message.split()), err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
