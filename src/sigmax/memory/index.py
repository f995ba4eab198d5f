"""Exact search by pruning: sketches that never overestimate a distance rule almost all entries out.

Entries whose sketches lie close together share a leaf of a tree. A query first rules out whole leaves by the box
around their first numbers, then entries by these numbers, then by all of their sketch. Only sketches are kept in
memory; the inputs themselves stay in the ledger.
"""

from dataclasses import dataclass
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

from sigmax.memory.balls import Ball, Vector

Numbers = NDArray[np.float32]
_Kind = TypeVar("_Kind", bound=np.generic)

# Natural images keep most of their energy in low frequencies, so that the sketch of a CIFAR-10 image in
# 3 x 6 x 6 numbers sees most of a distance, and its lowest 16 numbers a good part of it. The ledger stores
# sketches: another choice is another format.
_KEPT = {1: (96,), 2: (10, 10), 3: (3, 6, 6)}
_COARSE = 16

# A sketch computed in float64 and rounded to float32 errs by less than this share of the input's norm, also
# where hardly anything of the input is in low frequencies; of what float32 cannot hold, by less than _TINY.
_SKETCH_ERROR = 2.0**-23
_TINY = float(np.finfo(np.float32).tiny)

# Sums of this many squares in float32 err by far less.
_SUM_ERROR = 2.0**-16

# Entries of a leaf: few enough to look at quickly, enough of them that a million need only some thousand boxes.
_LEAF = 512

# The tree is made anew where it is deeper than so many times what it must be.
_DEPTH = 4

# The longest axis whose cosines are kept as a matrix: a few megabytes at most while it is made.
_LONGEST = 1_024


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
        """By how much the sketches (*batch, size) can overestimate a distance from the inputs (*batch, d)."""
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
    """Entries as the search keeps them, one after another."""

    labels: NDArray[np.int64]  # m
    radii: Vector  # m
    sigmas: Vector  # m
    sketches: Numbers  # m size
    margins: Vector  # m; by how much a sketch may overestimate a distance

    def __len__(self) -> int:
        return len(self.labels)


