"""Training for real: kits for machines, and the commands that cloud, edges and clients start with."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from histfl.cli.carry_out import free_folder, run_all, show
from histfl.cli.options import (
    DataDir,
    Device,
    Json,
    MLflowFlag,
    MLflowUri,
    Out,
    Resume,
    Set,
    Source,
    TensorBoardFlag,
    Trust,
    WandBFlag,
    named_folder,
)
from histfl.cli.output import Interrupted, say, warn
from histfl.cli.runs import GETTING_READY
from histfl.errors import UsageError

if TYPE_CHECKING:
    from histfl.data import TensorData
    from histfl.deploy.kits import Kit
    from histfl.deploy.protocol import Terms
    from histfl.reports.trackers import Trackers
    from histfl.runs.config import Config

deploy_app = typer.Typer(
    help="Kits for a cloud, edges and clients on machines of their own, and a first look on this one.",
    no_args_is_help=True,
)
KitFolder = Annotated[
    Path, typer.Argument(metavar="KIT", help="This machine's kit, a folder that deploy init made.")
]
TimeoutS = Annotated[
    float,
    typer.Option("--timeout", metavar="S", help="Seconds of silence after which a machine is left out."),
]
DeadlineS = Annotated[
    float | None,
    typer.Option(
        "--deadline",
        metavar="S",
        help="Seconds that an edge round waits for clients at work (default: however long they take).",
    ),
]
MinCells = Annotated[int, typer.Option(help="A global round waits for so many cells.")]
MinClients = Annotated[int, typer.Option(help="An edge round waits for so many clients of its cell.")]
StartS = Annotated[
    float, typer.Option("--start", metavar="S", help="Seconds that the first round waits for all machines.")
]


@deploy_app.command("init")
def init(
    network: Annotated[
        Path, typer.Argument(metavar="NETWORK.toml", help="Cells, clients, and where cloud and edges listen.")
    ],
    out: Annotated[
        Path, typer.Option(parser=named_folder, metavar="DIR", help="Folder for the kits.")
    ] = Path("kits"),
    days: Annotated[int, typer.Option(min=1, max=36500, help="How long certificates are good.")] = 365,
    as_json: Json = False,
) -> None:
    """Make every machine's kit: certificates, addresses and the one command that starts it."""
    from histfl.cli.output import print_json
    from histfl.deploy.provision import provision, site_of
    from histfl.network import read_description

    site = site_of(read_description(network), str(network))
    written = provision(site, out, days=days)
    if as_json:
        print_json({"kits": [str(folder) for folder in written], "cells": list(site.cells)})
        return
    there = 1 + len(site.cells) + sum(site.cells) - len(written)
    say(
        f"{len(written)} kits in {out}{f'; {there} were there before' if there else ''}: the cloud's, {len(site.cells)} of edges and {sum(site.cells)} of clients"
    )
    say(
        "Bring each folder to its machine, and do what its README.md says. The folder authority stays with you: whoever has it can make kits."
    )


