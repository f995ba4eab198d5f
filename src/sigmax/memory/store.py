"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

import math
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory.balls import (
    Ball,
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
from sigmax.memory.index import SketchIndex
from sigmax.memory.ledger import Entry, Ledger

# Inputs compared at a time: bounds what a crowd of neighbours takes.
_BLOCK_BYTES = 32 * 2**20

Input = Tensor | NDArray[np.floating]


@final
class CertificateMemory:
    """All answers given so far, as balls with labels; entries with different labels never share a point.

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
            self._ledger.close()

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they were settled."""
        last = 0
        while page := self._page(last):
            yield from page
            last = page[-1].id

    def settle(self, x: Input, point: PointCertificate) -> SettledCertificate:
        """Turn what sampling says about x into the answer to give, and store it before giving it.

        An input that was settled before gets the same answer again. An abstention outside every region
        claims nothing and is not stored.
        """
        self._check_point(point)
        pixels, flat = _as_arrays(x)
        with self._lock:
            # Search without the lock of the file first; under it, only what others appended since is new.
            self._refresh()
            self._check_shape(pixels.shape)
            seen = len(self)
            known, neighbours = self._neighbours(flat, point.radius)
            if known is not None:
                return known
            with self._ledger.locked():
                self._catch_up()
                self._check_shape(pixels.shape)
                known, since = self._neighbours(flat, point.radius, start=seen)
                if known is not None:
                    return known
                answer = settle(point, neighbours + since)
                if answer.label is None:
                    return answer
                self._ledger.append(len(self) + 1, pixels, answer)
            # Committed: from here on the answer is given.
            self._absorb(flat, answer, pixels.shape)
            return answer

    def lookup(self, x: Input) -> SettledCertificate | None:
        """The answer that the memory already holds for x, without any sampling; None if it holds none."""
        pixels, flat = _as_arrays(x)
        with self._lock:
            self._refresh()
            self._check_shape(pixels.shape)
            known, neighbours = self._neighbours(flat, 0.0)
        if known is not None:
            return known
        home = deepest_home(neighbours)
        return inherit(home, None, depth(home)) if home is not None else None

    def contradictions(self, on_progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, int]]:
        """Every pair of entries (by id) with different labels that share a point: there must be none.

        All pairs are decided, exactly: the sketch only rules out pairs that are surely far apart.
        """
        with self._lock:
            self._refresh()
        for i in range(len(self)):
            with self._lock:
                rivals = self._rivals(i)
            yield from ((i + 1, j + 1) for j in rivals)
            if on_progress is not None:
                on_progress(1)

    def _ball(self, place: int) -> Ball:
        assert self._index is not None, "there is an entry at this place"
        return self._index.ball(place)

    def _rivals(self, i: int) -> list[int]:
        """Places after i of the entries that contradict it."""
        own = self._ball(i)
        (x,) = self._ledger.points([i + 1])
        near = [j for j in self._near(x, own.radius, start=i + 1) if self._ball(j).label != own.label]
        rivals = []
        for j, y, low, _ in self._measured(x, near):
            reach = Fraction(own.radius) + Fraction(self._ball(j).radius)
            # Open balls that only touch share no point; equal centres always do.
            if low <= reach and (np.array_equal(x, y) or compare_distance(x, y, reach, norm=self.norm) < 0):
                rivals.append(j)
        return rivals

    def _page(self, after: int) -> list[Entry]:
        with self._lock:
            self._ledger.roll_back()
            return self._ledger.read(after=after)

    def _refresh(self) -> None:
        """Be as the file is: without a transaction that an interrupt left open, with all entries."""
        self._ledger.roll_back()
        self._catch_up()

    def _catch_up(self) -> None:
        """Take in what other processes have appended."""
        while entries := self._ledger.read(after=len(self)):
            shape = self._index.sketch.shape if self._index is not None else self._ledger.shape()
            for entry in entries:
                self._absorb(entry.x, entry.answer, shape)

    def _absorb(self, x: Vector, answer: SettledCertificate, shape: tuple[int, ...]) -> None:
        assert answer.label is not None, "only answers with a label are entries"
        if self._index is None:
            self._index = SketchIndex(shape)
        self._index.add(x, Ball(label=answer.label, radius=answer.radius, sigma=answer.sigma))

    def _near(self, x: Vector, reach: float, start: int = 0) -> list[int]:
        """Places of the entries that matter to a ball of this radius around x, and maybe a few more."""
        if self._index is None or start >= len(self):
            return []
        return [int(i) for i in self._index.near(x, reach, start=start)]

    def _measured(self, x: Vector, places: list[int]) -> Iterator[tuple[int, Vector, float, float]]:
        """Each of these places with its input and with bounds on its distance from x."""
        step = max(1, _BLOCK_BYTES // x.nbytes)
        for start in range(0, len(places), step):
            block = places[start : start + step]
            points = self._ledger.points([i + 1 for i in block])  # m d
            lows, highs = distance_bounds(x, points, norm=self.norm)
            yield from zip(block, points, lows.tolist(), highs.tolist(), strict=True)

    def _neighbours(self, x: Vector, reach: float, start: int = 0) -> tuple[SettledCertificate | None, list[Neighbour]]:
        """The answer of the entry that is x itself, if any, and how x sees the entries near it."""
        neighbours = []
        for i, y, low, high in self._measured(x, self._near(x, reach, start)):
            if low == 0.0 and np.array_equal(x, y):
                return self._ledger.read(after=i, limit=1)[0].answer, []
            ball = self._ball(i)
            has_inside = is_inside(x, y, ball.radius, low, high, norm=self.norm)
            neighbours.append(Neighbour(ball=ball, low=low, high=high, has_inside=has_inside))
        return None, neighbours

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
                "settle inputs one at a time"
            )


def _as_arrays(x: Input) -> tuple[NDArray[np.floating], Vector]:
    """The input as it is stored, and flattened in float64 as it is measured: both exactly x."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        # NumPy has no bfloat16; float32 holds its numbers exactly.
        pixels = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    else:
        pixels = np.asarray(x)
    if pixels.dtype.kind != "f" or pixels.dtype.itemsize > 8 or pixels.ndim == 0 or pixels.size == 0:
        raise InvalidInputError(
            "expected one input of floating-point numbers of at most 64 bits, "
            f"got {pixels.dtype} of shape {pixels.shape}"
        )
    if not np.isfinite(pixels).all():
        first = pixels[~np.isfinite(pixels)][0]
        raise InvalidInputError(f"expected an input of finite numbers, got {first} in it; certify it without")
    return pixels, pixels.astype(np.float64).ravel()
