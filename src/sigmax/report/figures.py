"""Figures from runs."""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sigmax.data import ImageSource
from sigmax.files import write_atomically
from sigmax.records import ABSTAIN, CertificateTable, Run
from sigmax.report.canvas import (
    COLOURS,
    COLUMN,
    GREY,
    IN_A_LEGEND,
    LINES,
    PAGE,
    STYLE,
    draw_image,
    literal,
    new_figure,
    new_panels,
    render,
    shade,
    size_of,
    split,
)
from sigmax.report.grouping import (
    Pair,
    Section,
    group_by,
    initial_sigma,
    method_of,
    search_name,
    search_of,
    steps_of,
)
from sigmax.report.metrics import (
    average_certified_radius,
    common_inputs,
    counted_radii,
    envelope,
    kind_of_answers,
)
from sigmax.report.results import has_times, run_acr
from sigmax.rounding import format_down, format_duration, format_nearest

_LINE = 0.25  # of a title
_BINS = 30
_OF_EACH = 2  # pictures
_BELOW_LEGEND = 0.54  # of the height of a panel
_UNIT = "(input units)"
_Look = dict[str, Any]  # of a line: label, colour and style


@mpl.rc_context(STYLE)
def draw_accuracy(section: Section) -> Figure:
    """Certified accuracy by radius: a row for each search, with a panel for each sigma0 and one of the envelopes.

    A row has the runs of its search, and beside them those of none; a family is drawn as the best of its runs at this
    sigma0. A panel that only other searches have a run for is left out.
    Runs whose records do not say their sigma0 share a panel, each as a line of its own.
    """
    searches = [name for name in group_by(section.runs, search_name) if name] or [""]
    searched = {(initial_sigma(run), search_name(run)) for run in section.runs}
    sigmas = sorted({sigma for sigma, _ in searched if sigma is not None})
    unknown = [run for run in section.runs if initial_sigma(run) is None]
    has_envelopes = len(section.runs) > 1 and len(sigmas) + len(unknown) > 1
    count = len(sigmas) + bool(unknown) + has_envelopes
    width, height = size_of(count)
    figure = new_figure(width, height * len(searches))
    rows = [figure] if len(searches) == 1 else np.ravel(np.asarray(figure.subfigures(len(searches), 1)))
    grid = _radius_grid([run.table for run in section.runs])
    families = section.families
    styles = _family_styles(sorted(set(families.values())))
    looks = {name: {"label": literal(family), **styles[family]} for name, family in families.items()}  # of each run
    for row, search in zip(rows, searches, strict=True):
        runs = [run for run in section.runs if search_name(run) in ("", search)]
        panels = split(row, count)
        for axes, sigma in zip(panels, sigmas, strict=False):
            _draw_families(axes, grid, [run for run in runs if initial_sigma(run) == sigma], looks)
            axes.set_visible((sigma, search) in searched or searched.isdisjoint((sigma, name) for name in searches))
            axes.set_title(rf"$\sigma_0 = {sigma:g}$")
        if unknown:
            _draw_single_runs(panels[len(sigmas)], grid, unknown, looks)
        if has_envelopes:
            _draw_families(panels[-1], grid, runs, looks)
            panels[-1].set_title("best at each radius")
        if len(styles) <= IN_A_LEGEND and (has_envelopes or not unknown):
            panels[-1].legend(loc="upper right")
        _finish_curves([axes for axes in panels if axes.get_visible()], grid, section.runs[0].table.norm)
        if len(searches) > 1:
            row.suptitle(literal(search), fontsize=9, fontweight="bold")
    if len(styles) > IN_A_LEGEND:
        lines = [Line2D([], [], label=literal(family), **style) for family, style in styles.items()]
        figure.legend(handles=lines, loc="outside lower center", ncols=IN_A_LEGEND)
    return figure


@mpl.rc_context(STYLE)
def draw_steps(series: Sequence[Sequence[Run]]) -> Figure:
    """Certified accuracy by radius with more and more steps K of the search, a panel for each series."""
    figure, panels = new_panels(len(series), taller=_LINE)
    grid = _radius_grid([run.table for runs in series for run in runs])
    steps = sorted({steps_of(run) for runs in series for run in runs})
    shades = [shade(COLOURS[0], strength) for strength in np.linspace(0.3, 1.0, len(steps))]
    colours = dict(zip(steps, shades, strict=True))
    for axes, runs in zip(panels, series, strict=True):
        for run in runs:
            _draw_curve(axes, grid, [run.table], color=colours[steps_of(run)])
        axes.set_title(f"{_title(runs[0])}\nACR {', '.join(format_nearest(run_acr(run)) for run in runs)}")
    lines = [Line2D([], [], color=colour, label=f"$K$ = {k:,}") for k, colour in colours.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=IN_A_LEGEND)
    _finish_curves(panels, grid, series[0][0].table.norm)
    return figure