@deploy_app.command("try")
def attempt(
    source: Source,
    machines: Annotated[
        str | None,
        typer.Option(
            metavar="1+CELLS+CLIENTS",
            help="The cloud, its edges, and the clients of all cells together (default: those of a network file, or "
            "1+2+4).",
        ),
    ] = None,
    settings: Set = [],  # noqa: B006 (typer reads it as the option's default)
    trust: Trust = [],  # noqa: B006
    out: Out = None,
    data_dir: DataDir = None,
    timeout_s: TimeoutS = 60.0,
    deadline_s: DeadlineS = None,
    min_clients: MinClients = 1,
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also simulate the run, and compare the models.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Run a whole deployment on this machine, every part a process of its own, and compare it with the simulation."""
    warn(GETTING_READY)
    from histfl.deploy.loopback import compared, machines_here, parsed
    from histfl.deploy.protocol import Terms
    from histfl.deploy.refused import check_deployable
    from histfl.reports.trackers import Trackers
    from histfl.runs.loading import load_config
    from histfl.runs.work import described_cells, network_file

    terms = Terms(timeout_s, min_clients=min_clients, deadline_s=deadline_s)
    if machines is None:
        config = load_config(source, settings, trust)
        own = [2, 2] if network_file(config) is None else described_cells(config)
        machines = f"1+{len(own)}+{sum(own)}"
    cells, clients = parsed(machines)
    config = load_config(source, [*settings, f"network.cells={cells}", f"network.clients={clients}"], trust)
    check_deployable(config)
    folder = out or free_folder(f"{Path(source).stem}-deployed")
    with machines_here(config, data_dir, trust) as others:
        summary = _be_cloud(
            others.cloud, config, folder, terms, Trackers(), data_dir=data_dir, watch=others.check
        )
        others.join(10)
    comparison = None
    if compare:
        warn("simulating the same run ...")
        comparison = compared(config, folder, data_dir)
    answer = {**summary, "simulated": comparison and dataclasses.asdict(comparison)}
    show([folder], folder / "report.html", answer if as_json else None)
    if comparison and not as_json:
        say(comparison.sentence)


def _be_cloud(
    kit: Kit,
    config: Config,
    folder: Path,
    terms: Terms,
    trackers: Trackers,
    *,
    test: TensorData | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    start_s: float = 60.0,
    resume: bool = False,
    watch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Carry out a run with the machines that call, and tell them its end; the run's summary."""
    from histfl.deploy.cloud import OnMachines
    from histfl.deploy.dispatcher import Dispatcher
    from histfl.runs.jobs import has_rounds
    from histfl.runs.store import RunFolder

    with Dispatcher(kit, timeout_s=terms.timeout_s, watch=watch) as dispatcher:
        warn(f"{kit.name}: listening on {dispatcher.place}")
        if resume and has_rounds(folder, config) and RunFolder(folder).summary_path.exists():
            warn(f"{folder} has all {config.training.rounds} rounds; ask for more with --set training.rounds")
            dispatcher.end()  # who was not told before the cloud was killed calls again by then
            return RunFolder(folder).read_summary()
        execution = OnMachines(
            data_dir,
            device,
            dispatcher=dispatcher,
            terms=terms,
            test=test,
            start_s=start_s,
            say=warn,
        )
        name = folder.resolve().name
        _, summaries = run_all({name: config}, {name: folder}, folder, execution, trackers, resume=resume)
        dispatcher.end()
    return summaries[name]


@contextmanager
def _ended() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: what is not done is asked for again."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError):  # nobody may be there to read it
            warn("interrupted; started again, it goes on where the others are")
        # At once: amid its work, a thread that ends in torch aborts the process.
        os._exit(Interrupted.exit_code)


def cloud(
    kit: KitFolder,
    source: Source,
    settings: Set = [],  # noqa: B006
    trust: Trust = [],  # noqa: B006
    out: Out = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The test set: package.module:load, or FILE.safetensors (default: that of the run's data set)."
        ),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    timeout_s: TimeoutS = 60.0,
    deadline_s: DeadlineS = None,
    min_cells: MinCells = 1,
    min_clients: MinClients = 1,
    start_s: StartS = 60.0,
    resume: Resume = False,
    tensorboard: TensorBoardFlag = False,
    mlflow: MLflowFlag = False,
    mlflow_uri: MLflowUri = None,
    wandb: WandBFlag = False,
    as_json: Json = False,
) -> None:
    """Be the cloud of a deployment: deal out submodels, merge them, and keep the run's folder."""
    warn(GETTING_READY)
    from histfl.data import as_tensor_data
    from histfl.data.accepted import accepted
    from histfl.deploy.client import load_samples
    from histfl.deploy.kits import Kit
    from histfl.deploy.protocol import Terms
    from histfl.reports.trackers import Trackers
    from histfl.runs.loading import load_config
    from histfl.settings import GIVEN

    if not 0 <= start_s <= 86400:
        raise UsageError(f"--start {start_s:g}: give seconds, from 0 to 86400")
    terms, own = Terms(timeout_s, min_cells, min_clients, deadline_s), Kit.read(kit, "cloud")
    config = load_config(source, settings, trust)
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder to go on with")
    folder = out or free_folder(f"{Path(source).stem}-deployed")
    test = None
    if data is not None:
        test = as_tensor_data(accepted(load_samples(own, data)))
        config = config.model_copy(update={"data": config.data.model_copy(update={"name": GIVEN})})
    trackers = Trackers(tensorboard, mlflow, mlflow_uri, wandb)
    summary = _be_cloud(
        own,
        config,
        folder,
        terms,
        trackers,
        test=test,
        data_dir=data_dir,
        device=device,
        start_s=start_s,
        resume=resume,
    )
    show([folder], folder / "report.html", summary if as_json else None)


def edge(kit: KitFolder) -> None:
    """Be a cell's edge of a deployment: average what its clients send. It waits for cloud and clients."""
    from histfl.deploy.edge import serve_edge
    from histfl.deploy.kits import Kit

    with _ended():
        serve_edge(Kit.read(kit, "edge"), warn)


def client(
    kits: Annotated[
        list[Path],
        typer.Argument(metavar="KIT...", help="This machine's kit; of a testbed, several clients'."),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Its samples: package.module:load, or FILE.safetensors (default: the kit's samples.safetensors)."
        ),
    ] = None,
    trust: Trust = [],  # noqa: B006
    data_dir: DataDir = None,
    device: Device = "cpu",
) -> None:
    """Be a client of a deployment: train on this machine's own samples. It waits for its edge."""
    from histfl.deploy.client import ClientSettings, serve_clients
    from histfl.deploy.kits import Kit
    from histfl.factories import check_trust

    check_trust(trust)
    settings = ClientSettings(data, device, tuple(trust), data_dir)
    with _ended():
        serve_clients([Kit.read(kit, "client") for kit in kits], settings, warn)
