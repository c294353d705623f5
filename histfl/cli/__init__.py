"""The command line: thin, one function a command."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

import histfl
from histfl.cli.data import data_app
from histfl.cli.deploy import client, cloud, deploy_app, edge
from histfl.cli.inspect import bound, doctor, plan, report
from histfl.cli.options import whole_line
from histfl.cli.output import fail, interrupt, open_streams
from histfl.cli.reproduce import reproduce_app
from histfl.cli.runs import quickstart, run, sweep
from histfl.errors import DISK_FAILURES, HistflError, is_out_of_memory, shown

app = typer.Typer(
    help="Federated learning over hierarchical wireless networks with independent submodels (HIST).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"histfl {histfl.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None: ...


for command in (quickstart, run, sweep, plan, bound, report, cloud, edge, client, doctor):
    app.command(short_help=whole_line(command))(command)
for group in (deploy_app, data_app):
    for named in group.registered_commands:
        named.short_help = whole_line(named.callback)
app.add_typer(reproduce_app, name="reproduce", short_help=reproduce_app.info.help)
app.add_typer(deploy_app, name="deploy", short_help=deploy_app.info.help)
app.add_typer(data_app, name="data", short_help=data_app.info.help)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script: every failure a user can cause is one line and an exit code."""
    open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    command = typer.main.get_command(app)
    try:
        code = command.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
        sys.stdout.flush()  # not at the interpreter's end, where nobody would answer for it
    except SystemExit:  # how click and rich take a closed pipe, without a word
        fail("standard output was closed before all was printed", 1)
    except HistflError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    except typer.Abort:
        fail("aborted", 130)
    except Exception as error:
        if is_out_of_memory(error):
            fail(
                f"{' '.join(str(error).split())[-200:]}; ask for less: fewer clients, steps or edge rounds", 2
            )
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            fail(f"{str(error.filename)[:100]}...: the name is too long; check it", 2)
        if isinstance(error, OSError) and error.filename is None and error.errno in DISK_FAILURES:
            fail(f"cannot print the answer: {error.strerror or error}; send standard output elsewhere", 1)
        if not hasattr(error, "format_message"):  # not click's report of a wrong command line
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
            typer.echo(error.format_message(), err=True)
            sys.exit(2)
        fail(_wrong_words(error), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _wrong_words(report: Any) -> str:
    """Click's report of a wrong command line; of an option that does not fit, with the value that was given."""
    said, of_type = str(report.format_message()), report.__context__
    if not hasattr(of_type, "errors"):  # not pydantic's, which reads the values
        return said
    given = of_type.errors()[0]["input"]
    return said.replace("': Input should", f"': {shown(given)}; it should", 1).partition(", unable")[0]
