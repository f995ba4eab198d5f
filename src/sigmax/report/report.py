"""A report on runs: tables, figures and the page in one folder, from records only."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from matplotlib.figure import Figure

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.files import write_atomically
from sigmax.report import figures, results
from sigmax.report.canvas import render
from sigmax.report.entries import Entry, entries, slug
from sigmax.report.metrics import CONFIDENCE, common_radii
from sigmax.report.page import render_page
from sigmax.report.pairing import Pair, pairs
from sigmax.report.results import scope
from sigmax.report.sections import Section, by_steps, sections, telling_runs
from sigmax.report.tables import ResultTable, to_csv, to_latex, to_markdown, with_scope
from sigmax.runs import Run

TEXT, PAGE, FILES = "report.md", "index.html", "files.txt"
_WRITERS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


class ResultFigure(NamedTuple):
    """A figure with its caption."""

    name: str  # of its files
    caption: str
    figure: Figure
    scope: str  # what its runs are


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of a report, before it is written."""

    text: str  # Markdown, with links to the figures
    page: bytes  # HTML
    runs: list[Entry]
    pairs: list[Pair]
    tables: list[ResultTable]
    figures: list[ResultFigure]

    def write(self, out: Path) -> Path:
        """Write it over an earlier report in this folder, each file whole or not at all; return the path to open."""
        files = {f"tables/{t.name}.{suffix}": to(t).encode() for t in self.tables for suffix, to in _WRITERS.items()}
        for drawing in self.figures:
            files |= {f"figures/{drawing.name}.{suffix}": made for suffix, made in render(drawing.figure).items()}
        try:
            listed = (out / FILES).read_text().splitlines() if (out / FILES).exists() else []
            before = {name for name in listed if re.fullmatch(r"(tables|figures)/[\w.-]+", name)}
            _list_files(out, before | set(files))  # both, should it be killed in between
            for name, content in (files | {TEXT: self.text.encode(), PAGE: self.page}).items():
                write_atomically(out / name, content)
            for name in before - set(files):
                (out / name).unlink(missing_ok=True)
            _list_files(out, set(files))
        except OSError as error:
            raise RecordError(f"expected to write the report into {out}, got: {error}") from error
        return out / PAGE


def _list_files(out: Path, names: set[str]) -> None:
    write_atomically(out / FILES, "".join(f"{name}\n" for name in sorted(names)).encode())


def compose_report(
    runs: Sequence[Run],
    *,
    title: str = "Certified robustness",
    source: ImageSource | None = None,
    tables: Sequence[ResultTable] = (),
    notes: Sequence[str] = (),
    radii: Sequence[float] | None = None,
    baseline: Run | None = None,
    pictured: Sequence[int] = (),
) -> Report:
    """Compute the report on these runs, without writing anything.

    Args:
        runs: What to report on. Only runs over the same inputs in the same norm share a table of the best.
        title: Of the report.
        source: The data set of the runs, for pictures.
        tables: Further tables, such as the numbers of a paper beside ours.
        notes: Paragraphs at the top, such as what was scaled down.
        radii: Where certified accuracy is reported; by default the usual radii up to the largest certified.
        baseline: What all other runs are measured against; by default, per-input runs against their fixed-sigma run.
        pictured: Inputs to draw under noise, by their index; by default extreme ones of each run.
    """
    shown = entries(runs)
    _check(shown, source, pictured)
    found = pairs(shown, named=next((entry for entry, run in zip(shown, runs, strict=True) if run is baseline), None))
    made: list[ResultTable] = []
    drawn: list[ResultFigure] = []
    blocks = [f"# {title}", *notes]
    for section in sections(shown):
        own = [pair for pair in found if pair.run in section.runs]
        here, drawings = _tables(section, own, radii), list(_figures(section, own, source, pictured))
        said, points = scope(section.runs), results.headlines(section, own)
        blocks += [f"## {section.title}", *(f"**{point}**" for point in points), f"All of it: {said}."]
        blocks += [_text(table, section.runs) for table in here]
        for drawing in drawings:
            caption = with_scope(drawing.caption, results.left_to_say(drawing.scope, section.runs))
            blocks.append(f"![{drawing.name}](figures/{drawing.name}.png)\n\n{caption}")
        made, drawn = made + here, drawn + drawings
    settings = results.settings_table(shown)
    blocks += ["## Further tables", *map(_text, tables)] if tables else []
    blocks += ["## Settings", _text(settings)]
    return Report(
        text="\n\n".join(blocks) + "\n",
        page=render_page(shown, title=title, tables=[*made, *tables], notes=notes, source=source, pairs=found),
        runs=shown,
        pairs=found,
        tables=[*made, *tables, settings],
        figures=drawn,
    )


