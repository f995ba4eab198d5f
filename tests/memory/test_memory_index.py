"""The sketch never overestimates a distance, so that the index never misses an entry that matters."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.fft import idctn

from sigmax.memory import index as module
from sigmax.memory.balls import Ball, Vector
from sigmax.memory.index import Sketch, SketchedBalls, SketchIndex

SHAPES = [(1,), (5,), (300,), (4, 3), (28, 28), (1, 8, 8), (3, 32, 32), (2, 3, 5, 4), (2, 4, 9, 12)]
FLOAT32_ROUNDING = 2.0**-23


def make_index(
    shape: tuple[int, ...], points: Vector, radii: Vector, labels: NDArray[np.int64] | None = None, *, block: int = 1
) -> SketchIndex:
    """An index of these balls, added in blocks of so many."""
    index = SketchIndex(Sketch(shape))
    for start in range(0, len(points), block):
        x = points[start : start + block]
        sketches = index.sketch(x)
        index.add(
            SketchedBalls(
                labels=np.zeros(len(x), np.int64) if labels is None else labels[start : start + block],
                radii=radii[start : start + block],
                alphas=np.full(len(x), 0.25),
                sketches=sketches,
                margins=index.sketch.margins(x, sketches),
            )
        )
    return index


def near(index: SketchIndex, x: Vector, radius: float, label: int | None = None, *, start: int = 0) -> list[int]:
    sketch = index.sketch(x)
    return index.near(sketch, float(index.sketch.margins(x, sketch)), radius=radius, label=label, start=start)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(seed=st.integers(0, 2**32), exponent=st.integers(-12, 12), is_sparse=st.booleans())
@settings(max_examples=30)
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


@pytest.mark.parametrize("shape", [(3,), (10, 10), (3, 6, 6), (1, 3, 6, 6)], ids=str)
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
    label=st.sampled_from([None, 0, 1, 2]),
    block=st.sampled_from([1, 3, 30]),
)
@settings(max_examples=150)
def test_near_misses_nothing_that_matters(
    norm: int, seed: int, count: int, dims: int, exponent: int, start: int, label: int | None, block: int
) -> None:
    rng = np.random.default_rng(seed)
    scale = 10.0**exponent
    points = rng.integers(-4, 5, (count, dims)).astype(np.float64) * (scale / 4)
    radii = rng.choice([0.0, 0.25, 0.5, 1.0], count) * scale
    labels = rng.integers(0, 3, count)
    x = rng.integers(-4, 5, dims).astype(np.float64) * (scale / 4)
    radius = float(rng.choice([0.0, 0.25, 1.0]) * scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAF", 8)  # so that leaves are halved and blocks get leaves of their own
        index = make_index((dims,), points, radii, labels, block=block)
    found = near(index, x, radius, label, start=min(start, count))
    expected = {
        i
        for i in range(min(start, count), count)
        if touches(x, points[i], Fraction(float(radii[i])) + (0 if labels[i] == label else Fraction(radius)), norm)
    }
    assert found == sorted(set(found))
    assert expected <= set(found) <= set(range(min(start, count), count))


@pytest.mark.parametrize("shape", [(3, 32, 32), (4_000,)], ids=str)
def test_near_misses_nothing_where_a_sketch_is_all_rounding(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        frequencies = 1_000.0 * rng.standard_normal(shape)
        frequencies[tuple(slice(192) if len(shape) == 1 else slice(8) for _ in shape)] = 0.0
        x: Vector = idctn(frequencies, norm="ortho").ravel()
        y = x.copy()
        y[:4] = np.nextafter(y[:4], np.inf)
        index = make_index(shape, y[None], np.zeros(1))
        assert near(index, x, 1.001 * float(np.linalg.norm(x - y))) == [0]


def smooth_images(count: int) -> NDArray[np.float64]:
    """Images with the spectrum of natural ones: amplitude falls with frequency."""
    rng = np.random.default_rng(0)
    fall = 1.0 + np.add.outer(np.arange(32), np.arange(32))
    noise = rng.standard_normal((count, 3, 32, 32)) / fall
    images: NDArray[np.float64] = idctn(noise, norm="ortho", axes=(2, 3))
    return images.reshape(count, -1)


@pytest.mark.parametrize("block", [1, 3_000])
def test_near_rules_almost_all_images_out(block: int) -> None:
    images = smooth_images(3_000)
    index = make_index((3, 32, 32), images, np.full(3_000, 0.25), block=block)
    distances = np.linalg.norm(images - images[500], axis=1)
    found = near(index, images[500], 0.25)
    assert set(np.flatnonzero(distances <= 0.5).tolist()) <= set(found)
    assert len(found) <= 10


def test_the_same_label_matters_only_to_what_it_contains() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.5, 0.0], [9.0, 0.0]])
    index = make_index((2,), points, np.full(4, 0.75), np.array([0, 0, 1, 1]))
    x = np.array([0.2, 0.0])
    assert near(index, x, 1.0, None) == [0, 1, 2]
    assert near(index, x, 1.0, 1) == [0, 1]
    assert near(index, x, 1.0, 0) == [0, 2]


def test_the_order_of_entries_is_kept_while_the_index_grows() -> None:
    points = np.stack([np.arange(100.0), np.zeros(100)], axis=1)
    for count in range(1, 101):
        index = make_index((2,), points[:count], np.full(count, 0.1), block=7)
        assert near(index, points[count - 1], 0.1) == [count - 1]
    for i in range(100):
        assert index.ball(i) == Ball(label=0, radius=0.1, alpha=0.25)
        assert near(index, points[i], 0.1) == near(index, points[i], 0.1, start=i) == [i]
        assert near(index, points[i], 0.1, start=i + 1) == []


def test_inputs_that_come_in_order_do_not_make_the_tree_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAF", 2)
    count = 8_000  # beyond what a tree with a level for each leaf could hold
    points = np.stack([np.arange(float(count)), np.zeros(count)], axis=1)
    index = make_index((2,), points, np.full(count, 0.1), block=5)
    assert len(index) == count
    for i in range(0, count, 97):
        assert near(index, points[i], 0.1) == [i]


def test_a_long_vector_needs_no_matrix_of_its_length_squared() -> None:
    x = np.random.default_rng(0).random(1_000_000)
    assert np.linalg.norm(Sketch(x.shape)(x)) <= np.linalg.norm(x)
