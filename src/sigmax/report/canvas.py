"""What figures are drawn on: sizes for a two-column paper, and colours that colour-blind readers tell apart."""

import io
import textwrap
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, FigureBase
from numpy.typing import NDArray

# Okabe and Ito's hues, told apart also by colour-blind readers; the pale ones darker, for 3:1 on white. The page has
# the same. Line styles tell them apart in grey too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B45A8D", "#A87400", "#2A8CC4", "#000000")
GAINED, LOST, REST = COLOURS[2], COLOURS[1], "#BBBBBB"
LINES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)), "-", (0, (4, 1.5)), "-")
COLUMN, PAGE = 3.25, 6.75  # widths of a column and of both, in inches
STYLE = mpl.rc_params_from_file(Path(__file__).parent / "paper.mplstyle", use_default_template=False)
_TALL, _LOW = 2.3, 1.9  # heights of wide and of narrow panels
_IN_A_ROW = 4
_LABEL = 34  # characters of a line of a label


@mpl.rc_context(STYLE)
def render(figure: Figure) -> dict[str, bytes]:
    """The figure as PNG and as PDF, by suffix; the same figure gives the same bytes."""
    files = {"png": io.BytesIO(), "pdf": io.BytesIO()}
    for suffix, metadata in (("png", None), ("pdf", {"CreationDate": None})):
        figure.savefig(files[suffix], format=suffix, metadata=metadata)
    return {suffix: content.getvalue() for suffix, content in files.items()}


def literal(text: str) -> str:
    """Text of others as it is: no formula, and not hidden from a legend."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def label(text: str) -> str:
    """Text of others as a label of a few short lines: a long one would leave no room for its figure."""
    return "\n".join(textwrap.wrap(literal(text), _LABEL, max_lines=3, placeholder=" …"))


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches whose parts keep clear of each other."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_panels(count: int, *, parts: int = 1, taller: float = 0.0) -> tuple[Figure, list[FigureBase], list[list[Axes]]]:
    """A figure in parts, one below the other, each with so many panels: one fits a column, more share the page."""
    columns = 3 if count == _IN_A_ROW + 1 else min(count, _IN_A_ROW)
    rows = -(-count // columns)
    height = (_TALL if columns < 3 else _LOW) + taller
    figure = new_figure(COLUMN if count == 1 else PAGE, height * rows * parts)
    below = [figure] if parts == 1 else list(np.ravel(np.asarray(figure.subfigures(parts, 1))))
    panels = [list(np.ravel(part.subplots(rows, columns, squeeze=False))) for part in below]
    for unused in (axes for row in panels for axes in row[count:]):
        unused.set_visible(False)
    return figure, below, [row[:count] for row in panels]


def family_styles(families: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a line for each; of more than there are, colours meet with other lines."""
    looks = zip(families, cycle(COLOURS), cycle((*LINES, *LINES[1:])), strict=False)
    return {name: {"color": colour, "ls": line} for name, colour, line in looks}


def shade(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour mixed with white."""
    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def draw_image(axes: Axes, image: NDArray[np.floating[Any]]) -> None:
    """A picture (channels, height, width) in [0, 1], without axes."""
    axes.imshow(image.transpose(1, 2, 0).squeeze().clip(0, 1), cmap="gray_r", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
