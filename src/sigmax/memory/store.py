"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

import math
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory.balls import (
    Neighbour,
    Vector,
    compare_distance,
    deepest_home,
    depth,
    distance_bounds,
    is_inside,
    settle,
)
from sigmax.memory.index import SketchIndex
from sigmax.memory.ledger import Entry, Ledger

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
        self._ledger = Ledger(path, norm=norm, fingerprint=fingerprint)
        self._lock = threading.RLock()
        self._shape: tuple[int, ...] | None = None
        self._index: SketchIndex | None = None
        self._labels: list[int] = []
        self._radii: list[float] = []
        self._sigmas: list[float] = []
        with self._ledger.reading() as connection:
            self._catch_up(connection)

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
        return len(self._labels)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; the memory cannot be used afterwards."""
        self._ledger.close()

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they were settled."""
        with self._ledger.reading() as connection:
            yield from self._ledger.read(connection, after=0)

    def settle(self, x: Input, point: PointCertificate) -> SettledCertificate:
        """Turn what sampling says about x into the answer to give, and store it before giving it.

        An input that was settled before gets the same answer again. An abstention outside every region
        claims nothing and is not stored.
        """
        if point.norm != self.norm:
            raise InvalidInputError(
                f"expected a certificate in l{self.norm}, got one in l{point.norm}; use a memory with norm={point.norm}"
            )
        with self._lock:
            # Search without the lock of the file first; under it, only what others appended since is new.
            with self._ledger.reading() as connection:
                self._catch_up(connection)
            pixels, flat = self._checked(x)
            seen = len(self)
            near = self._near(flat, point.radius)
            with self._ledger.locked() as connection:
                self._catch_up(connection)
                near += self._near(flat, point.radius, start=seen)
                known, neighbours = self._neighbours(connection, flat, near)
                if known is not None:
                    return self._ledger.entry(connection, known).answer
                answer = settle(point, neighbours)
                if answer.label is not None:
                    self._ledger.append(connection, len(self) + 1, pixels, answer)
            # Committed: from here on the answer is given.
            if answer.label is not None:
                self._absorb(flat, answer, pixels.shape)
            return answer

    def lookup(self, x: Input) -> SettledCertificate | None:
        """The answer that the memory already holds for x, without any sampling; None if it holds none."""
        with self._lock, self._ledger.reading() as connection:
            self._catch_up(connection)
            _, flat = self._checked(x)
            known, neighbours = self._neighbours(connection, flat, self._near(flat, 0.0))
            if known is not None:
                return self._ledger.entry(connection, known).answer
            home = deepest_home(neighbours)
            if home is None:
                return None
            return SettledCertificate(
                label=home.label, radius=depth(home), sigma=home.sigma, point=None, rule="inherited"
            )

    def contradictions(self, on_progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, int]]:
        """Every pair of entries (by id) with different labels that share a point: there must be none.

        All pairs are decided, exactly: the sketch only rules out pairs that are surely far apart.
        """
        with self._lock, self._ledger.reading() as connection:
            for i in range(len(self)):
                if on_progress is not None:
                    on_progress(1)
                x = self._ledger.points(connection, [i + 1])[0]
                near = self._near(x, self._radii[i], start=i + 1)
                near = [j for j in near if self._labels[j] != self._labels[i]]
                if not near:
                    continue
                points = self._ledger.points(connection, [j + 1 for j in near])
                lows, _ = distance_bounds(x, points, norm=self.norm)
                for j, y, low in zip(near, points, lows.tolist(), strict=True):
                    if low > math.nextafter(self._radii[i] + self._radii[j], math.inf):
                        continue
                    reach = Fraction(self._radii[i]) + Fraction(self._radii[j])
                    # Open balls that only touch share no point; equal centres always do.
                    if np.array_equal(x, y) or compare_distance(x, y, reach, norm=self.norm) < 0:
                        yield i + 1, j + 1

    def _catch_up(self, connection: sa.Connection) -> None:
        """Take in what other processes have appended."""
        for entry in self._ledger.read(connection, after=len(self)):
            self._absorb(entry.x, entry.answer, self._shape or self._ledger.shape(connection))

    def _absorb(self, x: Vector, answer: SettledCertificate, shape: tuple[int, ...]) -> None:
        if self._index is None:
            self._shape, self._index = shape, SketchIndex(shape)
        assert answer.label is not None, "only answers with a label are entries"
        self._index.add(x, answer.radius)
        self._labels.append(answer.label)
        self._radii.append(answer.radius)
        self._sigmas.append(answer.sigma)

    def _near(self, x: Vector, reach: float, start: int = 0) -> list[int]:
        """Places of the entries that matter to a ball of this radius around x, and maybe a few more."""
        if self._index is None or start >= len(self):
            return []
        return [int(i) for i in self._index.near(x, reach, start=start)]

    def _neighbours(self, connection: sa.Connection, x: Vector, near: list[int]) -> tuple[int | None, list[Neighbour]]:
        """The id of the entry that is x itself, if any, and how x sees each of these places."""
        if not near:
            return None, []
        points = self._ledger.points(connection, [i + 1 for i in near])
        same = np.flatnonzero((points == x).all(axis=1))
        if same.size:
            return near[int(same[0])] + 1, []
        lows, highs = distance_bounds(x, points, norm=self.norm)
        neighbours = [
            Neighbour(
                label=self._labels[i],
                radius=self._radii[i],
                sigma=self._sigmas[i],
                low=low,
                high=high,
                has_inside=is_inside(x, y, self._radii[i], low, high, norm=self.norm),
            )
            for i, y, low, high in zip(near, points, lows.tolist(), highs.tolist(), strict=True)
        ]
        return None, neighbours

    def _checked(self, x: Input) -> tuple[NDArray[np.floating], Vector]:
        """The input as it is stored, and flattened in float64 as it is measured."""
        pixels = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
        if not np.issubdtype(pixels.dtype, np.floating) or not np.isfinite(pixels).all():
            raise InvalidInputError(
                f"expected one input of finite floating-point numbers, got {pixels.dtype} of shape {pixels.shape}"
            )
        if self._shape is not None and pixels.shape != self._shape:
            raise InvalidInputError(
                f"expected an input of shape {self._shape} like the others in this memory, got {pixels.shape}; "
                "settle inputs one at a time"
            )
        return pixels, pixels.astype(np.float64).ravel()
