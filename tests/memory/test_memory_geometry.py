"""Distances and balls, against exact arithmetic on fractions."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sigmax.memory.balls import Vector, compare_distance, distance_bounds, is_inside

ANY_FLOAT = st.floats(allow_nan=False, allow_infinity=False)
TINY_FLOAT = st.floats(min_value=-1e-300, max_value=1e-300)
HUGE_FLOAT = st.floats(min_value=1e300, max_value=1.7e308) | st.floats(min_value=-1.7e308, max_value=-1e300)
PIXEL = st.integers(0, 255).map(lambda level: level / 255)
GRID = st.integers(-4, 4).map(float)
SMALLEST = 5e-324
NORMS = pytest.mark.parametrize("norm", [1, 2])


def pairs(*values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[float, float]]]:
    """Coordinates of two points, all of one kind."""
    return st.one_of(*(st.lists(st.tuples(value, value), min_size=1, max_size=5) for value in values))


def vectors(coordinates: Sequence[tuple[float, float]]) -> tuple[Vector, Vector]:
    x, y = np.array(coordinates, dtype=np.float64).T
    return x, y


def exact_power(x: Vector, y: Vector, norm: int) -> Fraction:
    """The distance in l1, its square in l2."""
    gaps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return sum((gap**norm for gap in gaps), start=Fraction(0))


@NORMS
@given(coordinates=pairs(ANY_FLOAT, TINY_FLOAT, HUGE_FLOAT, PIXEL, GRID))
@example(coordinates=[(0.0, SMALLEST), (0.0, SMALLEST)])
@example(coordinates=[(1.7e308, -1.7e308)])
@example(coordinates=[(1.7e308, 0.0), (1.7e308, 0.0)])
@example(coordinates=[(1e-200, 0.0), (1e-200, 0.0)])
@settings(max_examples=400)
def test_bounds_contain_the_distance(norm: int, coordinates: list[tuple[float, float]]) -> None:
    x, y = vectors(coordinates)
    lows, highs = distance_bounds(x, y[None], norm=norm)
    low, high = float(lows[0]), float(highs[0])
    assert 0.0 <= low <= high
    assert Fraction(low) ** norm <= exact_power(x, y, norm)
    assert high == math.inf or exact_power(x, y, norm) <= Fraction(high) ** norm


@NORMS
@pytest.mark.parametrize("size", [1, 3_072, 150_528])
def test_bounds_are_tight(norm: int, size: int) -> None:
    x, y = np.random.default_rng(0).random((2, size))
    (low,), (high,) = distance_bounds(x, y[None], norm=norm)
    # For an image of ImageNet's size the bounds differ by 3e-11 of the distance.
    assert high - low <= 2.0 * (size + 20) * 2.0**-53 * high


@NORMS
@given(coordinates=pairs(ANY_FLOAT, TINY_FLOAT, PIXEL, GRID), threshold=st.floats(min_value=0.0, allow_infinity=False))
@settings(max_examples=300)
def test_comparison_is_exact(norm: int, coordinates: list[tuple[float, float]], threshold: float) -> None:
    x, y = vectors(coordinates)
    difference = exact_power(x, y, norm) - Fraction(threshold) ** norm
    assert compare_distance(x, y, threshold, norm=norm) == (difference > 0) - (difference < 0)


@given(coordinates=pairs(ANY_FLOAT, TINY_FLOAT, PIXEL))
@settings(max_examples=200)
def test_comparison_sees_ties_in_l1(coordinates: list[tuple[float, float]]) -> None:
    x, y = vectors(coordinates)
    distance = exact_power(x, y, 1)
    smallest = Fraction(SMALLEST)
    assert compare_distance(x, y, distance, norm=1) == 0
    assert compare_distance(x, y, distance + smallest, norm=1) == -1


@given(exponent=st.integers(-1000, 1000), triple=st.sampled_from([(3, 4, 5), (5, 12, 13), (8, 15, 17)]))
@settings(max_examples=100)
def test_comparison_sees_ties_in_l2(exponent: int, triple: tuple[int, int, int]) -> None:
    a, b, c = (math.ldexp(side, exponent) for side in triple)
    x, y = np.array([0.0, b]), np.array([a, 0.0])
    assert compare_distance(x, y, c, norm=2) == 0
    assert compare_distance(x, y, math.nextafter(c, math.inf), norm=2) == -1
    assert compare_distance(x, y, math.nextafter(c, 0.0), norm=2) == 1


def decide(x: Vector, centre: Vector, radius: float, norm: int) -> bool:
    (low,), (high,) = distance_bounds(x, centre[None], norm=norm)
    return is_inside(x, centre, radius, float(low), float(high), norm=norm)


@pytest.mark.parametrize(("norm", "distance"), [(1, 7.0), (2, 5.0)])
def test_balls_are_open(norm: int, distance: float) -> None:
    x, centre = np.array([3.0, 4.0]), np.array([0.0, 0.0])
    assert not decide(x, centre, distance, norm)
    assert decide(x, centre, math.nextafter(distance, math.inf), norm)
    assert not decide(x, centre, math.nextafter(distance, 0.0), norm)


@NORMS
def test_a_region_holds_its_centre_even_with_radius_zero(norm: int) -> None:
    centre = np.array([0.1, 0.2, 0.3])
    beside = np.nextafter(centre, 1.0)
    assert decide(centre, centre, 0.0, norm)
    assert not decide(beside, centre, 0.0, norm)
    assert not decide(np.array([SMALLEST]), np.array([0.0]), SMALLEST, norm)


@NORMS
@given(
    coordinates=pairs(ANY_FLOAT, TINY_FLOAT, PIXEL, GRID),
    radius=ANY_FLOAT.map(abs) | TINY_FLOAT.map(abs) | GRID.map(abs),
)
@settings(max_examples=300)
def test_being_inside_is_exact(norm: int, coordinates: list[tuple[float, float]], radius: float) -> None:
    x, y = vectors(coordinates)
    power = exact_power(x, y, norm)
    assert decide(x, y, radius, norm) == (power == 0 or power < Fraction(radius) ** norm)
