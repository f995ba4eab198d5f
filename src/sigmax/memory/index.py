"""Exact search by pruning: sketches that never overestimate a distance rule out almost all entries.

Entries with similar sketches share a leaf of a tree. A query first rules out whole leaves by the bounding box of their
coarse sketches, then entries by their coarse sketches, then entries by their full sketches. Only sketches are kept in
memory; the inputs stay in the ledger.
"""

from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from sigmax.memory.balls import Ball, Vector

Numbers = NDArray[np.float32]
_Kind = TypeVar("_Kind", bound=np.generic)

# Natural images have most of their energy in low frequencies. So the 3 x 6 x 6 numbers that sketch a CIFAR-10 image
# keep most of a distance, and the first 16 of them, the coarse sketch, a good part. The ledger stores sketches:
# changing these numbers changes its format.
_KEPT = {1: (96,), 2: (10, 10), 3: (3, 6, 6)}
_COARSE = 16

# The error of a sketch, computed in float64 and rounded to float32, is below this share of the norm of the input,
# plus _TINY per number for what float32 cannot hold. It holds even for an input without low frequencies.
_SKETCH_ERROR = 2.0**-23
_TINY = float(np.finfo(np.float32).tiny)

_SUM_ERROR = 2.0**-16  # float32 sums of so few squares have a far smaller relative error
_LEAF = 512  # entries per leaf at most: quick to scan, and a million entries need only a few thousand leaves
_DEPTH = 4  # the tree is rebuilt when it is deeper than this many times the depth of a balanced one
_LONGEST = 1_024  # the longest axis for which a matrix of cosines is kept, which takes a few megabytes