@mpl.rc_context(STYLE)
def draw_sigmas(runs: Sequence[Run], pairs: Sequence[Pair]) -> Figure:
    """How sigma* is spread over the inputs, and which of them gained over their baseline, where there is one."""
    baselines = {pair.run.name: pair.baseline for pair in pairs}
    figure, panels = new_panels(len(runs))
    for axes, run in zip(panels, runs, strict=True):
        sigma, gained = run.table.sigma, np.zeros(len(run.table), dtype=bool)
        has_baseline = run.name in baselines
        if has_baseline:
            ours, theirs = common_inputs(run.table, baselines[run.name].table)
            sigma, gained = ours.sigma, counted_radii(ours) > counted_radii(theirs)
        parts = {
            f"radius gained ({gained.sum():,})": (sigma[gained], COLOURS[0]),
            f"not gained ({(~gained).sum():,})": (sigma[~gained], "#BBBBBB"),
        }
        if not has_baseline:
            parts = {f"no baseline ({len(sigma):,})": (sigma, COLOURS[5])}
        axes.hist(
            [values for values, _ in parts.values()],
            bins=_bins(sigma, initial_sigma(run)).tolist(),
            stacked=True,
            color=[colour for _, colour in parts.values()],
            label=list(parts),
            rwidth=0.9,
        )
        if initial := initial_sigma(run):
            axes.axvline(initial, ymax=_BELOW_LEGEND, color="black", lw=0.8, ls="--")
            axes.text(
                initial, _BELOW_LEGEND, r"$\sigma_0$", transform=axes.get_xaxis_transform(), ha="center", va="bottom"
            )
        axes.set(xlabel=rf"$\sigma^\ast$ {_UNIT}", title=_title(run, *_steps(run)))
        axes.set_ylim(top=axes.dataLim.ymax / (_BELOW_LEGEND - 0.03))
        axes.legend(loc="upper center")
    panels[0].set_ylabel("inputs")
    return figure


@mpl.rc_context(STYLE)
def draw_gains(pairs: Sequence[Pair]) -> Figure:
    """The radius that each input gained over the baseline, from the largest gain to the largest loss."""
    figure, panels = new_panels(len(pairs))
    for axes, pair in zip(panels, pairs, strict=True):
        ours, theirs = common_inputs(pair.run.table, pair.baseline.table)
        gain = np.sort(counted_radii(ours) - counted_radii(theirs))[::-1]
        share = 100 * (np.arange(len(gain)) + 0.5) / len(gain)
        for sign, colour, word in ((gain > 0, COLOURS[0], "gained"), (gain < 0, COLOURS[1], "lost")):
            label = f"{word}: {sign.sum():,} of {len(gain):,}"
            axes.fill_between(share, np.where(sign, gain, 0.0), color=colour, lw=0, step="mid", label=label)
        axes.axhline(0, color="black", lw=0.6)
        axes.axhline(gain.mean(), color=GREY, lw=0.8, ls="--", label=f"mean {gain.mean():+.3f}")
        axes.set(xlim=(0, 100), xlabel="inputs, by gain (%)", title=_title(pair.run, *_steps(pair.run)))
        axes.legend(loc="upper right")
    panels[0].set_ylabel(f"{_norm_symbol(pairs[0].run.table.norm)} radius gained {_UNIT}")
    return figure


@mpl.rc_context(STYLE)
def draw_runtime(runs: Sequence[Run]) -> Figure:
    """Seconds per input, mean and median, with the total of each run."""
    timed = [run for run in runs if has_times(run)]
    figure = new_figure(COLUMN, 0.75 + 0.2 * len(timed))
    axes = figure.subplots()
    places = np.arange(len(timed))[::-1]
    means = np.array([run.table.seconds.mean() for run in timed])
    axes.plot(means, places, "o", color=COLOURS[0], ms=4, label="mean")
    medians = [np.median(run.table.seconds) for run in timed]
    axes.plot(medians, places, "|", color=COLOURS[1], mew=1.5, ms=8, label="median")
    for place, run in zip(places, timed, strict=True):
        axes.annotate(
            format_duration(float(run.table.seconds.sum())),
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
        )
    axes.annotate("total", (1.02, 1), xycoords="axes fraction", va="bottom", fontsize=7)
    axes.set(xlabel="time per input (s)", xlim=(0, None), ylim=(-0.6, len(timed) - 0.4))
    axes.set_yticks(places, [literal(name) for name in short_names(timed)])
    axes.grid(axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, borderaxespad=0)
    return figure


