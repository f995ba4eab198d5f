"""`sigmax reproduce`."""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from sigmax.cli.console import confirm_long, log_console, note, out_console, print_whole, resumable, say, track
from sigmax.cli.engines import EngineOptions
from sigmax.cli.groups import command
from sigmax.cli.options import Backend
from sigmax.errors import InvalidInputError
from sigmax.rounding import format_duration

if TYPE_CHECKING:
    from sigmax.engine import Engine, Tracker
    from sigmax.paper.plan import Step
    from sigmax.paper.run import Reproduction

UNFINISHED = 3  # the exit code when --max-hours ended the work


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """How networks run on a machine."""

    device: str | None = None
    backend: Backend = "eager"
    batch: int | None = None


@command
def reproduce(
    experiment: str,
    engine: EngineOptions,
    place: MachineOptions,
    out: Path | None = None,
    plan: bool = False,
    only: str = "*",
    max_hours: float | None = None,
    data: str | None = None,
    train_data: str | None = None,
    download: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Run an experiment from training to report, with the paper's numbers beside ours.

    After an interruption or a kill, the same command continues and gives the same report.

    Examples:
    `sigmax reproduce digits --out runs/digits`

    `sigmax reproduce cifar10-cpu --data cifar10:DIR --out runs/cifar10-cpu --max-hours 8`

    `sigmax reproduce paper-cifar10 --plan`
    """
    from sigmax.paper.presets import presets, read_file

    if experiment == "list":
        for name, says in presets().items():
            say(f"{name:20} {says}")
        raise typer.Exit
    if experiment.startswith("show:"):
        say(read_file(experiment.removeprefix("show:"))[1].rstrip())
        raise typer.Exit
    from sigmax.paper.experiment import load_experiment
    from sigmax.paper.machine import Machine
    from sigmax.paper.plan import load_sources, make_plan
    from sigmax.paper.run import Reproduction, check_folder

    if max_hours is not None and not max_hours >= 0:
        raise InvalidInputError(f"expected --max-hours >= 0, got max_hours={max_hours}")
    deadline = time.monotonic() + 3600 * max_hours if max_hours is not None else math.inf
    asked = load_experiment(experiment, data=data, train_data=train_data)
    machine = Machine(device=place.device, backend=place.backend, batch=place.batch)
    out = out or Path("runs") / asked.name
    if plan:
        sources = load_sources(asked, is_needed=False)
        check_folder(asked, out, sources)
        _show_plan(make_plan(asked, out, machine=machine, sources=sources, only=only), as_json)
        return
    again = f"the same command with --out {out}"
    with resumable(again), Reproduction(asked, out, machine=machine, download=download) as work:
        steps = work.plan(only)
        if not as_json:
            _show_plan(steps, as_json)
        seconds = sum(step.seconds for step in steps if not step.is_done)
        confirm_long(min(seconds, 3600 * max_hours if max_hours is not None else seconds), yes=yes)
        with engine.start(note) as where:
            is_finished = _work(work, steps, deadline, where)
        report = work.report()
        steps = work.plan(only) if as_json else steps
    if as_json:
        content = {"finished": is_finished, "report": str(report) if report else None, "steps": _plain(steps)}
        out_console.print_json(json.dumps(content))
    elif report:
        say(f"report: {report}")
    if not is_finished:
        log_console.print(
            f"stopped after {max_hours:g} hours; nothing is lost. Continue with {again}", style="yellow", soft_wrap=True
        )
        raise typer.Exit(UNFINISHED)


class TimeIsUpError(Exception):
    """The time of --max-hours is over; what was done is kept."""


def until(deadline: float, tracker: "Tracker") -> "Tracker":
    """The same tracker, which stops the work with `TimeIsUpError` once `time.monotonic()` passes the deadline."""

    @contextmanager
    def limited(what: str, total: int) -> Iterator[Callable[[int], None]]:
        with tracker(what, total) as advance:

            def checked(done: int) -> None:
                advance(done)
                if time.monotonic() >= deadline:
                    raise TimeIsUpError

            yield checked

    return limited


def _work(work: "Reproduction", steps: Sequence["Step"], deadline: float, engine: "Engine") -> bool:
    """Do the steps until all are done or time is up; return whether all are done."""
    for number, step in enumerate(steps, start=1):
        if step.is_done:
            continue
        if time.monotonic() >= deadline:
            return False
        log_console.print(
            f"{number}/{len(steps)} {step.kind} {step.name}, about {format_duration(step.seconds)}",
            highlight=False,
            soft_wrap=True,
        )
        try:
            work.work(step, until(deadline, track), engine)
        except TimeIsUpError:
            return step is steps[-1] and work.plan(step.name)[-1].is_done  # its last input may have been done
    return True


def _plain(steps: Sequence["Step"]) -> list[dict[str, object]]:
    shown = ("kind", "name", "state", "done", "total", "passes")
    return [{name: getattr(step, name) for name in shown} | {"seconds": round(step.seconds, 1)} for step in steps]


def _show_plan(steps: Sequence["Step"], as_json: bool) -> None:
    if as_json:
        out_console.print_json(json.dumps(_plain(steps)))
        return
    view = Table("", "step", "state", box=None)
    for heading in ("forward passes", "about"):
        view.add_column(heading, justify="right", no_wrap=True)
    for step in steps:
        cost = ("", "") if step.is_done else (_count(step.passes), format_duration(step.seconds))
        view.add_row(step.kind, step.name, step.state, *cost)
    passes, seconds = sum(step.passes for step in steps), sum(step.seconds for step in steps)
    view.add_row("", "all that is left", "", _count(passes), format_duration(seconds))
    print_whole(view)


def _count(passes: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if passes >= size:
            return f"{passes / size:.1f} {unit}"
    return str(passes)
