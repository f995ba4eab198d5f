"""Exact search by pruning: a sketch that never overestimates a distance rules almost all entries out."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from sigmax.memory.balls import Vector

# Natural images keep most of their energy in low frequencies, so that the sketch of a CIFAR-10 image in
# 3 x 8 x 8 numbers sees most of a distance.
_KEPT = {1: (192,), 2: (14, 14), 3: (3, 8, 8)}


@final
class Sketch:
    """The lowest frequencies of an orthonormal DCT: ||P(x - y)||_2 <= ||x - y||_2 <= ||x - y||_1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        kept = _KEPT.get(len(shape), (1,) * (len(shape) - 3) + _KEPT[3])
        self._shape = shape
        self._factors = [
            dct(np.eye(length), norm="ortho", axis=0)[:count]  # count length
            for length, count in zip(shape, kept, strict=True)
        ]
        self.size = int(np.prod([len(factor) for factor in self._factors]))

    def __call__(self, x: Vector) -> NDArray[np.float32]:
        """The sketch of one flattened input, (size,)."""
        block = x.reshape(self._shape)
        for factor in self._factors:
            # Contract the first axis and put the result last: after all axes the order is back.
            block = np.tensordot(block, factor, axes=(0, 1))
        return block.ravel().astype(np.float32)


@final
class SketchIndex:
    """Sketches and radii of all entries, in the order of the ledger."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sketch = Sketch(shape)
        self._count = 0
        self._sketches = np.empty((16, self.sketch.size), dtype=np.float32)
        self._squares = np.empty(16, dtype=np.float64)
        self._radii = np.empty(16, dtype=np.float64)

    def __len__(self) -> int:
        return self._count

    def add(self, x: Vector, radius: float) -> None:
        """Append an entry."""
        if self._count == len(self._radii):
            self._sketches = np.resize(self._sketches, (2 * self._count, self.sketch.size))
            self._squares = np.resize(self._squares, 2 * self._count)
            self._radii = np.resize(self._radii, 2 * self._count)
        sketch = self.sketch(x)
        self._sketches[self._count] = sketch
        self._squares[self._count] = _square(sketch)
        self._radii[self._count] = radius
        self._count += 1

    def near(self, x: Vector, reach: float, *, start: int = 0) -> NDArray[np.intp]:
        """A superset of the entries from `start` on whose ball meets or touches B(x, reach)."""
        sketch = self.sketch(x)
        part = slice(start, self._count)
        squares = self._squares[part] + _square(sketch)
        between = squares - 2.0 * (self._sketches[part] @ sketch)  # ||P(x - y)||^2 up to rounding
        # Rounding the sketches to float32 and summing their products in it: both relative to the norms.
        slack = 4 * (self.sketch.size + 16) * 2.0**-24 * squares
        return start + np.flatnonzero(between <= (self._radii[part] + reach) ** 2 + slack)


def _square(sketch: NDArray[np.float32]) -> float:
    wide = sketch.astype(np.float64)
    return float(wide @ wide)
