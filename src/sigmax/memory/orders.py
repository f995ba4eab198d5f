"""How much the answers of a memory depend on the order of the questions: settle the same points in many orders."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.spatial.distance import cdist

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory.balls import Ball, Neighbour, Vector, distance_bounds, is_inside, settle
from sigmax.runs.orders import Orders

_SLACK = 1e-9  # share of a distance: far above what rounding does to it


@dataclass(frozen=True, slots=True)
class _Pair:
    """Another input that may matter, with bounds on its distance."""

    place: int
    low: float
    high: float
    is_same: bool


def permute(
    x: Vector,
    points: Sequence[PointCertificate],
    *,
    orders: int,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> Orders:
    """Settle points of inputs (m, d) in their own order and in so many random ones, by the rules of the memory.

    Distances do not depend on the order, so they are measured once. A settled ball never leaves the ball of the point
    that it relies on. So inputs whose balls are far from all others get the same answer in every order.
    """
    if orders < 1:
        raise InvalidInputError(f"expected orders >= 1, got orders={orders}")
    pairs = _pairs(x, points)
    usual = dict(_settled(x, points, pairs, pairs))
    rng = np.random.default_rng(seed)
    labels: set[int] = set()
    radii: set[int] = set()
    largest = 0.0
    for _ in range(orders):
        order = rng.permutation(list(pairs)).tolist()
        for place, answer in _settled(x, points, pairs, order):
            if answer.label != usual[place].label:
                labels.add(place)
            if answer.radius != usual[place].radius:
                radii.add(place)
                largest = max(largest, abs(answer.radius - usual[place].radius))
        if on_progress is not None:
            on_progress(1)
    return Orders(
        inputs=len(points),
        orders=orders,
        near=len(pairs),
        answers=len(labels | radii),
        labels=len(labels),
        radii=len(radii),
        largest=largest,
    )


def _pairs(x: Vector, points: Sequence[PointCertificate]) -> dict[int, list[_Pair]]:
    """For each input that may meet others: those that it may meet, in any order of settling."""
    radii, norm = np.array([point.radius for point in points]), points[0].norm if points else 2
    distances = cdist(x, x, "cityblock" if norm == 1 else "euclidean")  # m m
    # The largest ball that an input can get: its own, or one inside the ball of another.
    reach = (radii - distances).max(axis=1, initial=0.0)
    is_near = distances * (1.0 - _SLACK) <= reach[:, None] + reach
    np.fill_diagonal(is_near, False)
    pairs = {}
    for i in np.flatnonzero(is_near.any(axis=1)).tolist():
        others = np.flatnonzero(is_near[i]).tolist()
        lows, highs = (bounds.tolist() for bounds in distance_bounds(x[i], x[others], norm=norm))
        same = [low == 0.0 and bool(np.array_equal(x[i], x[j])) for j, low in zip(others, lows, strict=True)]
        pairs[i] = [_Pair(*each) for each in zip(others, lows, highs, same, strict=True)]
    return pairs


def _settled(
    x: Vector, points: Sequence[PointCertificate], pairs: dict[int, list[_Pair]], order: Iterable[int]
) -> Iterator[tuple[int, SettledCertificate]]:
    """The answers to these inputs, settled in this order."""
    stored: dict[int, SettledCertificate] = {}
    for i in order:
        answer = _settle(x, i, points[i], [pair for pair in pairs[i] if pair.place in stored], stored)
        if answer.label is not None:
            stored[i] = answer
        yield i, answer


def _settle(
    x: Vector, i: int, point: PointCertificate, pairs: list[_Pair], stored: dict[int, SettledCertificate]
) -> SettledCertificate:
    neighbours = []
    for pair in pairs:
        answer = stored[pair.place]
        if pair.is_same and answer.alpha <= point.alpha:
            return answer
        ball = Ball(label=int(answer.label or 0), radius=answer.radius, alpha=answer.alpha)
        is_home = pair.is_same or is_inside(x[i], x[pair.place], ball.radius, pair.low, pair.high, norm=point.norm)
        neighbours.append(
            Neighbour(
                id=pair.place,
                ball=ball,
                read=partial(stored.__getitem__, pair.place),
                low=pair.low,
                high=0.0 if pair.is_same else pair.high,
                is_home=is_home,
            )
        )
    made = settle(point, neighbours, alpha=point.alpha)
    assert made is not None, "a point certificate is always answered"
    return made
