"""Terminal output: tables on stdout, progress and errors on stderr."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from sigmax.runs import Run

# Without markup: names of runs, classes and folders may contain brackets.
_plain_console = partial(Console, markup=False, emoji=False)
out_console = _plain_console()
log_console = _plain_console(stderr=True)
_interrupts: list[int] = []  # signals received by the running command


def say(line: str) -> None:
    """Print a line unchanged, however long it is."""
    out_console.print(line, highlight=False, soft_wrap=True)


def print_runs(runs: Sequence[tuple[str, "Run"]], *, radii: Sequence[float] | None, as_json: bool) -> None:
    """Print certified accuracy at each radius, ACR and abstentions of each run, side by side.

    Where some sigmas are at the upper bound of their search: also how many, and the ACR without these inputs.
    """
    from sigmax.metrics import common_radii, special_backend, summarise
    from sigmax.rounding import format_nearest, format_whole

    radii = radii or common_radii([run.table for _, run in runs])
    uppers = [run.spec.search.upper if run.spec else None for _, run in runs]
    rows = []
    for (name, run), upper in zip(runs, uppers, strict=True):
        backend = run.spec.found.backend if run.spec and run.spec.found else None
        rows.append(summarise(name, run.table, radii, upper=upper, backend=backend, noise=run.noise))
    if as_json:
        out_console.print_json(json.dumps([asdict(row) for row in rows]))
        return
    has_bound = any(row.at_bound for row in rows)
    headings = ["run", "inputs", "answers", *map(format_whole, radii), "ACR", "abstained"]
    view = Table(box=None, title="certified accuracy at each radius", title_justify="left")
    for heading in [*headings, *(["inner ACR", "at bound"] if has_bound else [])]:
        view.add_column(heading, no_wrap=True, justify="left" if heading in ("run", "answers") else "right")
    for row, upper in zip(rows, uppers, strict=True):
        numbers = [format_nearest(share) for share in (*row.accuracy, row.acr, row.abstained)]
        inside = "-" if row.acr_inside is None else format_nearest(row.acr_inside)
        inner = [inside, "-" if upper is None else str(row.at_bound)] if has_bound else []
        answers = ", ".join(filter(None, (row.answers, row.noise, special_backend(row.backend))))
        view.add_row(row.name, str(row.inputs), answers, *numbers, *inner)
    print_whole(view)


def print_whole(view: Table) -> None:
    """Print a table whole: where it is too wide, the terminal wraps it, and no number is cut off."""
    needed = _plain_console(width=1_000).measure(view).maximum
    _plain_console(width=max(out_console.width, needed)).print(view)


@contextmanager
def track(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with the time left, on stderr if that is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeRemainingColumn(), console=log_console, transient=True, disable=not log_console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=max(total, 1))

        def advance(done: int) -> None:
            check_interrupt()
            bar.advance(task, done)

        yield advance


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """On an interrupt, say how to continue instead of showing an error.

    Python loses an interrupt during a destructor or a library's callback; so `track` checks for it too.
    """
    _interrupts.clear()
    usual = signal.signal(signal.SIGINT, _interrupt) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    except KeyboardInterrupt:
        log_console.print(f"interrupted; nothing is lost. Continue with {command}", style="yellow", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        if usual is not None:
            signal.signal(signal.SIGINT, usual)
        _interrupts.clear()


def check_interrupt() -> None:
    """Raise an interrupt that was lost."""
    if _interrupts:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: object) -> None:
    _interrupts.append(number)
    raise KeyboardInterrupt