@mpl.rc_context(STYLE)
def draw_pictures(run: Run, source: ImageSource, *, baseline: Run | None = None, inputs: Sequence[int] = ()) -> Figure:
    """Inputs clean, under noise at sigma0 and under noise at sigma*: extreme ones that are answered correctly.

    `inputs` are others to show instead, each by its index; those that the run does not have are left out.
    """
    table = run.table
    chosen = _rows_at(table, inputs) if inputs else _extreme_rows(run, baseline)
    images = source.images([int(table.idx[row]) for row, _ in chosen])  # k channels height width
    levels = [("clean", None), (r"noise at $\sigma_0$", initial_sigma(run)), (r"noise at $\sigma^\ast$", table.sigma)]
    levels = [(name, level) for name, level in levels if name == "clean" or level is not None]
    side = PAGE / (max(len(chosen), 2 * _OF_EACH) + 0.3)
    figure = new_figure(PAGE, len(levels) * side + 0.65)
    grid = figure.subplots(len(levels), len(chosen), squeeze=False)
    for column, ((row, why), image) in enumerate(zip(chosen, images, strict=True)):
        draw = np.random.default_rng(int(table.idx[row]))
        noise = draw.uniform(-1, 1, image.shape) if table.norm == 1 else draw.standard_normal(image.shape)
        for axes, (name, level) in zip(grid[:, column], levels, strict=True):
            sigma = 0.0 if level is None else np.broadcast_to(level, len(table))[row]
            draw_image(axes, image + sigma * noise)
            if column == 0:
                axes.set_ylabel(name)
        radius, sigma_star = format_down(table.radius[row], 3), format_nearest(table.sigma[row], 3)
        numbers = rf"$R$ = {radius}, $\sigma^\ast$ = {sigma_star}"
        said = literal(_answer(int(table.predict[row]), int(table.label[row]), source.class_names))
        grid[0, column].set_title(f"{why}\n{said}\n{numbers}", fontsize=7)
    return figure


@mpl.rc_context(STYLE)
def compare_runs(
    tables: Sequence[tuple[str, CertificateTable]],
    images: NDArray[np.float32],
    rows: Sequence[int],
    path: Path,
) -> None:
    """Curves of certified accuracy, above pictures with what the last table says of them.

    Args:
        tables: Each with its name in the legend.
        images: (k, channels, height, width) in [0, 1].
        rows: The row of the last table that each image belongs to.
        path: Where the PNG goes.
    """
    figure = new_figure(PAGE, 5.0)
    upper, lower = np.ravel(np.asarray(figure.subfigures(2, 1, height_ratios=(2.4, 1))))
    axes = upper.subplots()
    grid = _radius_grid([table for _, table in tables])
    for (name, table), colour in zip(tables, cycle(COLOURS), strict=False):
        acr = format_nearest(average_certified_radius(table))
        _draw_curve(axes, grid, [table], label=literal(f"{name} ({kind_of_answers(table)}), ACR {acr}"), color=colour)
    _, table = tables[-1]
    _finish_curves([axes], grid, table.norm)
    axes.legend(loc="upper right")
    pictures = lower.subplots(1, len(rows), squeeze=False)[0]
    for picture, image, row in zip(pictures, images, rows, strict=True):
        draw_image(picture, image)
        answer = "abstains" if table.predict[row] == ABSTAIN else f"says {table.predict[row]}"
        sigma, radius = format_nearest(table.sigma[row], 3), format_down(table.radius[row], 3)
        picture.set_title(f"{answer}\n$\\sigma$ = {sigma}\nradius {radius}")
    write_atomically(path, render(figure)["png"])


