"""Figures from runs: curves of the same series as the tables, sigma*, gains, times, and inputs under noise."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from sigmax.data import ImageSource
from sigmax.noise import find_noise
from sigmax.report import canvas, metrics
from sigmax.report.canvas import COLOURS, PAGE, STYLE, literal
from sigmax.report.entries import Entry, joined
from sigmax.report.pairing import Pair
from sigmax.report.sections import Section, shared_backend
from sigmax.rounding import format_down, format_duration, format_nearest
from sigmax.runs import ABSTAIN, CertificateTable
from sigmax.streams import Stage, random_stream

_BINS = 30
_OF_EACH = 2  # pictures
_IN_A_LEGEND = 5  # methods; more go below the panels, so many in a row
_BELOW_LEGEND = 0.54  # of the height of a panel
_ACROSS = 110  # characters of a legend below the panels, with lines before its labels
_MOST_BANDS = 3  # in a panel: more would hide each other
_SINGLE = "single runs"  # the title of a panel
_UNIT = "(input units)"
_Style = dict[str, Any]  # of a line: colour and dashes
Curves = list[tuple[str, _Style, list[CertificateTable]]]  # label, style, and tables to draw the best of
Panels = list[tuple[str, Curves]]  # each with its title


@mpl.rc_context(STYLE)
def draw_accuracy(section: Section) -> Figure:
    """Certified accuracy by radius: for each search a row, with a panel for each sigma0 and one of the best over all.

    A row has the series of its search and those without a search. A sigma0 that only other searches have is left out.
    """
    styles = canvas.family_styles(sorted({family for family, _ in section.series}))
    backend = shared_backend(section.runs)
    title_of_legend = literal(f"run by {backend}") if backend else None
    searches = list(dict.fromkeys(search for _, search in section.series if search)) or [""]
    rows = [_panels(section, search, styles) for search in searches]
    figure, parts, places = canvas.new_panels(len(rows[0]), parts=len(rows))
    for part, search, row, axes in zip(parts, searches, rows, places, strict=True):
        draw_panels(row, axes, [run.table for run in section.runs])
        for (title, _), panel in zip(row, axes, strict=True):
            if title == _SINGLE or (panel is axes[-1] and len(styles) <= _IN_A_LEGEND):
                panel.legend(loc="upper right", title=title_of_legend)
        if len(rows) > 1:
            part.suptitle(literal(search), fontsize=9, fontweight="bold")
    if len(styles) > _IN_A_LEGEND:
        _legend_below(figure, {canvas.label(family): style for family, style in styles.items()}, title_of_legend)
    return figure


def _panels(section: Section, search: str, styles: Mapping[str, _Style]) -> Panels:
    """The panels of a row: one for each sigma0, one of logs that do not say theirs, and one of the best over all."""
    runs = section.runs
    shown = [(family, series) for (family, of), series in section.series.items() if of in ("", search)]
    panels: Panels = []
    for sigma in sorted({run.sigma0 for run in runs if run.sigma0 is not None}):
        searched = {run.search for run in runs if run.sigma0 == sigma} - {""}
        at = {family: [run.table for run in members if run.sigma0 == sigma] for family, members in shown}
        is_left_out = searched and search not in searched
        curves = [
            (canvas.label(name), styles[name], tables) for name, tables in at.items() if tables and not is_left_out
        ]
        panels.append((rf"$\sigma_0 = {sigma:g}$", curves))
    unknown = [run for run in runs if run.sigma0 is None]
    if unknown:
        named = dict(zip(short_names(unknown), unknown, strict=True))
        looks = canvas.family_styles([*named])
        panels.append((_SINGLE, [(canvas.label(name), looks[name], [run.table]) for name, run in named.items()]))
    if len(panels) > 1 or len(unknown) > 1:
        curves = [(canvas.label(family), styles[family], [run.table for run in members]) for family, members in shown]
        panels.append(("best at each radius", curves))
    return panels


@mpl.rc_context(STYLE)
def draw_steps(series: Sequence[Sequence[Entry]]) -> Figure:
    """Certified accuracy by radius with more and more steps K of the search, a panel for each series."""
    figure, _, (axes,) = canvas.new_panels(len(series), taller=0.25)  # for a line more of title
    steps = sorted({run.steps or 0 for runs in series for run in runs})
    shades = [canvas.shade(COLOURS[0], strength) for strength in np.linspace(0.3, 1.0, len(steps))]
    styles: dict[str, _Style] = {f"$K$ = {k:,}": {"color": shade} for k, shade in zip(steps, shades, strict=True)}
    panels: Panels = []
    for runs in series:
        curves = [(k, styles[k], [run.table]) for run in runs for k in [f"$K$ = {run.steps:,}"]]
        panels.append((f"{_title(runs[0])}\nACR {', '.join(run.acr_text for run in runs)}", curves))
    draw_panels(panels, axes, [run.table for runs in series for run in runs])
    _legend_below(figure, styles)
    return figure


@mpl.rc_context(STYLE)
def draw_sigmas(runs: Sequence[Entry], pairs: Sequence[Pair]) -> Figure:
    """How sigma* is spread over the inputs, and which of them gained over their baseline, where there is one."""
    baselines = {pair.run: pair.baseline.table for pair in pairs}
    figure, _, (panels,) = canvas.new_panels(len(runs))
    for axes, run in zip(panels, runs, strict=True):
        table, colours = run.table, [COLOURS[5]]
        parts = {f"no baseline ({len(table):,})": table.sigma}
        if run in baselines:
            table, baseline = metrics.common_inputs(table, baselines[run])
            is_gain, colours = metrics.gained_radii(table, baseline) > 0, [canvas.GAINED, canvas.REST]
            gained, rest = table.sigma[is_gain], table.sigma[~is_gain]
            parts = {f"radius gained ({len(gained):,})": gained, f"not gained ({len(rest):,})": rest}
        bins = _bins(table.sigma, run.sigma0).tolist()
        axes.hist(list(parts.values()), bins=bins, stacked=True, color=colours, label=list(parts), rwidth=0.9)
        if run.sigma0:
            axes.axvline(run.sigma0, ymax=_BELOW_LEGEND, color="black", lw=0.8, ls="--")
            across = axes.get_xaxis_transform()
            axes.text(run.sigma0, _BELOW_LEGEND, r"$\sigma_0$", transform=across, ha="center", va="bottom")
        axes.set(xlabel=rf"$\sigma^\ast$ {_UNIT}", title=_title(run, run.steps))
        axes.set_ylim(top=axes.dataLim.ymax / (_BELOW_LEGEND - 0.03))
        axes.legend(loc="upper center")
    panels[0].set_ylabel("inputs")
    return figure


@mpl.rc_context(STYLE)
def draw_gains(pairs: Sequence[Pair]) -> Figure:
    """The radius that each input gained over the baseline, from the largest gain to the largest loss."""
    figure, _, (panels,) = canvas.new_panels(len(pairs))
    for axes, pair in zip(panels, pairs, strict=True):
        gain = np.sort(metrics.gained_radii(*metrics.common_inputs(pair.run.table, pair.baseline.table)))[::-1]
        share = 100 * (np.arange(len(gain)) + 0.5) / len(gain)
        for sign, colour, word in ((gain > 0, canvas.GAINED, "gained"), (gain < 0, canvas.LOST, "lost")):
            label = f"{word}: {sign.sum():,} of {len(gain):,}"
            axes.fill_between(share, np.where(sign, gain, 0.0), color=colour, lw=0, step="mid", label=label)
        axes.axhline(0, color="black", lw=0.6)
        axes.axhline(gain.mean(), color="#999999", lw=0.8, ls="--", label=f"mean {gain.mean():+.3f}")
        axes.set(xlim=(0, 100), xlabel="inputs, by gain (%)", title=_title(pair.run, pair.run.steps))
        axes.legend(loc="upper right")
    panels[0].set_ylabel(rf"$\ell_{pairs[0].run.table.norm}$ radius gained {_UNIT}")
    return figure


@mpl.rc_context(STYLE)
def draw_runtime(runs: Sequence[Entry]) -> Figure:
    """Seconds per input, mean and median, with the total of each run."""
    timed = [run for run in runs if run.has_times]
    short = short_names(timed)
    figure = canvas.new_figure(canvas.COLUMN, 0.75 + 0.2 * len(timed))
    axes, places, times = figure.subplots(), np.arange(len(timed))[::-1], [run.table.seconds for run in timed]
    axes.plot([seconds.mean() for seconds in times], places, "o", color=COLOURS[0], ms=4, label="mean")
    axes.plot([np.median(s) for s in times], places, "|", color=COLOURS[1], mew=1.5, ms=8, label="median")
    for place, seconds in zip(places, times, strict=True):
        total = format_duration(float(seconds.sum()))
        axes.annotate(total, (1.02, place), xycoords=("axes fraction", "data"), va="center", fontsize=7)
    axes.annotate("total", (1.02, 1), xycoords="axes fraction", va="bottom", fontsize=7)
    axes.set(xlabel="time per input (s)", xlim=(0, None), ylim=(-0.6, len(timed) - 0.4))
    backend = shared_backend(timed)
    names = [joined(name, "" if backend else run.special_backend) for name, run in zip(short, timed, strict=True)]
    axes.set_yticks(places, [canvas.label(name) for name in names])
    if backend:
        axes.set_title(literal(f"run by {backend}"), pad=14)
    axes.grid(axis="x")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, borderaxespad=0)
    return figure


@mpl.rc_context(STYLE)
def draw_pictures(run: Entry, source: ImageSource, baseline: Entry | None, inputs: Sequence[int] = ()) -> Figure:
    """Inputs clean, under noise at sigma0 and at sigma*: extreme ones that are answered correctly, else `inputs`."""
    table, names = run.table, source.class_names
    rows = {index: row for row, index in enumerate(table.idx.tolist())}
    chosen = {rows[i]: f"input {i}" for i in inputs if i in rows} if inputs else _extreme_rows(run, baseline)
    images = source.images([int(table.idx[row]) for row in chosen])  # k channels height width
    levels = {"clean": np.zeros(len(table))}
    if run.sigma0 is not None:
        levels[r"noise at $\sigma_0$"] = np.full(len(table), run.sigma0)
    levels[r"noise at $\sigma^\ast$"] = table.sigma
    side = PAGE / (max(len(chosen), 2 * _OF_EACH) + 0.3)
    figure = canvas.new_figure(PAGE, len(levels) * side + 0.65)
    grid = figure.subplots(len(levels), len(chosen), squeeze=False)
    for column, (row, why), image in zip(grid.T, chosen.items(), images, strict=True):
        for axes, sigmas in zip(column, levels.values(), strict=True):
            canvas.draw_image(axes, _noisy(run, image, float(sigmas[row]), seed=int(table.idx[row])))
        label, answer = int(table.label[row]), int(table.predict[row])
        wrong = "" if answer == label else f"{'abstains' if answer == ABSTAIN else names[answer]}; is "
        numbers = rf"$R$ = {format_down(table.radius[row])}, $\sigma^\ast$ = {format_nearest(table.sigma[row])}"
        column[0].set_title(f"{why}\n{literal(wrong + names[label])}\n{numbers}", fontsize=7)
    for axes, name in zip(grid[:, 0], levels, strict=True):
        axes.set_ylabel(name)
    return figure


def _noisy(run: Entry, image: NDArray[np.float32], sigma: float, *, seed: int) -> NDArray[np.float32]:
    """The image under the noise of its run; of a log, under the usual noise of its norm."""
    noise = run.spec.noise if run.spec else find_noise(f"l{run.table.norm}")
    x, stream = torch.from_numpy(image)[None], random_stream(seed, 0, Stage.PREDICTION, torch.device("cpu"))
    return np.asarray(noise.perturb(x, torch.tensor([sigma]), n=1, streams=[stream])[0, 0])


def _extreme_rows(run: Entry, baseline: Entry | None) -> dict[int, str]:
    """Rows of correct answers with the largest and the smallest sigma*, and with the largest gain; each once."""
    table, right = run.table, np.flatnonzero(run.table.is_correct)
    by_sigma = right[np.argsort(table.sigma[right], kind="stable")].tolist()
    order = {r"largest $\sigma^\ast$": by_sigma[::-1], r"smallest $\sigma^\ast$": by_sigma}
    if baseline is not None:
        ours, theirs = metrics.common_inputs(table, baseline.table)
        gain = dict(zip(ours.idx.tolist(), metrics.gained_radii(ours, theirs).tolist(), strict=True))
        order["largest gain"] = sorted(right.tolist(), key=lambda row: -gain.get(int(table.idx[row]), -np.inf))
    chosen: dict[int, str] = {}
    for why, rows in order.items():
        chosen |= dict.fromkeys([row for row in rows if row not in chosen][:_OF_EACH], why)
    return chosen


def short_names(runs: Sequence[Entry]) -> list[str]:
    """The names of the runs without the words that all of them begin with."""
    words = [re.split(r"(?<=[-_/ ])", run.name) for run in runs]
    while len(words) > 1 and len({parts[0] for parts in words}) == 1 and min(map(len, words)) > 1:
        words = [parts[1:] for parts in words]
    return ["".join(parts) for parts in words]


def draw_panels(panels: Panels, places: Sequence[Axes], tables: Sequence[CertificateTable]) -> None:
    """Draw each curve down to 0, and all to a little beyond the largest radius; a panel without curves is left out."""
    largest = max(float(metrics.counted_radii(table).max(initial=0.0)) for table in tables)
    grid = np.linspace(0.0, 1.05 * largest or 1.0, 1001)
    for (title, curves), axes in zip(panels, places, strict=True):
        for label, style, members in curves:
            accuracy, _ = metrics.envelope(members, grid)
            end = int(np.count_nonzero(accuracy)) + 1
            axes.step(grid[:end], accuracy[:end], where="pre", label=label, **style)
            if len(members) == 1 and len(curves) <= _MOST_BANDS:  # the best of several has no interval
                low, high = metrics.accuracy_band(members[0], grid)
                axes.fill_between(grid, low, high, step="pre", color=style["color"], alpha=0.12, lw=0)
        axes.set(title=title, xlim=(0, grid[-1]), ylim=(0, 1), xlabel=rf"$\ell_{tables[0].norm}$ radius {_UNIT}")
        axes.grid()
        axes.set_visible(bool(curves))
    next(axes for axes in places if axes.get_visible()).set_ylabel("certified accuracy")


def _legend_below(figure: Figure, styles: Mapping[str, _Style], title: str | None = None) -> None:
    lines = [Line2D([], [], label=label, **style) for label, style in styles.items()]
    longest = max(len(line) for label in styles for line in label.splitlines())
    columns = min(_IN_A_LEGEND, max(1, _ACROSS // (longest + 6)))
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, title=title)


def _title(run: Entry, steps: int | None = None) -> str:
    below = [] if run.sigma0 is None else [rf"$\sigma_0 = {run.sigma0:g}$"]
    below += [] if steps is None else [f"$K$ = {steps:,}"]
    return "\n".join(filter(None, (canvas.label(joined(run.method, run.special_backend)), ", ".join(below))))


def _bins(sigma: NDArray[np.float64], initial: float | None) -> NDArray[np.float64]:
    """Edges of equal bins over all sigmas, with sigma0, which many keep, in the middle of one."""
    low, high = float(sigma.min()), float(sigma.max())
    width = max((high - low) / _BINS, 1e-4)
    middle = low if initial is None else initial
    # What rounding puts on an edge gets a bin more.
    below, above = (np.ceil(reach / width - 0.5 + 1e-6) for reach in (middle - low, high - middle))
    return middle + width * (np.arange(-below, above + 2) - 0.5)
