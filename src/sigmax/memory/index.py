"""Exact search by pruning: a sketch that never overestimates a distance rules almost all entries out."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

from sigmax.memory.balls import Ball, Vector

# Natural images keep most of their energy in low frequencies, so that the sketch of a CIFAR-10 image in
# 3 x 8 x 8 numbers sees most of a distance.
_KEPT = {1: (192,), 2: (14, 14), 3: (3, 8, 8)}

# A sketch computed in float64 errs by far less than this share of the input's norm, also where hardly
# anything of the input is in low frequencies.
_SKETCH_ERROR = 2.0**-24

# Sketches multiplied at a time: products this small stay in one thread. Where the cores are taken, one that
# OpenBLAS spreads over two threads waits 8 ms for the second instead of taking 0.2 ms.
_BLOCK = 32


@final
class Sketch:
    """The lowest frequencies of an orthonormal DCT: ||P(x - y)||_2 <= ||x - y||_2 <= ||x - y||_1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        kept = _KEPT.get(len(shape), (1,) * (len(shape) - 3) + _KEPT[3])
        counts = [min(length, count) for length, count in zip(shape, kept, strict=True)]
        self.shape = shape
        self.size = int(np.prod(counts))
        self._lowest = tuple(slice(count) for count in counts)

    def __call__(self, x: Vector) -> NDArray[np.float32]:
        """The sketch of one flattened input, (size,)."""
        frequencies: Vector = dctn(x.reshape(self.shape), norm="ortho")
        return frequencies[self._lowest].ravel().astype(np.float32)


@final
class SketchIndex:
    """Balls and sketches of all entries, in the order of the ledger."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sketch = Sketch(shape)
        self.balls: list[Ball] = []
        self._sketches = np.zeros((_BLOCK, self.sketch.size), dtype=np.float32)
        self._squares = np.zeros(_BLOCK, dtype=np.float64)
        self._reaches = np.zeros(_BLOCK, dtype=np.float64)

    def add(self, x: Vector, ball: Ball) -> None:
        """Append an entry; interrupted anywhere, the entry is in or it is not."""
        place = len(self.balls)
        if place == len(self._reaches):
            self._sketches = np.resize(self._sketches, (2 * place, self.sketch.size))
            self._squares = np.resize(self._squares, 2 * place)
            self._reaches = np.resize(self._reaches, 2 * place)
        self._sketches[place], self._squares[place], margin = self._sketched(x)
        self._reaches[place] = ball.radius + margin
        self.balls.append(ball)

    def near(self, x: Vector, reach: float, *, start: int = 0) -> NDArray[np.intp]:
        """A superset of the entries from `start` on whose ball meets or touches B(x, reach)."""
        sketch, square, margin = self._sketched(x)
        first, stop = start - start % _BLOCK, len(self.balls)
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = self._sketches[first : stop + -stop % _BLOCK].reshape(-1, _BLOCK, self.sketch.size)
            products = (blocks @ sketch).ravel()[start - first : stop - first]
            squares = self._squares[start:stop] + square
            between = squares - 2.0 * products  # ||P(x - y)||^2 up to rounding
            # Rounding the sketches to float32 and summing their products in it: relative to the norms,
            # and below the normal numbers of float32 by less than the smallest of them.
            slack = 4 * (self.sketch.size + 16) * (2.0**-24 * squares + np.finfo(np.float32).tiny)
            is_far = between > (self._reaches[start:stop] + (reach + margin)) ** 2 + slack
            # What overflowed is not known to be far.
            return start + np.flatnonzero(~is_far | np.isinf(between))

    def _sketched(self, x: Vector) -> tuple[NDArray[np.float32], float, float]:
        """The sketch of x, its squared norm, and by how much sketching can overestimate a distance from x."""
        with np.errstate(over="ignore", invalid="ignore"):
            sketch = self.sketch(x)
            wide = sketch.astype(np.float64)
            return sketch, float(wide @ wide), _SKETCH_ERROR * float(np.linalg.norm(x))
