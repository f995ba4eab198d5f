"""The entries nearest to an input, to look at; answers do not depend on this."""

from dataclasses import dataclass
from typing import final

import numpy as np

from sigmax.certificate import Rule
from sigmax.memory.view import Input, View, as_array

_MOST = 1_024  # entries measured at most: in a crowd, the nearest of these are shown
_STEP = 64  # entries measured together


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Nearby:
    """An entry near an input."""

    id: int
    label: int
    radius: float
    distance: float  # from the input, rounded down
    rule: Rule


def nearest(view: View, x: Input, count: int) -> list[Nearby]:
    """The nearest entries, nearest first. Sketches rule out the others, as in a search."""
    pixels = as_array(x[None])
    view.refresh()
    sketch = view.sketch(pixels.shape[1:])
    if view.index is None:
        return []
    flat = pixels[0].astype(np.float64).ravel()
    positions, lows = view.index.closest(sketch(flat), _MOST)
    found: list[tuple[float, int]] = []
    for start in range(0, len(positions), _STEP):
        if len(found) >= count and found[count - 1][0] <= lows[start]:
            break
        distances = view.distances(flat, positions[start : start + _STEP])
        found = sorted([*found, *zip(distances, positions[start : start + _STEP], strict=True)])[:count]
    return [_nearby(view, position, distance) for distance, position in found]


def _nearby(view: View, position: int, distance: float) -> Nearby:
    assert view.index is not None, "there are entries"
    ball, answer = view.index.ball(position), view.answer(position)
    return Nearby(id=position + 1, label=ball.label, radius=ball.radius, distance=distance, rule=answer.rule)
