"""Geometry of certified balls, and the rules of Algorithm 3 as pure functions.

Distances are intervals that certainly contain the true distance. Where an interval cannot decide whether a point is
inside a ball, exact integer arithmetic decides. So rounding can make a ball smaller, but never larger.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.rounding import step_down

Vector = NDArray[np.float64]

_TINY = float(np.finfo(np.float64).tiny)  # far above what rounding to subnormal numbers loses
_HUGE = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ball:
    """What an entry of the memory claims around its input."""

    label: int
    radius: float
    alpha: float  # of the certificate that it relies on


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """An entry of the memory as seen from another input."""

    id: int
    ball: Ball
    read: Callable[[], SettledCertificate]  # its answer
    low: float  # lower bound on the distance
    high: float  # upper bound on the distance; 0 for the same input
    is_home: bool  # whether its region contains the input; decided exactly


def distance_bounds(x: Vector, points: Vector, *, norm: int) -> tuple[Vector, Vector]:
    """Lower and upper bounds on the distance from x (d,) to each point (m, d); the upper may be infinite.

    Summing d non-negative terms in float64 has a relative error below d * 2**-53; the few other operations add a few
    units of 2**-53. Scaling by the largest difference keeps the squares from underflowing.
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
    """The exact sign of (distance - threshold), in integers: every float is a fraction of integers."""
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


def depth(home: Neighbour) -> float:
    """The radius of the largest ball around the input that stays inside the entry's ball, rounded down."""
    return home.ball.radius if home.high == 0.0 else max(0.0, step_down(home.ball.radius - home.high))


def room(other: Neighbour) -> float:
    """The radius of the largest ball around the input that stays outside the entry's ball, rounded down."""
    return step_down(other.low - other.ball.radius)


def settle(
    point: PointCertificate | None, neighbours: Sequence[Neighbour], *, alpha: float
) -> SettledCertificate | None:
    """The answer for a new input (paper, Algorithm 3); None if it is only looked up and nothing answers it.

    The neighbours include all entries whose region contains the input or whose ball meets the ball of `point`. An entry
    with a larger alpha than asked still binds the label, but lends no radius.
    """
    homes = _homes(neighbours)
    home = max((home for home in homes if home.ball.alpha <= alpha), key=depth, default=None)
    if point is None:
        return _inherited(home, None, depth(home)) if home is not None else None
    if homes and point.label != homes[0].ball.label:
        if home is None:
            return SettledCertificate(label=None, radius=0.0, proof=point, point=point, rule="refused")
        # The label of the region stands. The ball must stay inside the region and inside what sampling certified.
        return _inherited(home, point, depth(home) if point.label is None else min(point.radius, depth(home)))
    if point.label is None:
        return SettledCertificate(label=None, radius=0.0, proof=point, point=point, rule="abstained")
    # No ball may reach into a ball with another label.
    others = [neighbour for neighbour in neighbours if neighbour.ball.label != point.label]
    radius = max(0.0, min([point.radius, *(room(other) for other in others)]))
    if home is not None and depth(home) > radius:
        return _inherited(home, point, depth(home))
    rule: Rule = "kept" if radius == point.radius else "truncated"
    return SettledCertificate(label=point.label, radius=radius, proof=point, point=point, rule=rule)


def settle_frozen(point: PointCertificate | None, neighbours: Sequence[Neighbour]) -> SettledCertificate | None:
    """The answer of the fixed classifier F of a frozen memory; None if it is only looked up and no region contains it.

    F is the label of a region inside it, by definition, and the classifier smoothed at one sigma outside all regions.
    `point` is certified at this sigma. So the ball of a region needs no further certificate, whatever sampling says.
    Where both agree, F is also constant on the ball of `point` as far as no region with another label begins.
    """
    homes = _homes(neighbours)
    if homes and (point is None or point.label != homes[0].ball.label):
        home = max(homes, key=depth)
        return _inherited(home, point, depth(home))
    return settle(point, neighbours, alpha=1.0)


def _homes(neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """The entries whose regions contain the input; all agree on the label."""
    homes = [neighbour for neighbour in neighbours if neighbour.is_home]
    if len({home.ball.label for home in homes}) > 1:
        raise MemoryRefusedError(
            f"expected disjoint regions for different labels, got an input inside {len(homes)} regions that disagree; "
            "run `sigmax memory check`"
        )
    return homes


def _inherited(home: Neighbour, point: PointCertificate | None, radius: float) -> SettledCertificate:
    """A ball inside the ball of `home`, which relies on the same certificate."""
    answer = home.read()
    origin = home.id if answer.origin is None else answer.origin
    return SettledCertificate(
        label=answer.label, radius=radius, proof=answer.proof, point=point, rule="inherited", origin=origin
    )
