"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory.balls import (
    Neighbour,
    Vector,
    compare_distance,
    deepest_home,
    depth,
    distance_bounds,
    inherit,
    is_inside,
    settle,
)
from sigmax.memory.index import Numbers, Sketch, SketchedBalls, SketchIndex
from sigmax.memory.ledger import Entry, Ledger

# Inputs settled at a time, in one transaction: enough that waiting for the disk costs each little.
_BLOCK = 256

# Inputs compared at a time: bounds what a crowd of neighbours takes.
_CROWD_BYTES = 32 * 2**20

Input = Tensor | NDArray[np.floating]


@final
class CertificateMemory:
    """All answers given so far, as balls with labels; entries with different labels never share a point.

    Threads and processes may share one; a signal handler must not call it in the middle of another call.

    Args:
        norm: The norm of the balls, 1 or 2: that of the certificates it settles.
        fingerprint: What it belongs to, usually `SmoothedClassifier.fingerprint`.
        path: A SQLite file that several processes may share; None: in this process only.
    """

    def __init__(self, *, norm: int, fingerprint: str | None = None, path: Path | None = None) -> None:
        if norm not in (1, 2):
            raise InvalidInputError(f"expected norm 1 or 2, got norm={norm}")
        self.norm = norm
        self._lock = threading.RLock()
        self._index: SketchIndex | None = None  # None until the first entry says the shape
        self._is_shared = path is not None
        self._is_current = False  # whether it surely has all entries, and left no transaction open
        self._ledger = Ledger(path, norm=norm, fingerprint=fingerprint)
        try:
            self._catch_up()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path, *, norm: int, fingerprint: str | None = None) -> Self:
        """Open or create a durable memory in a SQLite file.

        A file that belongs to another norm or fingerprint is refused: certificates of one model say
        nothing about another.
        """
        if "://" in str(path):
            raise InvalidInputError(f"expected a file path, got {path}; this version keeps memories in SQLite files")
        return cls(norm=norm, fingerprint=fingerprint, path=Path(path))

    @classmethod
    def existing(cls, path: str | Path) -> Self:
        """Open a memory file as whatever it says it is, to inspect it."""
        norm, fingerprint = Ledger.owner(Path(path))
        return cls.open(path, norm=norm, fingerprint=fingerprint)

    def __len__(self) -> int:
        return len(self._index) if self._index is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; the memory cannot be used afterwards."""
        with self._lock:
            self._is_current = False
            self._ledger.close()

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they were settled."""
        last = 0
        while page := self._page(last):
            yield from page
            last = page[-1].id

    def settle(self, x: Input, point: PointCertificate) -> SettledCertificate:
        """Turn what sampling says about x into the answer to give, and store it before giving it.

        An input that is stored gets the same answer again. An abstention outside every region claims nothing
        and is not stored: it may be answered later.
        """
        return self.settle_many(x[None], [point])[0]

    def settle_many(self, x: Input, points: Sequence[PointCertificate]) -> list[SettledCertificate]:
        """Settle a batch of inputs (batch, …): the answers of settling one after another, for less.

        Inputs share the transactions that store them. Interrupted, the memory holds the answers to the
        first inputs of the batch and no others, and settling them again gives the same.
        """
        if len(x) != len(points):
            raise InvalidInputError(f"expected a certificate for each input, got {len(points)} for {len(x)} inputs")
        for point in points:
            self._check_point(point)
        answers: list[SettledCertificate] = []
        for start in range(0, len(x), _BLOCK):
            block = slice(start, start + _BLOCK)
            pixels, flat = _as_arrays(x[block])
            with self._lock:
                answers += self._settle_block(pixels, flat, points[block])
        return answers

    def lookup(self, x: Input) -> SettledCertificate | None:
        """The answer that the memory already holds for x, without any sampling; None if it holds none."""
        return self.lookup_many(x[None])[0]

    def lookup_many(self, x: Input) -> list[SettledCertificate | None]:
        """What `lookup` answers to each of a batch of inputs (batch, …)."""
        answers: list[SettledCertificate | None] = []
        for start in range(0, len(x), _BLOCK):
            pixels, flat = _as_arrays(x[start : start + _BLOCK])
            with self._lock:
                self._refresh()
                answers += [self._held(query) for query in self._queries(pixels.shape[1:], flat)]
        return answers

    def contradictions(self, on_progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, int]]:
        """Every pair of entries (by id) with different labels that share a point: there must be none.

        All pairs are decided, exactly: the sketch only rules out pairs that are surely far apart. A file that
        is damaged, and a sketch that is not that of its input, are refused.
        """
        with self._lock:
            self._refresh()
            self._ledger.check()
        for i in range(len(self)):
            with self._lock:
                rivals = self._rivals(i)
            yield from ((i + 1, j + 1) for j in rivals)
            if on_progress is not None:
                on_progress(1)

    def _settle_block(
        self, pixels: NDArray[np.floating], flat: Vector, points: Sequence[PointCertificate]
    ) -> list[SettledCertificate]:
        """Settle inputs in one transaction."""
        # Search without the lock of the file first; under it, only what others appended since is new.
        self._refresh()
        queries = self._queries(pixels.shape[1:], flat)
        seen = len(self)
        found = [self._neighbours(query, point) for query, point in zip(queries, points, strict=True)]
        known = [answer for answer, _ in found if answer is not None]
        if len(known) == len(points):
            return known
        self._is_current = False
        with self._ledger.locked():
            self._catch_up()
            self._check_shape(pixels.shape[1:])
            answers: list[SettledCertificate] = []
            rows: list[int] = []  # of the inputs that are new entries
            fresh = SketchIndex(self._sketch(pixels.shape[1:]))
            for row, (query, point, (answer, neighbours)) in enumerate(zip(queries, points, found, strict=True)):
                if answer is None:
                    answer, since = self._neighbours(query, point, start=seen)
                    neighbours += since
                if answer is None:
                    same, since = self._see(query, point, fresh, lambda places: flat[[rows[i] for i in places]])
                    answer = answers[rows[same]] if same is not None else None
                    neighbours += since
                if answer is None:
                    answer = settle(point, neighbours)
                    if answer.label is not None:
                        rows.append(row)
                        fresh.add(_sketched([query], [answer]))
                answers.append(answer)
            if not rows:
                return answers
            stored = [answers[row] for row in rows]
            balls = _sketched([queries[row] for row in rows], stored)
            self._ledger.append(len(self) + 1, [pixels[row] for row in rows], stored, balls)
        # Committed: from here on the answers are given.
        if self._index is None:
            self._index = SketchIndex(fresh.sketch)
        self._index.add(balls)
        return answers

    def _held(self, query: "_Query") -> SettledCertificate | None:
        """What the memory answers without any sampling."""
        known, neighbours = self._neighbours(query, None)
        if known is not None:
            return known
        home = deepest_home(neighbours)
        return inherit(home, None, depth(home)) if home is not None else None

    def _rivals(self, i: int) -> list[int]:
        """Places after i of the entries that contradict it."""
        assert self._index is not None, "there is an entry at this place"
        own = self._index.ball(i)
        (query,) = self._queries(self._index.sketch.shape, self._ledger.points([i + 1]))
        near = self._index.near(query.sketch, query.margin, radius=own.radius, label=own.label, start=i)
        if i not in near:
            raise MemoryRefusedError(
                f"expected the sketch of entry {i + 1} to be that of its input, got another; "
                "restore the file from a copy"
            )
        others = [j for j in near if self._index.ball(j).label != own.label]
        rivals = []
        for j, y, low, _ in self._measured(query.x, others, self._read):
            reach = Fraction(own.radius) + Fraction(self._index.ball(j).radius)
            # Open balls that only touch share no point; equal centres always do.
            if low <= reach and (np.array_equal(query.x, y) or compare_distance(query.x, y, reach, norm=self.norm) < 0):
                rivals.append(j)
        return rivals

    def _page(self, after: int) -> list[Entry]:
        with self._lock:
            self._ledger.roll_back()
            return self._ledger.read(after=after)

    def _refresh(self) -> None:
        """Be as the ledger is: without a transaction that an interrupt left open, with all entries."""
        if not self._is_current:
            self._ledger.roll_back()
            self._catch_up()
            self._is_current = not self._is_shared

    def _catch_up(self) -> None:
        """Take in what other processes have appended."""
        while balls := self._ledger.balls(after=len(self)):
            if self._index is None:
                self._index = SketchIndex(Sketch(self._ledger.shape()))
            self._index.add(balls)

    def _sketch(self, shape: tuple[int, ...]) -> Sketch:
        return self._index.sketch if self._index is not None else Sketch(shape)

    def _queries(self, shape: tuple[int, ...], x: Vector) -> list["_Query"]:
        """Inputs (batch, d) as the search sees them; their sketches are one product."""
        self._check_shape(shape)
        sketch = self._sketch(shape)
        sketches = sketch(x)
        margins = sketch.margins(x, sketches).tolist()
        return [_Query(*query) for query in zip(x, sketches, margins, strict=True)]

    def _neighbours(
        self, query: "_Query", point: PointCertificate | None, *, start: int = 0
    ) -> tuple[SettledCertificate | None, list[Neighbour]]:
        """The answer of the entry that is x itself, if any, and how x sees the entries near it."""
        if self._index is None:
            return None, []
        same, neighbours = self._see(query, point, self._index, self._read, start=start)
        answer = self._ledger.read(after=same, limit=1)[0].answer if same is not None else None
        return answer, neighbours

    def _see(
        self,
        query: "_Query",
        point: PointCertificate | None,
        index: SketchIndex,
        read: Callable[[list[int]], Vector],
        *,
        start: int = 0,
    ) -> tuple[int | None, list[Neighbour]]:
        """The place of the entry that is x itself, if any, and how x sees the entries that matter to it.

        Args:
            query: The input x.
            point: What sampling says about it; None: it was not sampled.
            index: The entries.
            read: Gives the inputs (m, d) at some places of the index.
            start: The first place to look at.
        """
        radius, label = (point.radius, point.label) if point is not None else (0.0, None)
        near = index.near(query.sketch, query.margin, radius=radius, label=label, start=start)
        neighbours = []
        for i, y, low, high in self._measured(query.x, near, read):
            if low == 0.0 and np.array_equal(query.x, y):
                return i, []
            ball = index.ball(i)
            has_inside = is_inside(query.x, y, ball.radius, low, high, norm=self.norm)
            neighbours.append(Neighbour(ball=ball, low=low, high=high, has_inside=has_inside))
        return None, neighbours

    def _read(self, places: list[int]) -> Vector:
        return self._ledger.points([i + 1 for i in places])

    def _measured(
        self, x: Vector, places: list[int], read: Callable[[list[int]], Vector]
    ) -> Iterator[tuple[int, Vector, float, float]]:
        """Each of these places with its input and with bounds on its distance from x."""
        step = max(1, _CROWD_BYTES // x.nbytes)
        for start in range(0, len(places), step):
            block = places[start : start + step]
            points = read(block)  # m d
            lows, highs = distance_bounds(x, points, norm=self.norm)
            yield from zip(block, points, lows.tolist(), highs.tolist(), strict=True)

    def _check_point(self, point: PointCertificate) -> None:
        if point.norm != self.norm:
            raise InvalidInputError(
                f"expected a certificate in l{self.norm}, got one in l{point.norm}; use a memory with norm={point.norm}"
            )
        if not 0.0 <= point.radius < math.inf:
            raise InvalidInputError(
                f"expected a finite radius >= 0, got radius={point.radius}; certify the input again"
            )

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if self._index is not None and shape != self._index.sketch.shape:
            raise InvalidInputError(
                f"expected an input of shape {self._index.sketch.shape} like the others in this memory, got {shape}; "
                "use a memory of its own"
            )


@dataclass(frozen=True, slots=True)
class _Query:
    """An input as the search sees it."""

    x: Vector  # flattened
    sketch: Numbers
    margin: float  # by how much the sketch may overestimate a distance


def _sketched(queries: Sequence[_Query], answers: Sequence[SettledCertificate]) -> SketchedBalls:
    """Answers with a label as the search keeps them."""
    return SketchedBalls(
        labels=np.array([answer.label for answer in answers], dtype=np.int64),
        radii=np.array([answer.radius for answer in answers]),
        sigmas=np.array([answer.sigma for answer in answers]),
        sketches=np.stack([query.sketch for query in queries]),
        margins=np.array([query.margin for query in queries]),
    )


def _as_arrays(x: Input) -> tuple[NDArray[np.floating], Vector]:
    """Inputs (batch, …) as they are stored, and flattened in float64 as they are measured: both exactly x."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        # NumPy has no bfloat16; float32 holds its numbers exactly.
        pixels = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    else:
        pixels = np.asarray(x)
    if pixels.dtype.kind != "f" or pixels.dtype.itemsize > 8 or pixels.ndim < 2 or pixels.size == 0:
        raise InvalidInputError(
            "expected an input of floating-point numbers of at most 64 bits, "
            f"got {pixels.dtype} of shape {pixels.shape[1:]}"
        )
    if not np.isfinite(pixels).all():
        first = pixels[~np.isfinite(pixels)][0]
        raise InvalidInputError(f"expected an input of finite numbers, got {first} in it; certify it without")
    return pixels, pixels.astype(np.float64).reshape(len(pixels), -1)
