"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def whole_line(command: Callable[..., None] | None) -> str:
    """A command's line in the list of commands, which would else be cut at the screen's edge."""
    return (command.__doc__ or "").partition("\n\n")[0]


def named_folder(text: str) -> Path:
    """An empty name, such as that of an unset variable, would mean the current folder."""
    if not text:
        raise typer.BadParameter("it is empty; name a folder, such as runs/first")
    return Path(text)


Source = Annotated[str, typer.Argument(metavar="CONFIG_OR_PRESET", help="A TOML file, or a preset's name.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change one setting (docs/configuration.md lists them); may be repeated.",
    ),
]
Trust = Annotated[
    list[str],
    typer.Option(
        "--trust",
        metavar="PACKAGE.MODULE",
        help="Let the file call what it names of this module of yours; may be repeated, is kept nowhere.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        parser=named_folder, metavar="PATH", help="Folder for the results (default: a new one under runs/)."
    ),
]
Plot = Annotated[Path | None, typer.Option(help="Also draw it to this HTML file.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where data sets lie (default: $HISTFL_DATA, the cache, /usr/share/datasets)."),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="auto, reference, vectorised, ray or another of ENGINES; a wrong one lists all."
    ),
]
PrecisionName = Annotated[
    str | None,
    typer.Option("--precision", help="float32, tf32 or bf16 (CUDA); short for training.precision."),
]
MemoryGb = Annotated[
    float | None,
    typer.Option("--memory-gb", help="Memory for the clients in training (default: what is free)."),
]


def number_or_ray(value: object) -> int | Literal["ray"]:
    if (text := str(value)) == "ray":
        return "ray"
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r}: give a whole number from 1, or ray")
    return int(text)


Parallel = Annotated[
    Any,
    typer.Option(
        parser=number_or_ray,
        metavar="N|ray",
        help="Runs at the same time, a process each; or ray: as many as there are workers of a Ray cluster.",
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Ray workers (default: as many as there is room for).")
]
ThreadsPerWorker = Annotated[int, typer.Option(min=1, help="Threads, and cores, of each Ray worker.")]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(min=0, help="GPUs of each Ray worker; 0.5 shares one (default: 1 with --device cuda)."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a Ray cluster, or auto (default: one of this machine alone)."),
]
Minutes = Annotated[
    float | None,
    typer.Option(min=0, help="Stop after so many minutes with all rounds kept; exit code 3: more is left."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last whole round in --out.")]
TensorBoardFlag = Annotated[
    bool, typer.Option("--tensorboard", help="Also write RUN/tensorboard (extra tensorboard).")
]
MLflowFlag = Annotated[
    bool,
    typer.Option("--mlflow", help="Also log to MLflow, sqlite:///mlflow.db if none is set (extra mlflow)."),
]
WandBFlag = Annotated[
    bool, typer.Option("--wandb", help="Also log to Weights & Biases, project histfl (extra wandb).")
]
MLflowUri = Annotated[str | None, typer.Option(help="The MLflow store or server to log to.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
