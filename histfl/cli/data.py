"""The `data` commands: what there is, where it lies, how clients share it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from histfl.cli.options import DataDir, Json, Plot, Set, Source, Trust
from histfl.cli.output import console, print_json, say, say_path

data_app = typer.Typer(
    help="Data sets: what there is, where it lies, how clients share it.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help="The data set.")]


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The data sets that histfl knows."""
    from histfl.data import DATASETS
    from histfl.factories import DATA, plugins

    rows: list[dict[str, Any]] = [
        {
            "name": source.name,
            "description": source.description,
            "licence": source.licence,
            "download_megabytes": source.download_megabytes,
        }
        for source in DATASETS.values()
    ]
    for name, plugin in plugins(DATA).items():
        about = plugin.dist.metadata.json if plugin.dist else {}
        rows.append(
            {
                "name": name,
                "description": f"a plugin of {about.get('name')}: {plugin.value}",
                "licence": about.get("license_expression") or about.get("license") or "not told",
                "download_megabytes": None,
            }
        )
    if as_json:
        print_json({"datasets": rows})
        return
    table = Table("name", "what it is", "licence", "download", box=None)
    for row in rows:
        *words, megabytes = row.values()
        here = "comes with histfl" if megabytes is not None else "by itself"
        table.add_row(*map(str, words), f"{megabytes:g} MB" if megabytes else here)
    console().print(table)


@data_app.command("where")
def data_where(
    name: Name,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Where a data set lies on this machine."""
    from histfl.data import locate

    place = locate(name, data_dir)
    print_json({"name": name, "path": str(place)}) if as_json else say_path(place)


@data_app.command("fetch")
def data_fetch(
    name: Name,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set and verify it."""
    from histfl.data import fetch

    place = fetch(name, data_dir)
    print_json({"name": name, "path": str(place)}) if as_json else say_path(place)


@data_app.command("show")
def datashow(
    source: Source = "quickstart",
    settings: Set = [],  # noqa: B006
    trust: Trust = [],  # noqa: B006
    data_dir: DataDir = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """The label mix per cell and client under a configuration's split."""
    from histfl.reports.pictures import draw_label_mix, label_mix_of
    from histfl.runs.loading import load_config

    mix = label_mix_of(load_config(source, settings, trust), data_dir)
    if plot is not None:
        draw_label_mix(mix, plot)
    if as_json:
        print_json(mix.as_json())
        return
    for table in mix.tables():
        console().print(table)
    if plot is not None:
        say(f"drawn to {plot}")
