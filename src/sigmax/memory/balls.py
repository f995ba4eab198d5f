"""Geometry of certified balls, and the rules of Algorithm 3 as a pure function.

Distances are intervals that surely contain the true distance; where an interval cannot decide whether a
point is inside a ball, integers decide exactly. So rounding can make a ball smaller, never larger.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.rounding import step_down

Vector = NDArray[np.float64]


# What subnormal numbers round away is far below the smallest normal number.
_TINY = float(np.finfo(np.float64).tiny)
_HUGE = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ball:
    """What an entry of the memory claims around its input."""

    label: int
    radius: float
    sigma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """An entry of the memory as seen from a new input."""

    ball: Ball
    low: float  # the distance is at least this
    high: float  # and at most this
    has_inside: bool  # whether its region contains the new input: exact


def distance_bounds(x: Vector, points: Vector, *, norm: int) -> tuple[Vector, Vector]:
    """Lower and upper bounds on the distance from x (d,) to each point (m, d); the upper may be infinite.

    Summing d non-negative terms in float64 has a relative error below d * 2**-53, and the few operations
    around it a few units more. Scaling by the largest difference keeps squares from underflowing.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of floats: inf, or inf / inf
        difference = np.abs(points - x)  # m d
        largest = difference.max(axis=1)  # m
        scale = np.where(largest > 0.0, largest, 1.0)
        scaled = difference / scale[:, None]
        total = scaled.sum(axis=1) if norm == 1 else np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
        distance = np.nan_to_num(scale * total, nan=np.inf, posinf=np.inf)
        slack = (x.size + 16) * 2.0**-53
        low = np.minimum(distance, _HUGE) * (1.0 - slack) - _TINY
        return np.maximum(low, 0.0), distance * (1.0 + slack) + _TINY


def compare_distance(x: Vector, y: Vector, threshold: float | Fraction, *, norm: int) -> int:
    """The sign of (distance - threshold), exactly: floats are fractions of integers."""
    ratios = [value.as_integer_ratio() for value in (*x.tolist(), *y.tolist())]
    unit = max(denominator for _, denominator in ratios)
    whole = [numerator * (unit // denominator) for numerator, denominator in ratios]
    gaps = [abs(a - b) for a, b in zip(whole[: x.size], whole[x.size :], strict=True)]
    numerator, denominator = threshold.as_integer_ratio()
    if norm == 1:
        left, right = sum(gaps) * denominator, numerator * unit
    else:
        left, right = sum(gap * gap for gap in gaps) * denominator**2, (numerator * unit) ** 2
    return int(left > right) - int(left < right)


def is_inside(x: Vector, centre: Vector, radius: float, low: float, high: float, *, norm: int) -> bool:
    """Whether x lies in the open ball or is its centre, given bounds on the distance."""
    if high < radius:
        return True
    if low >= radius and low > 0.0:
        return False
    return bool(np.array_equal(x, centre)) or compare_distance(x, centre, radius, norm=norm) < 0


def deepest_home(neighbours: Sequence[Neighbour]) -> Neighbour | None:
    """Of the regions that contain the input, the one it lies deepest in; they agree on the label."""
    homes = [neighbour for neighbour in neighbours if neighbour.has_inside]
    if len({home.ball.label for home in homes}) > 1:
        raise MemoryRefusedError(
            f"expected regions with different labels to be disjoint, got an input inside {len(homes)} of them "
            "that disagree; run `sigmax memory check`"
        )
    return max(homes, key=depth, default=None)


def depth(home: Neighbour) -> float:
    """The radius of the largest ball around the input that stays inside the entry's ball, rounded down."""
    return max(0.0, step_down(home.ball.radius - home.high))


def inherit(home: Neighbour, point: PointCertificate | None, radius: float) -> SettledCertificate:
    """The answer of the region that the input lies in."""
    ball = home.ball
    return SettledCertificate(label=ball.label, radius=radius, sigma=ball.sigma, point=point, rule="inherited")


def settle(point: PointCertificate, neighbours: Sequence[Neighbour]) -> SettledCertificate:
    """The rules of the memory for a new input that is not itself an entry (paper, Algorithm 3).

    Args:
        point: What sampling says about the input.
        neighbours: At least all entries whose region contains the input or whose ball could meet the
            ball of `point`.
    """
    home = deepest_home(neighbours)
    if home is None and point.label is None:
        return SettledCertificate(label=None, radius=0.0, sigma=point.sigma, point=point, rule="abstained")
    if home is not None and point.label != home.ball.label:
        # The region's answer stands; claim only what lies inside it, and what sampling supports.
        return inherit(home, point, depth(home) if point.label is None else min(point.radius, depth(home)))
    # No ball may reach into a ball with another label.
    others = [neighbour for neighbour in neighbours if neighbour.ball.label != point.label]
    radius = max(0.0, min([point.radius, *(step_down(other.low - other.ball.radius) for other in others)]))
    if home is not None and depth(home) > radius:
        return inherit(home, point, depth(home))
    rule: Rule = "kept" if radius == point.radius else "truncated"
    return SettledCertificate(label=point.label, radius=radius, sigma=point.sigma, point=point, rule=rule)
