"""Terminal output: tables on stdout, progress and errors on stderr."""

import json
import signal
import sys
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
    from pathlib import Path

    from sigmax.metrics import Summary
    from sigmax.runs import Run

# Without markup: names of runs, classes and folders may contain brackets.
_plain_console = partial(Console, markup=False, emoji=False)
out_console = _plain_console()
log_console = _plain_console(stderr=True)
_WIDEST = 1_000  # characters, where no terminal limits them
_NAME_LENGTHS = (None, 28, 18)  # of runs in a table that would not fit
_LONG = 3600.0  # seconds
_interrupts: list[int] = []  # signals received by the running command


def say(line: str) -> None:
    """Print a line unchanged, however long it is."""
    out_console.print(line, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a note on stderr, unchanged."""
    log_console.print(f"note: {text}", style="yellow", highlight=False, soft_wrap=True)


def confirm_long(seconds: float, *, yes: bool) -> None:
    """Ask before more than an hour of work, on a terminal and without --yes."""
    if seconds > _LONG and not yes and sys.stdin.isatty() and log_console.is_terminal:
        typer.confirm("Begin? (--yes does not ask)", abort=True, err=True)


def with_certificates(runs: "dict[Path, Run]", *, keep: "Sequence[Path]" = ()) -> "dict[Path, Run]":
    """The runs that have certificates; a note names each of the others. If none has any, the last one is kept."""
    found = dict(runs)
    for place, run in runs.items():
        if not len(run.table) and place not in keep and len(found) > 1:
            note(f"{place}: has no certificates yet, left out")
            del found[place]
    return found


def print_runs(runs: Sequence[tuple[str, "Run"]], *, radii: Sequence[float] | None, as_json: bool) -> None:
    """Print certified accuracy at each radius, ACR and abstentions of each run, side by side.

    Where some sigmas are at the upper bound of their search: also how many, the ACR without these inputs, and that of
    the baseline without them. Of the usual radii, those that no run certifies or that do not fit are left out.
    """
    from sigmax.metrics import common_radii, summarise

    shown = radii or common_radii([run.table for _, run in runs])
    rows = [
        summarise(
            name,
            run.table,
            shown,
            upper=run.spec.search.upper if run.spec else None,
            backend=run.spec.found.backend if run.spec and run.spec.found else None,
            noise=run.noise,
            is_at=bool(run.spec and run.spec.budget.radii),
        )
        for name, run in runs
    ]
    if as_json:
        out_console.print_json(json.dumps([asdict(row) for row in rows]))
        return
    places = list(range(len(shown)))
    if radii is None:
        places = [place for place in places if place == 0 or any(row.accuracy[place] for row in rows)]
    # To fit a terminal, first names are cut short, then the largest radii go.
    tries = [(places, length) for length in _NAME_LENGTHS]
    tries += [(places[:count], _NAME_LENGTHS[-1]) for count in range(len(places) - 1, 0, -1)] if radii is None else []
    room = out_console.width if out_console.is_terminal else _WIDEST
    views = ((tried, _runs_view(rows, tried, length)) for tried, length in tries)
    tried, view = next((found for found in views if _width(found[1]) <= room), (places, _runs_view(rows, places)))
    print_whole(view)
    if len(tried) < len(places):
        say("larger radii do not fit here; name them by --radii, or use --json")
    if any(row.is_at for row in rows):
        say("* radii are rounded down to those of --at, and so is the ACR")
    if any(row.at_bound for row in rows):
        _say_inner_acrs([run for _, run in runs], rows)


def _runs_view(rows: Sequence["Summary"], places: Sequence[int], length: int | None = None) -> Table:
    """The table at some radii, with names of at most this length."""
    from sigmax.metrics import format_acr, special_backend
    from sigmax.rounding import format_nearest, format_whole

    backends = {special_backend(row.backend) for row in rows}
    shared = backends.pop() if len(backends) == 1 else ""  # then it is said once
    title = "certified accuracy at each radius" + (f", run by {shared}" if shared else "")
    view = Table(box=None, title=title, title_justify="left")
    headings = ["run", "inputs", "answers", *(format_whole(rows[0].radii[place]) for place in places)]
    for heading in [*headings, "ACR", "abstained"]:
        view.add_column(heading, no_wrap=True, justify="left" if heading in ("run", "answers") else "right")
    for row in rows:
        name = row.name if length is None or len(row.name) <= length else f"{row.name[: length - 1]}…"
        answers = ", ".join(filter(None, (row.answers, row.noise, "" if shared else special_backend(row.backend))))
        cells = [format_nearest(row.accuracy[place]) for place in places]
        cells += [format_acr(row.acr, is_at=row.is_at), format_nearest(row.abstained)]
        view.add_row(name, str(row.inputs), answers, *cells)
    return view


def _say_inner_acrs(runs: Sequence["Run"], rows: Sequence["Summary"]) -> None:
    """For each run with sigmas at the bound: how many, the ACR without these inputs, and that of its baseline."""
    from sigmax.metrics import format_acr, inner_acrs
    from sigmax.report.entries import entries
    from sigmax.report.pairing import pairs

    shown = entries(runs)
    baselines = {pair.run: pair.baseline for pair in pairs(shown)}
    for entry, row in zip(shown, rows, strict=True):
        if row.at_bound:
            other = baselines.get(entry)
            inner = inner_acrs(entry.table, entry.upper, other and other.table)
            acr, base = ("-" if value is None else format_acr(value, is_at=row.is_at) for value in inner)
            said = f", baseline {base}" if other else ""
            say(f"{row.name}: {row.at_bound} of {row.inputs} sigmas at the bound; inner ACR without them {acr}{said}")


def print_whole(view: Table) -> None:
    """Print a table without cutting off any number; the terminal wraps lines that are too wide."""
    _plain_console(width=max(out_console.width, _width(view))).print(view)


def _width(view: Table) -> int:
    return _plain_console(width=_WIDEST).measure(view).maximum


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
