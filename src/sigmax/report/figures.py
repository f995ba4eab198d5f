"""Figures from certificate tables."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sigmax.records import CertificateTable
from sigmax.report.metrics import average_certified_radius, certified_accuracy
from sigmax.rounding import format_down, format_nearest

# Okabe and Ito's colours: told apart also by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


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
    figure = Figure(figsize=(8.0, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = np.ravel(np.asarray(figure.subfigures(2, 1, height_ratios=(2.4, 1))))
    axes = upper.subplots()
    end = 1.05 * max(float(table.radius.max(initial=0.0)) for _, table in tables)
    radii = np.linspace(0.0, end, 1001)
    for (name, table), colour in zip(tables, cycle(COLOURS), strict=False):
        kind = "settled" if table.is_settled else "point"
        acr = format_nearest(average_certified_radius(table))
        accuracy = certified_accuracy(table, radii)
        axes.step(radii, accuracy, where="pre", color=colour, lw=2, label=f"{name} ({kind}), ACR {acr}")
    axes.set(xlim=(0, end), ylim=(0, 1), xlabel="$\\ell_2$ radius", ylabel="certified accuracy")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    _, table = tables[-1]
    pictures = lower.subplots(1, len(rows), squeeze=False)[0]
    for picture, image, row in zip(pictures, images, rows, strict=True):
        picture.imshow(image.transpose(1, 2, 0).squeeze(), cmap="gray_r", vmin=0, vmax=1)
        picture.set(xticks=[], yticks=[])
        answer = "abstains" if table.predict[row] < 0 else f"says {table.predict[row]}"
        sigma, radius = format_nearest(table.sigma[row], 3), format_down(table.radius[row], 3)
        picture.set_title(f"{answer}\n$\\sigma$ = {sigma}\nradius {radius}", fontsize=9)
    figure.savefig(path, dpi=150)
