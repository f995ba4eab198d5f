"""Crowded inputs for a memory: points repeat, balls overlap and touch, borders meet points."""

import math

from hypothesis import strategies as st

Coordinates = tuple[float, ...]
Step = tuple[Coordinates, int | None, float]

# Few coordinates and radii, so that points repeat, balls touch and borders meet points.
COORDINATES = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 0.1, 0.3])
RADII = st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0, math.sqrt(2.0), 2.0])
LABELS = st.sampled_from([0, 1, 2, 3, None])


@st.composite
def crowds(draw: st.DrawFn) -> list[Step]:
    dims = draw(st.integers(1, 4))
    inputs = st.tuples(*[COORDINATES] * dims)
    steps = draw(st.lists(st.tuples(inputs, LABELS, RADII), min_size=1, max_size=14))
    return [(x, label, 0.0 if label is None else radius) for x, label, radius in steps]
