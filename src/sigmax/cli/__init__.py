"""The command line: parses, calls the library and prints. Heavy imports wait until a command runs."""

import sys
import traceback
from typing import Annotated

import typer

from sigmax import __version__
from sigmax.cli.certify import certify, predict, replay
from sigmax.cli.console import log_console, say
from sigmax.cli.engines import merge
from sigmax.cli.inspect import demo, show
from sigmax.cli.memory import (
    memory_check,
    memory_copy,
    memory_explain,
    memory_freeze,
    memory_permute,
    memory_show,
)
from sigmax.cli.models import models
from sigmax.cli.report import report
from sigmax.cli.reproduce import reproduce
from sigmax.cli.serve import serve
from sigmax.cli.train import train
from sigmax.errors import SigmaxError

_DEBUG = "--debug"
app = typer.Typer(
    help="Certify classifiers by randomized smoothing with per-input noise levels.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
memory_app = typer.Typer(help="Inspect, copy or freeze a certificate memory.", no_args_is_help=True)
app.command()(demo)
app.command()(train)
app.command()(certify)
app.command()(predict)
app.command()(replay)
app.command()(merge)
app.command()(show)
app.command()(report)
app.command()(reproduce)
app.command()(models)
app.command()(serve)
app.add_typer(memory_app, name="memory")
memory_app.command("show")(memory_show)
memory_app.command("check")(memory_check)
memory_app.command("explain")(memory_explain)
memory_app.command("permute")(memory_permute)
memory_app.command("copy")(memory_copy)
memory_app.command("freeze")(memory_freeze)


def _print_version(value: bool) -> None:
    if value:
        say(f"sigmax {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error; works anywhere.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Certify classifiers by randomized smoothing with per-input noise levels."""


def main() -> None:
    """Run the command line; an error is one line on stderr and exit code 2. `--debug` may stand anywhere."""
    arguments = [argument for argument in sys.argv[1:] if argument != _DEBUG]
    try:
        app(arguments)
    except (SigmaxError, OSError) as error:
        said = f"error: {error}"
        if _DEBUG in sys.argv:
            traceback.print_exc()
        else:
            said += f" ({_DEBUG} shows the traceback)"
        log_console.print(said, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