@final
class Sketch:
    """The lowest frequencies of an orthonormal DCT: ||P(x - y)||_2 <= ||x - y||_2 <= ||x - y||_1.

    Its numbers are sorted by frequency, so the first numbers of a sketch are a coarser sketch.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        kept = _KEPT.get(len(shape), (1,) * (len(shape) - 3) + _KEPT[3])
        counts = [min(length, count) for length, count in zip(shape, kept, strict=True)]
        self.shape = shape
        self.size = int(np.prod(counts))
        self._counts = counts
        self._cosines = {n: dct(np.eye(n), norm="ortho") for n in set(shape) if n <= _LONGEST}
        self._order = np.argsort(sum(np.indices(counts)), axis=None, kind="stable")

    def __call__(self, x: Vector) -> Numbers:
        """The sketches (*batch, size) of flattened inputs (*batch, d)."""
        y, done = x, 1
        with np.errstate(over="ignore", invalid="ignore"):
            for length, count in zip(reversed(self.shape), reversed(self._counts), strict=True):
                y = self._lowest(y.reshape(-1, length, done), count)
                done *= count
            return y.reshape(-1, done)[:, self._order].astype(np.float32).reshape(*x.shape[:-1], done)

    def margins(self, x: Vector, sketches: Numbers) -> Vector:
        """How much the sketches (*batch, size) may overestimate a distance from the inputs (*batch, d)."""
        with np.errstate(over="ignore"):
            errors = _SKETCH_ERROR * np.sqrt(np.vecdot(x, x)) + self.size * _TINY
        are_finite = np.isfinite(sketches)
        return errors if are_finite.all() else np.where(are_finite.all(axis=-1), errors, np.inf)

    def _lowest(self, y: Vector, count: int) -> Vector:
        """The lowest frequencies (m, count, k) along the middle axis of (m, length, k)."""
        m, length, k = y.shape
        lowest: Vector
        if length > _LONGEST:
            lowest = dct(y, norm="ortho", axis=1)[:, :count]
        elif k == 1:  # one product instead of m
            lowest = (y.reshape(m, length) @ self._cosines[length][:, :count])[..., None]
        else:
            lowest = self._cosines[length][:, :count].T @ y
        return lowest


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchedBalls:
    """What the search needs of entries."""

    labels: NDArray[np.int64]  # m
    radii: Vector  # m
    alphas: Vector  # m
    sketches: Numbers  # m size
    margins: Vector  # m; how much a sketch may overestimate a distance

    def __len__(self) -> int:
        return len(self.labels)


@final
class SketchIndex:
    """Balls and sketches of all entries; the position of an entry is its place in the order of the ledger."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self._count = 0
        self._labels = np.empty(0, dtype=np.int64)
        self._radii, self._alphas = np.empty(0), np.empty(0)
        self._leaves: list[_Leaf] = []
        self._root: _Node | None = None  # None until there is a leaf
        self._depth = 0  # of the tree
        # For each leaf: the bounding box of its coarse sketches, and the farthest reach of its entries.
        coarse = min(_COARSE, sketch.size)
        self._lows, self._highs = (np.empty((0, coarse), dtype=np.float32) for _ in range(2))
        self._reaches = np.empty(0)

    def __len__(self) -> int:
        return self._count

    def ball(self, position: int) -> Ball:
        """The ball of the entry at this position."""
        label, radius, alpha = self._labels[position], self._radii[position], self._alphas[position]
        return Ball(label=int(label), radius=float(radius), alpha=float(alpha))

    def add(self, balls: SketchedBalls) -> None:
        """Append entries. An interrupt leaves either all or none of them; if none, they can be added again."""
        first, last = self._count, self._count + len(balls)
        self._labels = _written(self._labels, first, balls.labels)
        self._radii = _written(self._radii, first, balls.radii)
        self._alphas = _written(self._alphas, first, balls.alphas)
        entries = _Leaf(balls.sketches, balls.radii + balls.margins, np.arange(first, last))
        self._root = self._grown(self._root, entries, 1)
        self._count = last
        if self._depth > _DEPTH * len(self._leaves).bit_length():
            self._depth, self._root = 0, self._balanced(list(range(len(self._leaves))), 1)

    def near(
        self, sketch: Numbers, margin: float, *, radius: float = 0.0, label: int | None = None, start: int = 0
    ) -> list[int]:
        """Sorted positions that include every entry that matters to a ball B(x, radius) with this label.

        An entry matters if its region contains x, or if it has another label and its ball meets or touches
        B(x, radius). The label None differs from every label. Positions before `start` are left out.
        """
        if start >= self._count:
            return []
        found: list[int] = []
        with np.errstate(over="ignore", invalid="ignore"):
            reaches = self._reaches[: len(self._leaves)] + (radius + margin)
            for i in np.flatnonzero(_may_be_near(self._gaps(sketch), reaches)).tolist():
                leaf = self._leaves[i]
                left = leaf.within(sketch, reaches[i])
                if left.size:
                    positions = leaf.positions[left]
                    own = radius if label is None else radius * (self._labels[positions] != label)
                    squares = _squares(leaf.sketches[left] - sketch)
                    found += positions[_may_be_near(squares, leaf.reaches[left] + margin + own)].tolist()
        return sorted({position for position in found if start <= position < self._count})

    def closest(self, sketch: Numbers, count: int) -> tuple[list[int], list[float]]:
        """The positions with the closest sketches, closest first, and how far these sketches are."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.full(self._count, np.inf)
            for leaf in self._leaves:
                positions = leaf.positions[: leaf.count]
                is_counted = positions < self._count
                squares[positions[is_counted]] = _squares(leaf.sketches[: leaf.count][is_counted] - sketch)
        order = np.argsort(squares, kind="stable")[:count]
        return order.tolist(), np.sqrt(squares[order]).tolist()

    def _gaps(self, sketch: Numbers) -> Numbers:
        """Squared distances from a coarse sketch to the bounding box of each leaf."""
        count, coarse = len(self._leaves), sketch[:_COARSE]
        gaps = np.maximum(self._lows[:count] - coarse, coarse - self._highs[:count])
        return _squares(np.maximum(gaps, 0.0))

    def _grown(self, node: "_Node | None", entries: "_Leaf", depth: int) -> "_Node":
        """The node that replaces this one at this depth when entries are added below it.

        At any moment every counted entry is in one or two leaves and inside their boxes. So an interrupt can make
        the tree less tidy, but never wrong.
        """
        if node is None:
            self._set_leaf(0, entries)
            return self._parted(0, depth)
        if isinstance(node, int):
            leaf = self._leaves[node]
            leaf.extend(entries)
            self._set_leaf(node, leaf)
            return self._parted(node, depth)
        is_high = entries.coarse[:, node.axis] > node.at
        if is_high.any():
            node.high = self._grown(node.high, entries.part(is_high), depth + 1)
        if not is_high.all():
            node.low = self._grown(node.low, entries.part(~is_high), depth + 1)
        return node

    def _parted(self, i: int, depth: int) -> "_Node":
        """The node for leaf i at this depth: the leaf itself, or its halves if it is too large."""
        self._depth = max(self._depth, depth)
        if self._leaves[i].count <= _LEAF:
            return i
        j = len(self._leaves)
        axis, at, low, high = self._leaves[i].halves()
        self._set_leaf(j, high)
        self._set_leaf(i, low)
        return _Split(axis, at, self._parted(i, depth + 1), self._parted(j, depth + 1))

    def _balanced(self, leaves: list[int], depth: int) -> "_Node":
        """A balanced tree over these leaves, split at the median of the centres of their boxes.

        Inputs that arrive sorted make the tree as deep as it has leaves. The tree decides only which leaf a new
        entry goes to, so rebuilding it affects the speed of a search but not its result.
        """
        self._depth = max(self._depth, depth)
        if len(leaves) == 1:
            return leaves[0]
        with np.errstate(over="ignore", invalid="ignore"):
            centres = (self._lows[leaves] + self._highs[leaves]) / 2
            axis = int(centres.var(axis=0).argmax())
            order = centres[:, axis].argsort(kind="stable")
        half = len(leaves) // 2
        low, high = ([leaves[i] for i in part] for part in (order[:half], order[half:]))
        at = float(centres[order[half - 1], axis])
        return _Split(axis, at, self._balanced(low, depth + 1), self._balanced(high, depth + 1))

    def _set_leaf(self, i: int, leaf: "_Leaf") -> None:
        coarse, reaches = leaf.coarse[: leaf.count], leaf.reaches[: leaf.count]
        self._lows = _written(self._lows, i, coarse.min(axis=0, keepdims=True))
        self._highs = _written(self._highs, i, coarse.max(axis=0, keepdims=True))
        self._reaches = _written(self._reaches, i, reaches.max(keepdims=True))
        self._leaves[i : i + 1] = [leaf]


@final
@dataclass(slots=True)
class _Split:
    """Two subtrees: entries go to `high` if this number of their sketch is above `at`."""

    axis: int
    at: float  # the largest of the low side when it was split
    low: "_Node"
    high: "_Node"


_Node = int | _Split  # an int is the number of a leaf


@final
class _Leaf:
    """Entries with similar sketches; the first `count` rows of each array are in use."""

    def __init__(self, sketches: Numbers, reaches: Vector, positions: NDArray[np.intp]) -> None:
        self.count = len(positions)
        self.coarse = sketches[:, :_COARSE].copy()  # contiguous, because they rule out most entries
        self.sketches = sketches
        self.reaches = reaches  # radius plus margin
        self.positions = positions

    def extend(self, entries: "_Leaf") -> None:
        """Append entries. An interrupt leaves either all or none of them."""
        self.coarse = _written(self.coarse, self.count, entries.coarse)
        self.sketches = _written(self.sketches, self.count, entries.sketches)
        self.reaches = _written(self.reaches, self.count, entries.reaches)
        self.positions = _written(self.positions, self.count, entries.positions)
        self.count += entries.count

    def part(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "_Leaf":
        """Some of the entries."""
        return _Leaf(self.sketches[rows], self.reaches[rows], self.positions[rows])

    def halves(self) -> tuple[int, float, "_Leaf", "_Leaf"]:
        """The axis of largest variance, its median, and the entries on its two sides."""
        coarse, half = self.coarse[: self.count], self.count // 2
        with np.errstate(over="ignore", invalid="ignore"):
            axis = int(coarse.var(axis=0).argmax())
            order = np.argpartition(coarse[:, axis], half)
        low, high = order[:half], order[half:]
        return axis, float(coarse[low, axis].max()), self.part(low), self.part(high)

    def within(self, sketch: Numbers, reach: float) -> NDArray[np.intp]:
        """The entries that the coarse sketches do not rule out."""
        return np.flatnonzero(_may_be_near(_squares(self.coarse[: self.count] - sketch[:_COARSE]), reach))


def _squares(gaps: Numbers) -> Numbers:
    """The squared length of each row, with a relative error below _SUM_ERROR and an absolute one below _TINY."""
    squares: Numbers = np.einsum("ij,ij->i", gaps, gaps)
    return squares


def _may_be_near(squares: Numbers, reaches: Vector | float) -> NDArray[np.bool_]:
    """Which squared distances are not certainly beyond the reach.

    A squared distance that overflows is beyond every reach whose square float32 can hold. All other reaches become
    infinite.
    """
    limits = np.asarray(reaches * reaches * (1.0 + _SUM_ERROR) + _TINY, dtype=np.float32)
    may_be_near: NDArray[np.bool_] = ~(squares > limits)
    return may_be_near


def _written(array: NDArray[_Kind], first: int, rows: NDArray[_Kind]) -> NDArray[_Kind]:
    """The array, or a longer copy of it where it is too short, with these rows from row `first` on."""
    last = first + len(rows)
    if last > len(array):
        longer = np.empty((max(last, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
        longer[: len(array)] = array
        array = longer
    array[first:last] = rows
    return array
