"""Learning rates as functions of the step alone: a checkpoint need not hold them."""

import math
from typing import Literal

Schedule = Literal["one-cycle", "cosine", "step"]

# One cycle: a quarter of the steps up from a tenth, then down to a thousandth.
_RISE, _FIRST, _LAST = 0.25, 0.1, 1e-3


def learning_rate(schedule: Schedule, *, peak: float, step: int, steps: int, drop_every: int) -> float:
    """The learning rate of a step, which counts from 0, in a training of so many steps; its highest is `peak`.

    "one-cycle" goes up along a cosine, then down along another; "cosine" goes down to 0; "step" falls to a tenth every
    `drop_every` steps.
    """
    if schedule == "step":
        return peak * 0.1 ** (step // drop_every)
    if schedule == "cosine":
        return peak * _ease(step / steps)
    rise = _RISE * steps
    if step < rise:
        return peak * (1 - (1 - _FIRST) * _ease(step / rise))
    return peak * (_LAST + (1 - _LAST) * _ease((step - rise) / (steps - rise)))


def _ease(share: float) -> float:
    """From 1 at 0 to 0 at 1, half a cosine."""
    return (1 + math.cos(math.pi * share)) / 2