def _text(table: ResultTable, runs: Sequence[Entry] = ()) -> str:
    """A table below its caption, without what was said of all runs already."""
    caption = with_scope(table.caption, results.left_to_say(table.scope, runs) if runs else table.scope)
    return f"{caption}\n\n{to_markdown(table).rstrip()}"


def _check(runs: Sequence[Entry], source: ImageSource | None, pictured: Sequence[int]) -> None:
    if not runs:
        raise InvalidInputError("expected at least one run, got none")
    if empty := [run.name for run in runs if not len(run.table)]:
        raise InvalidInputError(f"expected certificates to report on, got an empty table {empty[0]}")
    if source and not any(run.fits(source) for run in runs):
        raise InvalidInputError(f"expected the data set of the runs, got {source.name}, whose labels or images differ")
    if pictured and not (source and _has_pictures(source)):
        raise InvalidInputError("expected a data set of images to draw inputs of, got none; name it by --data")
    if missing := set(pictured) - {index for run in runs if run.is_per_input for index in run.table.idx.tolist()}:
        raise InvalidInputError(f"expected inputs to draw that a per-input run has, got {min(missing)}")


def _has_pictures(source: ImageSource) -> bool:
    return len(source.shape) == 3 and source.shape[0] in (1, 3)


def _tables(section: Section, found: Sequence[Pair], radii: Sequence[float] | None) -> list[ResultTable]:
    at = radii or common_radii([run.table for run in section.runs])
    tables = [results.overview_table(section, found), results.accuracy_table(section, at)]
    tables += [results.best_table(section, at)] if len(section.runs) > 1 else []
    tables += [results.chosen_table(section, at)] if len(section.runs) > len(section.series) else []
    tables += [results.comparison_table(section, found), results.gain_table(section, found, at)] if found else []
    tables += [results.orders_table(section)] if any(run.orders for run in section.runs) else []
    tables += [results.runtime_table(section)] if any(run.has_times for run in section.runs) else []
    return tables


def _figures(
    section: Section, found: Sequence[Pair], source: ImageSource | None, pictured: Sequence[int]
) -> Iterator[ResultFigure]:
    said = (
        "Certified accuracy by radius. A method has the best of its runs over K and, in the last panel, over sigma0; "
    )
    said += f"single runs have {100 * CONFIDENCE:g} % bands over inputs."
    yield ResultFigure(section.file("accuracy"), said, figures.draw_accuracy(section), scope(section.runs))
    if series := by_steps(section):
        said = f"Certified accuracy by radius as the steps K of the search grow.{results.at_note(section.runs)}"
        yield ResultFigure(section.file("steps"), said, figures.draw_steps(series), scope([*chain(*series)]))
    telling = telling_runs(section)
    paired = {pair.run: pair for pair in found if pair.run in telling}
    if telling:
        said = "sigma* over the inputs, of the run with the largest ACR at each sigma0, and which inputs gained radius."
        drawing = figures.draw_sigmas(telling, [*paired.values()])
        yield ResultFigure(section.file("sigma"), said, drawing, scope(telling))
    if shown := [paired[run] for run in telling if run in paired]:
        said = "Radius gained by each input over the baseline, of the same runs; wrong answers count as 0."
        yield ResultFigure(section.file("gain"), said, figures.draw_gains(shown), results.scope_of_pairs(shown))
    if any(run.has_times for run in section.runs):
        drawing = figures.draw_runtime(section.runs)
        yield ResultFigure(section.file("runtime"), "Time per input, and in all.", drawing, scope(section.runs))
    if source and _has_pictures(source):
        rows = {run: np.isin(run.table.idx, pictured) if pictured else run.table.is_correct for run in telling}
        for run in [run for run in telling if rows[run].any() and run.fits(source)]:
            said = f"Inputs of {run.name}{'' if pictured else ' that are answered correctly'}, without and with noise."
            drawing = figures.draw_pictures(run, source, paired[run].baseline if run in paired else None, pictured)
            yield ResultFigure(f"pictures-{slug(run.name)}", said, drawing, scope([run]))
