"""A report on runs: tables, figures and the page in one folder, from records only."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import final

import numpy as np
from matplotlib.figure import Figure

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.files import write_atomically
from sigmax.records import Run
from sigmax.report.canvas import render
from sigmax.report.figures import (
    draw_accuracy,
    draw_gains,
    draw_pictures,
    draw_runtime,
    draw_sigmas,
    draw_steps,
)
from sigmax.report.grouping import (
    Pair,
    Section,
    by_steps,
    fits,
    is_per_input,
    pairs,
    sections,
    slug,
    telling_runs,
    with_distinct_names,
)
from sigmax.report.metrics import common_radii
from sigmax.report.page import render_page
from sigmax.report.results import (
    SETTINGS,
    accuracy_table,
    best_table,
    chosen_table,
    comparison_table,
    gain_table,
    has_times,
    overview_table,
    runtime_table,
    scope,
    scope_of_pairs,
    settings_table,
)
from sigmax.report.tables import ResultTable, to_csv, to_latex, to_markdown

TEXT, PAGE, FILES = "report.md", "index.html", "files.txt"
TITLE = "Certified robustness"
_FORMATS = {"md": to_markdown, "tex": to_latex, "csv": to_csv}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFigure:
    """A figure with what its caption must say."""

    name: str  # of its files
    caption: str
    figure: Figure


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of a report, before it is written."""

    title: str
    notes: tuple[str, ...]
    runs: tuple[Run, ...]
    pairs: tuple[Pair, ...]
    source: ImageSource | None
    tables: tuple[ResultTable, ...]
    figures: tuple[ResultFigure, ...]
    text: str  # Markdown, with links to the figures

    def write(self, out: Path) -> Path:
        """Write it into a folder, every file whole or not at all; return the path to open first."""
        files = {
            f"tables/{table.name}.{suffix}": convert(table).encode()
            for table in self.tables
            for suffix, convert in _FORMATS.items()
        }
        for drawing in self.figures:
            for suffix, content in render(drawing.figure).items():
                files[f"figures/{drawing.name}.{suffix}"] = content
        page = render_page(
            self.runs,
            title=self.title,
            tables=[table for table in self.tables if table.name != SETTINGS],  # the page has its own
            notes=self.notes,
            source=self.source,
            pairs=self.pairs,
        )
        try:
            before = _listed(out)
            _list_files(out, before | set(files))  # both, should it be killed in between
            for name, content in (files | {TEXT: self.text.encode(), PAGE: page}).items():
                write_atomically(out / name, content)
            for name in before - set(files):
                (out / name).unlink(missing_ok=True)
            _list_files(out, set(files))
        except OSError as error:
            raise RecordError(f"expected to write the report into {out}, got: {error}") from error
        return out / PAGE


def _listed(out: Path) -> set[str]:
    """The tables and figures of an earlier report in this folder."""
    path = out / FILES
    names = path.read_text().splitlines() if path.exists() else []
    return {name for name in names if re.fullmatch(r"(tables|figures)/[\w.-]+", name)}


def _list_files(out: Path, names: Iterable[str]) -> None:
    write_atomically(out / FILES, "".join(f"{name}\n" for name in sorted(names)).encode())


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    title: str = TITLE,
    source: ImageSource | None = None,
    tables: Sequence[ResultTable] = (),
    notes: Sequence[str] = (),
    radii: Sequence[float] | None = None,
    baseline: Run | None = None,
    pictured: Sequence[int] = (),
) -> Path:
    """Write tables, figures and the page of these runs into the folder `out`; return the page.

    Args:
        runs: What to report on. Only runs over the same inputs in the same norm share a table of the best.
        out: The folder.
        title: Of the report.
        source: The data set of the runs, for pictures.
        tables: Further tables, such as the numbers of a paper beside ours.
        notes: Paragraphs at the top, such as what was scaled down.
        radii: Where certified accuracy is reported; by default the usual radii up to the largest certified.
        baseline: The run that per-input runs are measured against; by default the fixed-sigma run of their model.
        pictured: Inputs to draw under noise, by their index; by default extreme ones of each run.
    """
    report = compose_report(
        runs,
        title=title,
        source=source,
        tables=tables,
        notes=notes,
        radii=radii,
        baseline=baseline,
        pictured=pictured,
    )
    return report.write(out)


def compose_report(
    runs: Sequence[Run],
    *,
    title: str = TITLE,
    source: ImageSource | None = None,
    tables: Sequence[ResultTable] = (),
    notes: Sequence[str] = (),
    radii: Sequence[float] | None = None,
    baseline: Run | None = None,
    pictured: Sequence[int] = (),
) -> Report:
    """Compute a report without writing anything; see `write_report`."""
    named = [i for i, run in enumerate(runs) if run is baseline]
    runs = with_distinct_names(runs)
    _check_runs(runs, source)
    _check_pictured(runs, source, pictured)
    found = pairs(runs, named=runs[named[0]] if named else baseline)
    results: list[ResultTable] = []
    figures: list[ResultFigure] = []
    blocks = [f"# {title}", *notes]
    for section in sections(runs):
        own = [pair for pair in found if any(pair.run is run for run in section.runs)]
        part, drawn = _tables(section, own, radii), _figures(section, own, source, pictured)
        blocks += [f"## {section.title}", *map(_table_text, part), *map(_figure_text, drawn)]
        results += part
        figures += drawn
    if tables:
        blocks += ["## Further tables", *map(_table_text, tables)]
    settings = settings_table(runs)
    blocks += ["## Settings", _table_text(settings)]
    return Report(
        title=title,
        notes=tuple(notes),
        runs=tuple(runs),
        pairs=tuple(found),
        source=source,
        tables=(*results, *tables, settings),
        figures=tuple(figures),
        text="\n\n".join(blocks) + "\n",
    )


