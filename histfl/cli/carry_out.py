"""Carrying out one or many runs, with progress, followers and a page that compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from histfl.cli.output import console, interruptible, print_json, say, warn
from histfl.errors import DivergedError, UsageError
from histfl.terminal import StillAt, Terminal

if TYPE_CHECKING:
    from histfl.reports.live import Follower
    from histfl.runs.config import Config


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that exists."""
    for number in range(1, 1_000_000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists():
            return folder
    raise UsageError("runs/ is full; give --out")


FEW_RUNS = 4


@dataclass(frozen=True)
class Choices:
    """How runs are carried out and followed; nothing of it changes their numbers."""

    data_dir: Path | None
    device: str
    engine: str
    memory_gb: float | None = None
    resume: bool = False
    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = None

    def followers(self, name: str, config: Config, folder: Path) -> list[Follower]:
        from histfl.reports.mlflow import MLflow
        from histfl.reports.tensorboard import TensorBoard

        chosen: list[Follower] = [TensorBoard(folder / "tensorboard")] if self.tensorboard else []
        if self.mlflow or self.mlflow_uri:
            chosen.append(MLflow(name, config, folder, self.mlflow_uri, resume=self.resume))
        return chosen


def run_all(
    configs: Mapping[str, Config], folders: Mapping[str, Path], top: Path, choices: Choices
) -> dict[str, dict[str, Any]]:
    """Run each configuration into its folder; the comparison page in `top` follows them.

    Of several, one that diverges is said and left out of the summaries, and the others go on.
    """
    from histfl.engines.choose import check_engine
    from histfl.reports.live import LivePage, telling
    from histfl.runs.build import check, prepare
    from histfl.runs.execute import execute
    from histfl.runs.progress import progress
    from histfl.runs.sizes import holding
    from histfl.runs.store import RunFolder
    from histfl.runs.unread import unread
    from histfl.runs.work import work_of_a_round

    check_engine(choices.engine, choices.memory_gb)
    if top not in folders.values() and RunFolder(top).config_path.exists():
        raise UsageError(f"{top} holds a run; use another folder for several of them")
    if choices.resume and not any(RunFolder(path).checkpoint_path.exists() for path in folders.values()):
        warn(f"--resume: there is no checkpoint in {top}; the run begins with round 1")
    page = LivePage(top / "report.html", f"histfl: {top.name}", folders.values(), warn)
    naming = _naming if len(configs) > 1 else nullcontext
    with StillAt(f"checking {len(configs)} runs", Terminal(stderr=True)) as still:
        for name, config in configs.items():  # before the first trains, which may take long
            still.at(f"checking the settings of {name}")
            with naming(name):
                check(config)
    for reason in unread(list(configs.values())):
        warn(reason)
    summaries = {}
    told_of_computing: set[str] = set()
    with interruptible(top):
        for name, config in configs.items():
            followers = choices.followers(name, config, folders[name])
            getting_ready = StillAt(f"{name}: reading the data and cutting the model", Terminal(stderr=True))
            with naming(name), getting_ready:
                experiment = prepare(
                    config,
                    data_dir=choices.data_dir,
                    device=choices.device,
                    engine=choices.engine,
                    memory_gb=choices.memory_gb,
                )
            share, doubts = holding(config.method, experiment.hist)
            begun = [
                sentence if len(configs) == 1 else f"{name}: {sentence}" for sentence in (share, *doubts)
            ]
            folder = RunFolder(folders[name])
            work = work_of_a_round(experiment.config, experiment.hist.network.clients_per_cell)
            with (
                progress(
                    name,
                    config.training.rounds,
                    Terminal(stderr=True),
                    config.objective.made(),
                    work.sentence,
                ) as show,
                telling(followers, folder, warn) as told,
            ):
                hooks = (show, told.on_round, page.on_round)
                try:
                    run = execute(
                        experiment,
                        folder,
                        resume=choices.resume,
                        on_start=partial(_warn_all, begun),
                        on_round=_all_of(hooks),
                    )
                except DivergedError as error:
                    if len(configs) == 1:
                        raise
                    warn(f"{name}: {error}")
                    continue
                told.on_end(run)
            summaries[name] = run.summary
            if (said := run.summary["computing"]) not in told_of_computing:
                told_of_computing.add(said)
                say(said, err=True)
    if not summaries:
        raise DivergedError(f"all {len(configs)} runs diverged")
    page.on_end()
    return summaries


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """A UsageError names the run that it is about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def complain_of_missing(configs: Mapping[str, Config], summaries: Mapping[str, object]) -> None:
    """After all is shown: a DivergedError that names the runs without an end."""
    if missing := [name for name in configs if name not in summaries]:
        raise DivergedError(f"{len(missing)} of {len(configs)} runs diverged: {', '.join(missing)}")


def _warn_all(messages: Sequence[str]) -> None:
    for message in messages:
        warn(message)


def _all_of(hooks: Sequence[Callable[[dict[str, Any]], None]]) -> Callable[[dict[str, Any]], None]:
    def on_round(record: dict[str, Any]) -> None:
        for hook in hooks:
            hook(record)

    return on_round


def show(folders: Sequence[Path], page: Path, as_json: object | None) -> None:
    """The answer of the runs in `folders`, as a table and a sentence."""
    from histfl.reports import answer_sentence, answer_table, gather, groups_of

    if as_json is not None:
        print_json(as_json)
        return
    gathered = gather(folders)
    for name, reason in gathered.broken:
        say(f"not shown: {name}: {reason}", err=True)
    groups = groups_of(gathered.runs)
    answer = answer_table(groups)
    lines = [
        [column.heading for column in answer.columns],
        *([cell.text for cell in row] for row in answer.rows),
    ]
    if len(answer.rows) <= FEW_RUNS:  # a column a run: it fits a terminal of 80 columns
        lines = [list(line) for line in zip(*lines, strict=True)]
    table = Table(*lines[0], box=None)
    for line in lines[1:]:
        table.add_row(*(Text(cell) for cell in line))
    screen = console()
    screen.print(table)
    screen.print(Text(answer_sentence(groups)))
    screen.print(f"report: {page}", soft_wrap=True, highlight=False, markup=False)
