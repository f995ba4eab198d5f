"""The sketch never overestimates a distance, so that the index never misses an entry that matters."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.fft import idctn

from sigmax.memory.balls import Ball, Vector
from sigmax.memory.index import Sketch, SketchIndex

SHAPES = [(1,), (5,), (300,), (4, 3), (28, 28), (1, 8, 8), (3, 32, 32), (2, 3, 5, 4), (2, 4, 9, 12)]
FLOAT32_ROUNDING = 2.0**-23


def ball(radius: float) -> Ball:
    return Ball(label=0, radius=radius, sigma=0.25)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(seed=st.integers(0, 2**32), exponent=st.integers(-12, 12), is_sparse=st.booleans())
@settings(max_examples=30, deadline=None)
def test_sketches_are_no_farther_apart_than_inputs(
    shape: tuple[int, ...], seed: int, exponent: int, is_sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, int(np.prod(shape)))) * 10.0**exponent
    if is_sparse:
        y = x + (rng.random(x.size) < 0.05) * y
    sketch = Sketch(shape)
    assert sketch(x).shape == (sketch.size,)
    between = np.linalg.norm(sketch(x).astype(np.float64) - sketch(y).astype(np.float64))
    rounding = FLOAT32_ROUNDING * (np.linalg.norm(x) + np.linalg.norm(y))
    assert between <= np.linalg.norm(x - y) + rounding
    assert np.linalg.norm(sketch(x - y)) <= np.linalg.norm(x - y) * (1.0 + FLOAT32_ROUNDING)


@pytest.mark.parametrize("shape", [(3,), (14, 14), (3, 8, 8), (1, 3, 8, 8)], ids=str)
def test_a_sketch_of_all_frequencies_keeps_the_norm(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(int(np.prod(shape)))
    assert np.linalg.norm(Sketch(shape)(x)) == pytest.approx(np.linalg.norm(x), rel=FLOAT32_ROUNDING)


def touches(x: Vector, y: Vector, reach: Fraction, norm: int) -> bool:
    gaps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    return sum(gap**norm for gap in gaps) <= reach**norm


@pytest.mark.parametrize("norm", [1, 2])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 70),
    dims=st.integers(1, 4),
    exponent=st.sampled_from([-300, -160, -46, -30, -8, 0, 8, 19, 30, 160, 300]),
    start=st.integers(0, 70),
)
@settings(max_examples=150, deadline=None)
def test_near_misses_nothing_that_meets_or_touches(
    norm: int, seed: int, count: int, dims: int, exponent: int, start: int
) -> None:
    rng = np.random.default_rng(seed)
    scale = 10.0**exponent
    points = rng.integers(-4, 5, (count, dims)).astype(np.float64) * (scale / 4)
    radii = rng.choice([0.0, 0.25, 0.5, 1.0], count) * scale
    x = rng.integers(-4, 5, dims).astype(np.float64) * (scale / 4)
    reach = float(rng.choice([0.0, 0.25, 1.0]) * scale)
    index = SketchIndex((dims,))
    for y, radius in zip(points, radii.tolist(), strict=True):
        index.add(y, ball(radius))
    near = index.near(x, reach, start=min(start, count))
    expected = {
        i
        for i in range(min(start, count), count)
        if touches(x, points[i], Fraction(float(radii[i])) + Fraction(reach), norm)
    }
    assert expected <= set(near.tolist()) <= set(range(min(start, count), count))


@pytest.mark.parametrize("shape", [(3, 32, 32), (4_000,)], ids=str)
def test_near_misses_nothing_where_a_sketch_is_all_rounding(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        frequencies = 1_000.0 * rng.standard_normal(shape)
        frequencies[tuple(slice(192) if len(shape) == 1 else slice(8) for _ in shape)] = 0.0
        x: Vector = idctn(frequencies, norm="ortho").ravel()
        y = x.copy()
        y[:4] = np.nextafter(y[:4], np.inf)
        index = SketchIndex(shape)
        index.add(y, ball(0.0))
        assert index.near(x, 1.001 * float(np.linalg.norm(x - y))).tolist() == [0]


def smooth_images(count: int) -> NDArray[np.float64]:
    """Images with the spectrum of natural ones: amplitude falls with frequency."""
    rng = np.random.default_rng(0)
    fall = 1.0 + np.add.outer(np.arange(32), np.arange(32))
    noise = rng.standard_normal((count, 3, 32, 32)) / fall
    images: NDArray[np.float64] = idctn(noise, norm="ortho", axes=(2, 3))
    return images.reshape(count, -1)


def test_near_rules_almost_all_images_out() -> None:
    images = smooth_images(1_000)
    index = SketchIndex((3, 32, 32))
    for image in images:
        index.add(image, ball(0.25))
    distances = np.linalg.norm(images - images[500], axis=1)
    near = index.near(images[500], 0.25)
    assert set(np.flatnonzero(distances <= 0.5).tolist()) <= set(near.tolist())
    assert len(near) <= 10


def test_the_order_of_entries_is_kept_while_the_index_grows() -> None:
    index = SketchIndex((2,))
    for i in range(100):
        index.add(np.array([float(i), 0.0]), ball(0.1))
        assert index.near(np.array([float(i), 0.0]), 0.1).tolist() == [i]
        assert index.ball(i) == ball(0.1)
    for i in range(100):
        assert index.near(np.array([float(i), 0.0]), 0.1).tolist() == [i]
        assert index.near(np.array([float(i), 0.0]), 0.1, start=i).tolist() == [i]
        assert index.near(np.array([float(i), 0.0]), 0.1, start=i + 1).tolist() == []


def test_a_long_vector_needs_no_matrix_of_its_length_squared() -> None:
    x = np.random.default_rng(0).random(1_000_000)
    assert np.linalg.norm(Sketch(x.shape)(x)) <= np.linalg.norm(x)