@final
class SketchIndex:
    """Balls and sketches of all entries; the place of an entry is its order in the ledger."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self._count = 0
        self._labels = np.empty(0, dtype=np.int64)
        self._radii, self._sigmas = np.empty(0), np.empty(0)
        self._leaves: list[_Leaf] = []
        self._root: _Node | None = None  # None until there is a leaf
        self._depth = 0  # of the tree
        # What is common to the entries of each leaf: the box around their first numbers, the farthest reach.
        coarse = min(_COARSE, sketch.size)
        self._lows, self._highs = (np.empty((0, coarse), dtype=np.float32) for _ in range(2))
        self._reaches = np.empty(0)

    def __len__(self) -> int:
        return self._count

    def ball(self, place: int) -> Ball:
        """What the entry at this place claims."""
        return Ball(label=int(self._labels[place]), radius=float(self._radii[place]), sigma=float(self._sigmas[place]))

    def add(self, balls: SketchedBalls) -> None:
        """Append entries; interrupted anywhere, they are in or they are not, and can be added again."""
        first, last = self._count, self._count + len(balls)
        self._labels = _with_room(self._labels, last)
        self._radii = _with_room(self._radii, last)
        self._sigmas = _with_room(self._sigmas, last)
        self._labels[first:last] = balls.labels
        self._radii[first:last], self._sigmas[first:last] = balls.radii, balls.sigmas
        entries = _Leaf(balls.sketches, balls.radii + balls.margins, np.arange(first, last))
        self._root = self._grown(self._root, entries, 1)
        self._count = last
        if self._depth > _DEPTH * len(self._leaves).bit_length():
            self._depth, self._root = 0, self._balanced(list(range(len(self._leaves))), 1)

    def near(
        self, sketch: Numbers, margin: float, *, radius: float = 0.0, label: int | None = None, start: int = 0
    ) -> list[int]:
        """A superset of the entries from `start` on that matter to a ball B(x, radius) with this label, in order.

        These are the entries whose region contains x, and those with another label whose ball meets or
        touches B(x, radius).

        Args:
            sketch: The sketch of x.
            margin: By how much it may overestimate a distance.
            radius: Of the ball around x.
            label: Of the ball around x; None: entries with all labels matter to all of it.
            start: The first place to look at.
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
                    places = leaf.places[left]
                    own = radius if label is None else radius * (self._labels[places] != label)
                    squares = _squares(leaf.sketches[left] - sketch)
                    found += places[_may_be_near(squares, leaf.reaches[left] + margin + own)].tolist()
        return sorted({place for place in found if start <= place < self._count})

    def _gaps(self, sketch: Numbers) -> Numbers:
        """Squared distances from the first numbers of a sketch to the box of each leaf."""
        count, coarse = len(self._leaves), sketch[:_COARSE]
        gaps = np.maximum(self._lows[:count] - coarse, coarse - self._highs[:count])
        return _squares(np.maximum(gaps, 0.0))

    def _grown(self, node: "_Node | None", entries: "_Leaf", depth: int) -> "_Node":
        """Add entries below a node at this depth; what is there then.

        An entry that counts may be in two leaves for a moment, never in none, and is inside the box of its leaf.
        Where this is interrupted, entries are only in worse company.
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
        """The leaf i at this depth, halved until no part of it is too large."""
        self._depth = max(self._depth, depth)
        if self._leaves[i].count <= _LEAF:
            return i
        j = len(self._leaves)
        axis, at, low, high = self._leaves[i].halves()
        self._set_leaf(j, high)
        self._set_leaf(i, low)
        return _Split(axis, at, self._parted(i, depth + 1), self._parted(j, depth + 1))

    def _balanced(self, places: list[int], depth: int) -> "_Node":
        """The leaves at these places below a node at this depth, halved by the middles of their boxes.

        Inputs that come in an order, each farther than the last, make the tree as deep as it has leaves. Which leaf
        a new entry goes to decides how fast it is found, never whether.
        """
        self._depth = max(self._depth, depth)
        if len(places) == 1:
            return places[0]
        with np.errstate(over="ignore", invalid="ignore"):
            middles = (self._lows[places] + self._highs[places]) / 2
            axis = int(middles.var(axis=0).argmax())
            order = middles[:, axis].argsort(kind="stable")
        half = len(places) // 2
        low, high = ([places[i] for i in part] for part in (order[:half], order[half:]))
        at = float(middles[order[half - 1], axis])
        return _Split(axis, at, self._balanced(low, depth + 1), self._balanced(high, depth + 1))

    def _set_leaf(self, i: int, leaf: "_Leaf") -> None:
        coarse = leaf.coarse[: leaf.count]
        self._lows = _with_room(self._lows, i + 1)
        self._highs = _with_room(self._highs, i + 1)
        self._reaches = _with_room(self._reaches, i + 1)
        self._lows[i], self._highs[i] = coarse.min(axis=0), coarse.max(axis=0)
        self._reaches[i] = leaf.reaches[: leaf.count].max()
        self._leaves[i : i + 1] = [leaf]


@final
@dataclass(slots=True)
class _Split:
    """Entries on the two sides of a number of their sketches."""

    axis: int
    at: float  # the largest of the low side when it was split
    low: "_Node"
    high: "_Node"


_Node = int | _Split  # the place of a leaf, or what parts several


@final
class _Leaf:
    """Entries whose sketches lie close together; the first `count` rows of each array are in use."""

    def __init__(self, sketches: Numbers, reaches: Vector, places: NDArray[np.intp]) -> None:
        self.count = len(places)
        self.coarse = sketches[:, :_COARSE].copy()  # once more, side by side: most entries are ruled out by them
        self.sketches = sketches
        self.reaches = reaches  # radius, and what sketching may overestimate
        self.places = places

    def extend(self, entries: "_Leaf") -> None:
        """Take in more entries; interrupted anywhere, they are in or they are not."""
        first, last = self.count, self.count + entries.count
        self.coarse = _with_room(self.coarse, last)
        self.sketches = _with_room(self.sketches, last)
        self.reaches = _with_room(self.reaches, last)
        self.places = _with_room(self.places, last)
        self.coarse[first:last], self.sketches[first:last] = entries.coarse, entries.sketches
        self.reaches[first:last], self.places[first:last] = entries.reaches, entries.places
        self.count = last

    def part(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> "_Leaf":
        """Some of the entries."""
        return _Leaf(self.sketches[rows], self.reaches[rows], self.places[rows])

    def halves(self) -> tuple[int, float, "_Leaf", "_Leaf"]:
        """The number of the sketch in which entries differ most, its middle, and those on its two sides."""
        coarse, half = self.coarse[: self.count], self.count // 2
        with np.errstate(over="ignore", invalid="ignore"):
            axis = int(coarse.var(axis=0).argmax())
            order = np.argpartition(coarse[:, axis], half)
        low, high = order[:half], order[half:]
        return axis, float(coarse[low, axis].max()), self.part(low), self.part(high)

    def within(self, sketch: Numbers, reach: float) -> NDArray[np.intp]:
        """Which entries may be within reach, by the first numbers of their sketches."""
        return np.flatnonzero(_may_be_near(_squares(self.coarse[: self.count] - sketch[:_COARSE]), reach))


def _squares(gaps: Numbers) -> Numbers:
    """The squared length of each row, up to _SUM_ERROR of it and _TINY."""
    squares: Numbers = np.einsum("ij,ij->i", gaps, gaps)
    return squares


def _may_be_near(squares: Numbers, reaches: Vector | float) -> NDArray[np.bool_]:
    """Which squared distances are not surely beyond the reach.

    What overflowed is beyond a reach whose square float32 can hold; one that it cannot hold becomes infinite.
    """
    limits = np.asarray(reaches * reaches * (1.0 + _SUM_ERROR) + _TINY, dtype=np.float32)
    may_be_near: NDArray[np.bool_] = ~(squares > limits)
    return may_be_near


def _with_room(array: NDArray[_Kind], count: int) -> NDArray[_Kind]:
    """The array, or a longer copy of it, with room for so many rows; pages not yet written take no memory."""
    if count <= len(array):
        return array
    longer = np.empty((max(count, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
