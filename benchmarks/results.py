"""The results of an experiment as pages of the documentation, from the records that are kept beside them.

    python benchmarks/results.py cifar10-cpu

docs/results/EXPERIMENT/runs has the table and the configuration of each certification. From these come report.md, its
figures and, for cifar10-cpu, the figure of docs/results.md. `sigmax reproduce EXPERIMENT --out docs/results/EXPERIMENT`
adds runs that are missing, and needs the data.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from sigmax.files import write_atomically
from sigmax.metrics import average_certified_radius, certified_accuracy
from sigmax.paper.experiment import load_experiment
from sigmax.paper.plan import size_of
from sigmax.paper.presets import presets
from sigmax.paper.run import compose_result
from sigmax.report.canvas import COLOURS, LINES, PAGE, STYLE, new_figure, render, shade
from sigmax.report.report import TEXT, Report
from sigmax.runs import read_table

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
EXPERIMENTS = sorted(folder.parent.name for folder in RESULTS.glob("*/runs") if folder.parent.name in presets())

SHOWN_FIRST, FIRST_FIGURE = "cifar10-cpu", DOCS / "images" / "results-cifar10.png"
_ENDS = {"0.12": 1.25, "0.25": 1.65, "0.50": 2.4}  # of the radius axis at each sigma0: the panels share one scale
_LOOKS: dict[str, dict[str, Any]] = {
    "fixed": {"label": "one sigma", "color": "#555555"},
    "ascent-paper-k900": {"label": "Algorithm 1, $K$ = 900", "color": COLOURS[1], "ls": LINES[1]},
    "halving": {"label": "halving", "color": COLOURS[0], "lw": 1.8},
}


def compose(name: str) -> Report:
    """The report without pictures: no image of a data set is kept here."""
    experiment = load_experiment(name)
    report = compose_result(experiment, RESULTS / name, inputs=size_of(experiment).test)
    assert report is not None, f"expected records in {RESULTS / name}, got none"
    return report


@mpl.rc_context(STYLE)
def draw_first() -> Figure:
    """Certified accuracy against radius of the Cohen networks: one sigma, Algorithm 1 and halving at each sigma0."""
    figure = new_figure(PAGE, 2.55)
    panels = figure.subplots(1, len(_ENDS), sharey=True, width_ratios=list(_ENDS.values()))
    for axes, (sigma, end) in zip(panels, _ENDS.items(), strict=True):
        radii, curves = np.linspace(0, end, 2001), {}
        for line, (search, look) in enumerate(_LOOKS.items()):
            table = read_table(RESULTS / SHOWN_FIRST / "runs" / f"cohen-{sigma}-{search}")
            curves[search] = certified_accuracy(table, radii)
            drawn = np.count_nonzero(curves[search]) + 1  # down to 0, and not along the axis
            axes.step(radii[:drawn], curves[search][:drawn], where="pre", **look)
            acr = f"ACR {average_certified_radius(table):.3f}"
            place = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            axes.text(0.98, 0.97 - 0.085 * line, acr, color=look["color"], **place)
        gained = shade(COLOURS[0], 0.13)
        axes.fill_between(radii, curves["fixed"], curves["halving"], step="pre", color=gained, lw=0)
        axes.set(title=rf"$\sigma_0$ = {sigma}", xlabel=r"$\ell_2$ radius", xticks=np.arange(0, end, 0.5))
        axes.set(xlim=(0, end), ylim=(0, 0.9))
        axes.grid()
    panels[0].set_ylabel("certified accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(_LOOKS), fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    options = parser.parse_args()
    report, folder = compose(options.experiment), RESULTS / options.experiment
    write_atomically(folder / TEXT, report.text.encode())
    for drawing in report.figures:
        write_atomically(folder / "figures" / f"{drawing.name}.png", render(drawing.figure)["png"])
    if options.experiment == SHOWN_FIRST:
        write_atomically(FIRST_FIGURE, render(draw_first())["png"])
    print(folder / TEXT)


if __name__ == "__main__":
    main()