def short_names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs without the words that all of them begin with."""
    words = [re.split(r"(?<=[-_/ ])", run.name) for run in runs]
    while len(words) > 1 and len({parts[0] for parts in words}) == 1 and min(map(len, words)) > 1:
        words = [parts[1:] for parts in words]
    return ["".join(parts) for parts in words]


def _radius_grid(tables: Sequence[CertificateTable]) -> NDArray[np.float64]:
    """Radii close enough for smooth lines, to a little beyond the largest that counts."""
    largest = max(float(counted_radii(table).max(initial=0.0)) for table in tables)
    return np.linspace(0.0, 1.05 * largest or 1.0, 1001)


def _family_styles(families: Sequence[str]) -> dict[str, _Look]:
    """A colour for each way of training, and a line for what is made of it: one sigma, DS, DS^2."""
    lines = dict(zip(("", "-ds", "-ds2", "-ds2-fixed"), LINES, strict=False))
    parts = {}
    for family in families:
        name, _, more = family.partition(", ")  # its network or sampling, where that tells it from others
        made = next((ending for ending in lines if ending and name.endswith(ending)), "")
        parts[family] = (name.removesuffix(made), more), made
    colours = dict(zip(dict.fromkeys(way for way, _ in parts.values()), cycle(COLOURS), strict=False))
    if len(colours) == len(families):  # nothing to tell apart by lines: they help the colours
        ways = zip(families, colours.values(), cycle(LINES), strict=False)
        return {family: {"color": colour, "ls": line} for family, colour, line in ways}
    return {family: {"color": colours[way], "ls": lines[made]} for family, (way, made) in parts.items()}


def _draw_families(axes: Axes, grid: NDArray[np.float64], runs: Sequence[Run], looks: Mapping[str, _Look]) -> None:
    for members in group_by(runs, lambda run: str(looks[run.name]["label"])).values():
        _draw_curve(axes, grid, [run.table for run in members], **looks[members[0].name])


def _draw_single_runs(axes: Axes, grid: NDArray[np.float64], runs: Sequence[Run], looks: Mapping[str, _Look]) -> None:
    names = dict(zip((run.name for run in runs), short_names(runs), strict=True))
    for members in group_by(runs, lambda run: str(looks[run.name]["label"])).values():
        for run, line in zip(members, cycle(LINES), strict=False):
            _draw_curve(axes, grid, [run.table], **looks[run.name] | {"label": literal(names[run.name]), "ls": line})
    axes.set_title("single runs")
    axes.legend(loc="upper right")


def _draw_curve(axes: Axes, grid: NDArray[np.float64], tables: Sequence[CertificateTable], **style: Any) -> None:
    """The envelope of the tables, down to 0; of one table its own curve."""
    accuracy = envelope(tables, grid).accuracy
    end = int(np.count_nonzero(accuracy)) + 1
    axes.step(grid[:end], accuracy[:end], where="pre", **style)


def _finish_curves(panels: Sequence[Axes], grid: NDArray[np.float64], norm: int) -> None:
    for axes in panels:
        axes.set(xlim=(0, grid[-1]), ylim=(0, 1), xlabel=f"{_norm_symbol(norm)} radius {_UNIT}")
        axes.grid()
    panels[0].set_ylabel("certified accuracy")


def _norm_symbol(norm: int) -> str:
    return rf"$\ell_{norm}$"


def _title(run: Run, *more: str) -> str:
    sigma = initial_sigma(run)
    below = [*([] if sigma is None else [rf"$\sigma_0 = {sigma:g}$"]), *more]
    return "\n".join([literal(method_of(run)), *([", ".join(below)] if below else [])])


def _steps(run: Run) -> list[str]:
    """K, of an ascent."""
    return [f"$K$ = {steps_of(run):,}"] if search_of(run).get("kind") == "AscentSearch" else []


def _bins(sigma: NDArray[np.float64], initial: float | None) -> NDArray[np.float64]:
    """Edges of equal bins over all sigmas, with sigma0, which many keep, in the middle of one."""
    low, high = float(sigma.min()), float(sigma.max())
    width = max((high - low) / _BINS, 1e-4)
    middle = low if initial is None else initial
    # What rounding puts on an edge gets a bin more.
    below, above = (np.ceil(reach / width - 0.5 + 1e-6) for reach in (middle - low, high - middle))
    return middle + width * (np.arange(-below, above + 2) - 0.5)


def _answer(predict: int, label: int, names: Sequence[str]) -> str:
    if predict == label:
        return names[label]
    return f"{'abstains' if predict == ABSTAIN else names[predict]}; is {names[label]}"


def _rows_at(table: CertificateTable, inputs: Sequence[int]) -> list[tuple[int, str]]:
    places = {idx: row for row, idx in enumerate(table.idx.tolist())}
    return [(places[idx], f"input {idx}") for idx in dict.fromkeys(inputs) if idx in places]


def _extreme_rows(run: Run, baseline: Run | None) -> list[tuple[int, str]]:
    """Rows of correct answers with the largest and the smallest sigma*, and with the largest gain; each once."""
    table = run.table
    right = np.flatnonzero(table.is_correct)
    by_sigma = right[np.argsort(table.sigma[right], kind="stable")]
    order = [(by_sigma[::-1], "largest $\\sigma^\\ast$"), (by_sigma, "smallest $\\sigma^\\ast$")]
    if baseline is not None:
        ours, theirs = common_inputs(table, baseline.table)
        gain = dict(zip(ours.idx.tolist(), (counted_radii(ours) - counted_radii(theirs)).tolist(), strict=True))
        by_gain = sorted(right.tolist(), key=lambda row: -gain.get(int(table.idx[row]), -inf))
        order.append((np.array(by_gain), "largest gain"))
    chosen: dict[int, str] = {}
    for rows, why in order:
        for row in [int(row) for row in rows if int(row) not in chosen][:_OF_EACH]:
            chosen[row] = why
    return list(chosen.items())
