"""`sigmax report`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sigmax.cli.console import note, out_console, say, with_certificates
from sigmax.cli.groups import command
from sigmax.cli.options import parse_pairs, parse_radii
from sigmax.errors import DataError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sigmax.data import ImageSource
    from sigmax.runs import Run


@command
def report(
    runs: list[Path],
    out: Path = Path("report"),
    title: str = "Certified robustness",
    data: str | None = None,
    radii: str | None = None,
    baseline: Path | None = None,
    pictured: str | None = None,
    common: bool = False,
    name: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Write a page, tables (Markdown, LaTeX, CSV) and figures (PNG, PDF) of runs, compared input by input.

    Examples:
    `sigmax report runs --out report`

    `sigmax report runs/fixed runs/per-input --data cifar10 --radii 0,0.25,0.5,0.75,1`

    `sigmax report cohen-0.50.tsv qcrs.tsv --baseline cohen-0.50.tsv --name qcrs=QCRS`
    """
    from sigmax.report.report import TEXT, compose_report
    from sigmax.runs import read_runs

    wanted = None if radii is None else parse_radii("--radii", radii)
    named = [] if baseline is None else list(read_runs([baseline]))
    if len(named) > 1:
        raise InvalidInputError(f"expected one run as --baseline, got {len(named)} in {baseline}")
    read = read_runs([*runs, *named])
    read = _renamed(with_certificates(read, keep=named), parse_pairs("--name", name))
    if common:
        read = _on_common_inputs(read)
    elif len({len(run.table) for run in read.values()}) > 1:
        note("the runs have different inputs; --common compares them on those that all have")
    made = compose_report(
        list(read.values()),
        title=title,
        source=_source(data, list(read.values())),
        radii=wanted,
        baseline=read[named[0]] if named else None,
        pictured=_parse_inputs(pictured),
    )
    opened = made.write(out)
    paired = {pair.run.name: pair.baseline.name for pair in made.pairs}
    for run in made.runs:
        if named and run.name not in (*paired, read[named[0]].name):
            note(f"{run.name}: not compared, because it has other inputs than --baseline")
        elif not named and run.is_per_input and run.name not in paired:
            note(f"{run.name}: not compared, because no fixed-sigma run has its model, sigma0 and n; give --baseline")
    if as_json:
        written = {
            "report": str(opened),
            "runs": [run.name for run in made.runs],
            "pairs": paired,
            "tables": [table.name for table in made.tables],
            "figures": [drawing.name for drawing in made.figures],
        }
        out_console.print_json(json.dumps(written))
        return
    say(f"page:    {opened}")
    say(f"text:    {out / TEXT}")
    say(f"tables:  {len(made.tables)} in {out / 'tables'}, as Markdown, LaTeX and CSV")
    say(f"figures: {len(made.figures)} in {out / 'figures'}, as PNG and PDF")


def _on_common_inputs(runs: "dict[Path, Run]") -> "dict[Path, Run]":
    """All runs restricted to their common inputs, in one order."""
    from sigmax.metrics import common_inputs

    shared, *rest = (run.table for run in runs.values())
    for table in rest:
        shared, _ = common_inputs(shared, table)
    note(f"compared on the {len(shared):,} inputs that all runs have")
    return {place: replace(run, table=common_inputs(run.table, shared)[0]) for place, run in runs.items()}


def _renamed(runs: "dict[Path, Run]", names: dict[str, str]) -> "dict[Path, Run]":
    """The runs, renamed where `names` has a new name."""
    if unknown := set(names) - {run.name for run in runs.values()}:
        known = ", ".join(run.name for run in runs.values())
        raise InvalidInputError(f"expected --name RUN=NAME with a run among {known}, got {min(unknown)!r}")
    return {
        place: replace(run, table=replace(run.table, name=names.get(run.name, run.name))) for place, run in runs.items()
    }


def _parse_inputs(text: str | None) -> list[int]:
    try:
        return [int(index) for index in text.split(",")] if text is not None else []
    except ValueError:
        raise InvalidInputError(f"expected --pictured like 20,400, got {text!r}") from None


def _source(data: str | None, runs: "Sequence[Run]") -> "ImageSource | None":
    """The data set of --data, otherwise that of the runs, if it is there and unchanged."""
    from sigmax.data import load_source
    from sigmax.report.entries import entries

    if data is not None:
        return load_source(data)
    reference = next((run.spec.data for run in runs if run.spec), None)
    try:
        source = reference and reference.load()
    except DataError as error:
        note(f"no pictures: {error}")
        return None
    return source if source and any(run.fits(source) for run in entries(runs)) else None
