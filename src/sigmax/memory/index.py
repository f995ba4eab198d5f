"""Exact search by pruning: sketches that never overestimate a distance rule almost all entries out.

First a handful of numbers per entry, then, for what they leave over, all of its sketch. Only sketches are
kept in memory; the inputs themselves stay in the ledger.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

from sigmax.memory.balls import Ball, Vector

# Natural images keep most of their energy in low frequencies, so that the sketch of a CIFAR-10 image in
# 3 x 8 x 8 numbers sees most of a distance, and its lowest 16 numbers a good part of it.
_KEPT = {1: (192,), 2: (14, 14), 3: (3, 8, 8)}
_COARSE = 16

# A sketch computed in float64 errs by far less than this share of the input's norm, also where hardly
# anything of the input is in low frequencies.
_SKETCH_ERROR = 2.0**-24

# Numbers multiplied at a time: products this small stay in one thread. Where the cores are taken, one that
# OpenBLAS spreads over two threads waits 8 ms for the second instead of taking 0.2 ms.
_PRODUCT = 2**13
_FIRST_CAPACITY = 512


@final
class Sketch:
    """The lowest frequencies of an orthonormal DCT: ||P(x - y)||_2 <= ||x - y||_2 <= ||x - y||_1.

    They are in the order of their frequency, so that the first numbers of a sketch are a sketch too.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        kept = _KEPT.get(len(shape), (1,) * (len(shape) - 3) + _KEPT[3])
        counts = [min(length, count) for length, count in zip(shape, kept, strict=True)]
        self.shape = shape
        self.size = int(np.prod(counts))
        self._lowest = tuple(slice(count) for count in counts)
        self._order = np.argsort(sum(np.indices(counts)), axis=None, kind="stable")

    def __call__(self, x: Vector) -> NDArray[np.float32]:
        """The sketch of one flattened input, (size,)."""
        frequencies: Vector = dctn(x.reshape(self.shape), norm="ortho")
        return frequencies[self._lowest].ravel()[self._order].astype(np.float32)


@final
class SketchIndex:
    """Balls and sketches of all entries, in the order of the ledger."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sketch = Sketch(shape)
        self._count = 0
        self._labels = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._radii = np.zeros(_FIRST_CAPACITY)
        self._sigmas = np.zeros(_FIRST_CAPACITY)
        self._reaches = np.zeros(_FIRST_CAPACITY)  # radius, and what sketching may overestimate
        self._coarse = _Projections(min(_COARSE, self.sketch.size))
        self._fine = _Projections(self.sketch.size)

    def __len__(self) -> int:
        return self._count

    def ball(self, place: int) -> Ball:
        """What the entry at this place claims."""
        return Ball(label=int(self._labels[place]), radius=float(self._radii[place]), sigma=float(self._sigmas[place]))

    def add(self, x: Vector, ball: Ball) -> None:
        """Append an entry; interrupted anywhere, the entry is in or it is not."""
        place = self._count
        if place == len(self._reaches):
            self._labels = np.resize(self._labels, 2 * place)
            self._radii = np.resize(self._radii, 2 * place)
            self._sigmas = np.resize(self._sigmas, 2 * place)
            self._reaches = np.resize(self._reaches, 2 * place)
        sketch, margin = self._sketched(x)
        self._fine.put(place, sketch)
        self._coarse.put(place, sketch[: self._coarse.size])
        self._labels[place], self._radii[place], self._sigmas[place] = ball.label, ball.radius, ball.sigma
        self._reaches[place] = ball.radius + margin
        self._count = place + 1

    def near(self, x: Vector, reach: float, *, start: int = 0) -> NDArray[np.intp]:
        """A superset of the entries from `start` on whose ball meets or touches B(x, reach)."""
        sketch, margin = self._sketched(x)
        reaches = self._reaches[start : self._count] + (reach + margin)
        left = self._coarse.within(sketch[: self._coarse.size], reaches, slice(start, self._count))
        if self._coarse.size == self._fine.size or not left.size:
            return start + left
        return start + left[self._fine.within(sketch, reaches[left], start + left)]

    def _sketched(self, x: Vector) -> tuple[NDArray[np.float32], float]:
        """The sketch of x, and by how much sketching can overestimate a distance from x."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.sketch(x), _SKETCH_ERROR * float(np.linalg.norm(x))


@final
class _Projections:
    """Points of an orthogonal projection, for distances from below."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._points = np.zeros((_FIRST_CAPACITY, size), dtype=np.float32)
        self._squares = np.zeros(_FIRST_CAPACITY)

    def put(self, place: int, point: NDArray[np.float32]) -> None:
        """Write the point at the next place."""
        if place == len(self._squares):
            self._points = np.resize(self._points, (2 * place, self.size))
            self._squares = np.resize(self._squares, 2 * place)
        self._points[place] = point
        self._squares[place] = _square(point)

    def within(
        self, point: NDArray[np.float32], reaches: NDArray[np.float64], places: slice | NDArray[np.intp]
    ) -> NDArray[np.intp]:
        """Which of these places may be within its reach of the point, as positions in `places`."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = self._squares[places] + _square(point)
            between = squares - 2.0 * _products(self._points[places], point)  # ||P(x - y)||^2 up to rounding
            # Rounding the sketches to float32 and summing their products in it: relative to the norms,
            # and below the normal numbers of float32 by less than the smallest of them.
            slack = 4 * (self.size + 16) * (2.0**-24 * squares + np.finfo(np.float32).tiny)
            is_far = between > reaches**2 + slack
            # What overflowed is not known to be far.
            return np.flatnonzero(~is_far | np.isinf(between))


def _square(point: NDArray[np.float32]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        wide = point.astype(np.float64)
        return float(wide @ wide)


def _products(points: NDArray[np.float32], point: NDArray[np.float32]) -> NDArray[np.float32]:
    """The products of all points (n, size) with one (size,), in parts that stay in one thread."""
    rows = max(1, _PRODUCT // points.shape[1])
    whole = len(points) - len(points) % rows
    blocks = points[:whole].reshape(-1, rows, points.shape[1]) @ point
    return np.concatenate([blocks.ravel(), points[whole:] @ point])