def _table_text(table: ResultTable) -> str:
    return f"{table.caption}\n\n{to_markdown(table).rstrip()}"


def _figure_text(drawing: ResultFigure) -> str:
    return f"![{drawing.name}](figures/{drawing.name}.png)\n\n{drawing.caption}"


def _check_runs(runs: Sequence[Run], source: ImageSource | None) -> None:
    if not runs:
        raise InvalidInputError("expected at least one run, got none")
    for run in runs:
        if not len(run.table):
            raise InvalidInputError(f"expected certificates to report on, got an empty table {run.name}")
    if source is not None and not any(fits(source, run) for run in runs):
        raise InvalidInputError(f"expected the data set of the runs, got {source.name}, whose labels or images differ")


def _check_pictured(runs: Sequence[Run], source: ImageSource | None, pictured: Sequence[int]) -> None:
    if pictured and not _has_pictures(source):
        raise InvalidInputError("expected a data set of images to draw inputs of, got none; name it by --data")
    missing = [index for index in pictured if not any(index in run.table.idx for run in runs if is_per_input(run))]
    if missing:
        raise InvalidInputError(f"expected inputs to draw that a per-input run has, got {missing[0]}")


def _has_pictures(source: ImageSource | None) -> bool:
    return source is not None and len(source.shape) == 3 and source.shape[0] in (1, 3)


def _tables(section: Section, found: Sequence[Pair], radii: Sequence[float] | None) -> list[ResultTable]:
    at = radii or common_radii([run.table for run in section.runs])
    tables = [overview_table(section), accuracy_table(section, at)]
    if len(section.runs) > 1:
        tables.append(best_table(section, at))
    if len(section.runs) > len(section.methods):
        tables.append(chosen_table(section, at))
    if found:
        tables += [comparison_table(section, found), gain_table(section, found, at)]
    if any(map(has_times, section.runs)):
        tables.append(runtime_table(section))
    return tables


def _figures(
    section: Section, found: Sequence[Pair], source: ImageSource | None, pictured: Sequence[int]
) -> list[ResultFigure]:
    said = scope(section.runs)
    figures = [
        ResultFigure(
            name=section.file("accuracy"),
            caption="Certified accuracy by radius, for each search: of each method the best of its runs at each radius "
            "(K and, in the last panel, sigma0 among those that the method has are chosen on the same inputs; the "
            f"best of more is larger by itself): {said}.",
            figure=draw_accuracy(section),
        )
    ]
    if series := by_steps(section.runs):
        figures.append(
            ResultFigure(
                name=section.file("steps"),
                caption=f"Certified accuracy by radius as the steps K of the search grow: {scope([*chain(*series)])}.",
                figure=draw_steps(series),
            )
        )
    telling = [run for run in telling_runs(section.runs) if np.isfinite(run.table.sigma).all()]
    paired = {pair.run.name: pair for pair in found}
    shown = [paired[run.name] for run in telling if run.name in paired]
    if telling:
        figures.append(
            ResultFigure(
                name=section.file("sigma"),
                caption="sigma* over the inputs, with those whose radius grew over the baseline where there is one, "
                f"of the run with the largest ACR, over all searches, at each sigma0: {scope(telling)}.",
                figure=draw_sigmas(telling, shown),
            )
        )
    if shown:
        figures.append(
            ResultFigure(
                name=section.file("gain"),
                caption="Radius gained by each input over the baseline, wrong answers counting as 0, of the runs whose "
                f"sigma* is shown above: {scope_of_pairs(shown)}.",
                figure=draw_gains(shown),
            )
        )
    if any(map(has_times, section.runs)):
        figures.append(
            ResultFigure(
                name=section.file("runtime"),
                caption=f"Time per input, and in all: {said}.",
                figure=draw_runtime(section.runs),
            )
        )
    if source is not None and _has_pictures(source):
        figures += [
            ResultFigure(
                name=f"pictures-{slug(run.name)}",
                caption=f"Inputs of {run.name}{'' if pictured else ' that are answered correctly'}: clean, under noise "
                f"at sigma0 and at sigma*: {scope([run])}.",
                figure=draw_pictures(
                    run,
                    source,
                    baseline=paired[run.name].baseline if run.name in paired else None,
                    inputs=pictured,
                ),
            )
            for run in telling
            if fits(source, run)
            and (np.isin(pictured, run.table.idx).any() if pictured else run.table.is_correct.any())
        ]
    return figures
