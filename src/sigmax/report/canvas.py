"""What figures are drawn on: sizes for a two-column paper, and colours that colour-blind readers tell apart."""

import io
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray

# Okabe and Ito's colours: told apart also by colour-blind readers. Line styles tell them apart in grey too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)), "-", (0, (4, 1.5)), "-")
GREY = "#999999"
COLUMN, PAGE = 3.25, 6.75  # widths of a column and of both, in inches
_TALL, _LOW = 2.3, 1.9  # heights of wide and of narrow panels
_IN_A_ROW = 4
IN_A_LEGEND = 5  # methods; more go below the panels, so many in a row
STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "pdf.fonttype": 42,  # outlines that every printer and journal takes
    "savefig.dpi": 220,
}


@mpl.rc_context(STYLE)
def render(figure: Figure) -> dict[str, bytes]:
    """The figure as PNG and as PDF, by suffix; the same figure gives the same bytes."""
    files = {}
    for suffix in ("png", "pdf"):
        content = io.BytesIO()
        figure.savefig(content, format=suffix, metadata={"CreationDate": None} if suffix == "pdf" else None)
        files[suffix] = content.getvalue()
    return files


def literal(text: str) -> str:
    """Text of others as it is: no formula, and not hidden from a legend."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches whose parts keep clear of each other."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int, *, taller: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, taller by so many inches than they mostly are."""
    width, height = size_of(count)
    figure = new_figure(width, height + taller * _shape(count)[0])
    return figure, split(figure, count)


def size_of(count: int) -> tuple[float, float]:
    """Width and height of so many panels: one fits a column, more share the page."""
    rows, columns = _shape(count)
    return COLUMN if count == 1 else PAGE, (_TALL if columns < 3 else _LOW) * rows


def split(figure: FigureBase, count: int) -> list[Axes]:
    """So many panels in a figure, or in a part of one."""
    rows, columns = _shape(count)
    panels = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for unused in panels[count:]:
        unused.set_visible(False)
    return panels[:count]


def _shape(count: int) -> tuple[int, int]:
    """Rows and columns of so many panels."""
    columns = min(count, _IN_A_ROW) if count != _IN_A_ROW + 1 else 3
    return -(-count // columns), columns


def shade(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour mixed with white."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def draw_image(axes: Axes, image: NDArray[np.floating[Any]]) -> None:
    """A picture (channels, height, width) in [0, 1], without axes."""
    axes.imshow(image.transpose(1, 2, 0).squeeze().clip(0, 1), cmap="gray_r", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
