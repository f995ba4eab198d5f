"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory.balls import Neighbour, Vector, compare_distance, distance_bounds, is_inside, look_up, settle
from sigmax.memory.index import Numbers, Sketch, SketchedBalls, SketchIndex
from sigmax.memory.ledger import Entry, Ledger, Owner, Pixels, Place
from sigmax.memory.sqlite import SqliteLedger

_BLOCK = 256  # inputs settled in one transaction: enough to share the wait for the disk
_PAGE = 256  # entries read at a time
_CACHE_BYTES = 64 * 2**20  # inputs of entries kept in memory
_CROWD_BYTES = 32 * 2**20  # inputs compared with x at a time: bounds the memory needed when many entries are near

Input = Tensor | Pixels


@final
class CertificateMemory:
    """All answers given so far, as balls with labels; entries with different labels never share a point.

    Threads may share an object, and processes a file. A signal handler must not use it: it may interrupt a call.

    Args:
        norm: The norm of the balls and of the certificates, 1 or 2.
        fingerprint: What the memory belongs to, usually `SmoothedClassifier.fingerprint`.
        place: A SQLite file that several processes may share; None keeps the memory in this process.
    """

    def __init__(self, *, norm: int, fingerprint: str | None = None, place: Place | None = None) -> None:
        if norm not in (1, 2):
            raise InvalidInputError(f"expected norm 1 or 2, got norm={norm}; choose one of them")
        self.norm = norm
        self._lock = threading.RLock()
        self._index: SketchIndex | None = None  # None until the first entry sets the shape
        self._points: dict[int, Vector] = {}  # inputs by position, oldest first
        self._is_current = False  # whether the index has all entries and no transaction is open
        self._ledger = _kind(place)(place, Owner(norm=norm, fingerprint=fingerprint))
        try:
            self._catch_up()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, place: Place, *, norm: int, fingerprint: str | None = None) -> Self:
        """Open or create a durable memory in a SQLite file.

        A memory with another norm or fingerprint is refused: one model's certificates say nothing about another.
        """
        return cls(norm=norm, fingerprint=fingerprint, place=place)

    @classmethod
    def existing(cls, place: Place) -> Self:
        """Open a memory with the norm and the fingerprint that it was created with."""
        owner = _kind(place).owner(place)
        if owner is None:
            raise MemoryRefusedError(f"expected a memory, got {place}; nothing is stored there")
        return cls.open(place, norm=owner.norm, fingerprint=owner.fingerprint)

    @classmethod
    def discard_empty(cls, file: Path) -> int:
        """Delete a memory file unless it holds entries; return how many entries kept it from being deleted."""
        if SqliteLedger.owner(file) is not None:
            with cls.existing(file) as memory:
                if len(memory):
                    return len(memory)
        SqliteLedger.remove(file)
        return 0

    def __len__(self) -> int:
        return len(self._index) if self._index is not None else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file; the memory cannot be used afterwards."""
        with self._lock:
            self._is_current = False
            self._ledger.close()

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they were settled."""
        last = 0
        while True:
            with self._lock:
                self._ledger.roll_back()
                page = self._ledger.read(after=last, limit=_PAGE)
            if not page:
                return
            yield from page
            last += len(page)

    def settle(self, x: Input, point: PointCertificate) -> SettledCertificate:
        """Turn a point certificate into the answer to give for x, and store it before returning it.

        An input that was settled before gets the same answer. An abstention outside every region claims nothing
        and is not stored, so a later call may answer.
        """
        return self.settle_many(x[None], [point])[0]

    def settle_many(self, x: Input, points: Sequence[PointCertificate]) -> list[SettledCertificate]:
        """Settle a batch of inputs (batch, …); the answers are those of settling one after another, but faster.

        Inputs share the transactions that store them. After an interrupt, the memory holds the answers to the
        first inputs of the batch and no others; settling the batch again gives the same answers.
        """
        if len(x) != len(points):
            raise InvalidInputError(
                f"expected one certificate per input, got {len(points)} for {len(x)} inputs; pass both in one order"
            )
        for point in points:
            self._check_point(point)
        answers: list[SettledCertificate] = []
        for start in range(0, len(x), _BLOCK):
            block = slice(start, start + _BLOCK)
            pixels = _as_array(x[block])
            with self._lock:
                answers += self._settle_block(pixels, points[block])
        return answers

    def lookup(self, x: Input) -> SettledCertificate | None:
        """The answer that the memory already holds for x, without sampling; None if it holds none."""
        return self.lookup_many(x[None])[0]

    def lookup_many(self, x: Input) -> list[SettledCertificate | None]:
        """The answer of `lookup` for each input of a batch (batch, …)."""
        answers: list[SettledCertificate | None] = []
        for start in range(0, len(x), _BLOCK):
            pixels = _as_array(x[start : start + _BLOCK])
            with self._lock:
                self._refresh()
                questions = self._searched(pixels)
                answers += [question.answer or look_up(question.neighbours) for question in questions]
        return answers

    def contradictions(self, on_progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, int]]:
        """All pairs of entries (by id) with different labels that share a point; there must be none.

        Every pair is decided exactly: sketches rule out only pairs that are certainly far apart. A damaged file
        is refused, and so is a sketch that does not belong to its input.
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

    def _settle_block(self, pixels: Pixels, points: Sequence[PointCertificate]) -> list[SettledCertificate]:
        """Settle inputs in one transaction: search, lock, search what was appended since, append, commit, reply."""
        self._refresh()
        questions = self._searched(pixels, points)
        if all(question.answer is not None for question in questions):
            return _answers(questions)
        seen = len(self)
        self._is_current = False
        with self._ledger.locked():
            self._catch_up()
            new: list[_Question] = []  # questions that become entries
            index = SketchIndex(self._sketch(pixels.shape[1:]))
            for question, point in zip(questions, points, strict=True):
                # Search what other processes appended since the first search, then what this block has settled.
                self._search(question, start=seen)
                self._see(question, index, lambda rows: np.stack([new[i].x for i in rows]), lambda i: new[i].answer)
                if question.answer is None:  # else the same input was settled before
                    question.answer = settle(point, question.neighbours)
                    if question.answer.label is not None:  # an abstention claims nothing
                        index.add(_sketched([question]))
                        new.append(question)
            if not new:
                return _answers(questions)
            balls = _sketched(new)
            self._ledger.append(len(self) + 1, [question.pixels for question in new], _answers(new), balls)
        # Committed: from here on the answers count, even if the rest is interrupted.
        self._add(balls)
        return _answers(questions)

    def _rivals(self, i: int) -> list[int]:
        """The later positions of the entries that contradict entry i."""
        assert self._index is not None, "there is an entry at this position"
        own, (x,) = self._index.ball(i), self._inputs([i])
        sketch = self._index.sketch(x)
        margin = float(self._index.sketch.margins(x, sketch))
        near = self._index.near(sketch, margin, radius=own.radius, label=own.label, start=i)
        if i not in near:
            raise MemoryRefusedError(
                f"expected entry {i + 1} with the sketch of its input, got another sketch; restore it from a copy"
            )
        others = [j for j in near if self._index.ball(j).label != own.label]
        rivals = []
        for j, y, low, _ in self._measured(x, others, self._inputs):
            reach = Fraction(own.radius) + Fraction(self._index.ball(j).radius)
            # Open balls that only touch share no point. Equal centres are a shared point, also at radius 0.
            if low <= reach and (np.array_equal(x, y) or compare_distance(x, y, reach, norm=self.norm) < 0):
                rivals.append(j)
        return rivals

    def _refresh(self) -> None:
        """Bring the index up to date, and end a transaction that an interrupt left open."""
        if not self._is_current:
            self._ledger.roll_back()
            self._catch_up()
            self._is_current = not self._ledger.is_shared

    def _catch_up(self) -> None:
        """Add the entries to the index that it does not have yet."""
        while balls := self._ledger.balls(after=len(self)):
            self._add(balls)

    def _add(self, balls: SketchedBalls) -> None:
        if self._index is None:
            self._index = SketchIndex(Sketch(self._ledger.shape()))
        self._index.add(balls)

    def _sketch(self, shape: tuple[int, ...]) -> Sketch:
        """The sketch for inputs of this shape; another shape than that of the entries is refused."""
        if self._index is None:
            return Sketch(shape)
        if shape != self._index.sketch.shape:
            raise InvalidInputError(
                f"expected inputs of shape {self._index.sketch.shape}, like the others in this memory, "
                f"got shape={shape}; use another memory"
            )
        return self._index.sketch

    def _searched(self, pixels: Pixels, points: Sequence[PointCertificate] | None = None) -> list["_Question"]:
        """Questions about a batch of inputs (batch, …), after a search in all stored entries."""
        sketch = self._sketch(pixels.shape[1:])
        x = pixels.astype(np.float64).reshape(len(pixels), -1)  # batch d
        sketches = sketch(x)  # batch size; one product for all inputs
        margins = sketch.margins(x, sketches).tolist()
        claims = [(point.radius, point.label) for point in points] if points is not None else [(0.0, None)] * len(x)
        inputs = zip(pixels, x, sketches, margins, strict=True)
        questions = [_Question(*each, *claim) for each, claim in zip(inputs, claims, strict=True)]
        for question in questions:
            self._search(question)
        return questions

    def _search(self, question: "_Question", *, start: int = 0) -> None:
        """Search the stored entries from this position on."""
        if self._index is not None:
            self._see(question, self._index, self._inputs, self._answer, start=start)

    def _see(
        self, question: "_Question", index: SketchIndex, inputs: "_Inputs", answer: "_Answer", *, start: int = 0
    ) -> None:
        """Give a question the answer to the same input if the index has it, else the neighbours that matter."""
        if question.answer is not None:
            return
        near = index.near(question.sketch, question.margin, radius=question.radius, label=question.label, start=start)
        for i, y, low, high in self._measured(question.x, near, inputs):
            if low == 0.0 and np.array_equal(question.x, y):
                question.answer = answer(i)
                return
            ball = index.ball(i)
            is_home = is_inside(question.x, y, ball.radius, low, high, norm=self.norm)
            question.neighbours.append(Neighbour(ball=ball, low=low, high=high, is_home=is_home))

    def _answer(self, position: int) -> SettledCertificate:
        return self._ledger.read(after=position, limit=1)[0].answer

    def _inputs(self, positions: list[int]) -> Vector:
        """The inputs (m, d) of stored entries; recently read ones are kept in memory."""
        missing = [i for i in positions if i not in self._points]
        self._points.update(zip(missing, self._ledger.points([i + 1 for i in missing]), strict=True))
        found = np.stack([self._points[i] for i in positions])  # m d
        while len(self._points) * found[0].nbytes > _CACHE_BYTES:
            del self._points[next(iter(self._points))]
        return found

    def _measured(
        self, x: Vector, positions: list[int], inputs: "_Inputs"
    ) -> Iterator[tuple[int, Vector, float, float]]:
        """Each position with its input and with bounds on its distance from x."""
        step = max(1, _CROWD_BYTES // x.nbytes)
        for start in range(0, len(positions), step):
            block = positions[start : start + step]
            points = inputs(block)  # m d
            lows, highs = distance_bounds(x, points, norm=self.norm)
            yield from zip(block, points, lows.tolist(), highs.tolist(), strict=True)

    def _check_point(self, point: PointCertificate) -> None:
        if point.norm != self.norm:
            raise InvalidInputError(
                f"expected a certificate in l{self.norm}, got norm={point.norm}; use a memory with norm={point.norm}"
            )
        if not 0.0 <= point.radius < math.inf:
            raise InvalidInputError(
                f"expected a finite radius >= 0, got radius={point.radius}; certify the input again"
            )


_Inputs = Callable[[list[int]], Vector]  # positions of an index -> inputs (m, d)
_Answer = Callable[[int], SettledCertificate | None]  # a position of an index -> its answer


@dataclass(slots=True)
class _Question:
    """An input with the ball that sampling claims around it, and what the memory has found about it so far."""

    pixels: Pixels  # as it is stored
    x: Vector  # flattened
    sketch: Numbers
    margin: float  # how much the sketch may overestimate a distance
    radius: float
    label: int | None
    answer: SettledCertificate | None = None
    neighbours: list[Neighbour] = field(default_factory=list)


def _kind(place: Place | None) -> type[Ledger]:
    """The kind of ledger that is kept at this place."""
    if "://" in str(place):
        raise InvalidInputError(f"expected the path of a SQLite file, got place={place}; give a path")
    return SqliteLedger


def _answers(questions: Sequence[_Question]) -> list[SettledCertificate]:
    """The answers to questions that all have one."""
    return [question.answer for question in questions if question.answer is not None]


def _sketched(questions: Sequence[_Question]) -> SketchedBalls:
    """Questions with an answer as the search keeps them."""
    answers = _answers(questions)
    return SketchedBalls(
        labels=np.array([answer.label for answer in answers], dtype=np.int64),
        radii=np.array([answer.radius for answer in answers]),
        sigmas=np.array([answer.sigma for answer in answers]),
        sketches=np.stack([question.sketch for question in questions]),
        margins=np.array([question.margin for question in questions]),
    )


def _as_array(x: Input) -> Pixels:
    """Inputs (batch, …) as they are stored: exactly the numbers of x."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        # NumPy has no bfloat16; float32 holds its numbers exactly.
        pixels = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    else:
        pixels = np.asarray(x)
    if pixels.dtype.kind != "f" or pixels.dtype.itemsize > 8 or pixels.ndim < 2 or pixels.size == 0:
        raise InvalidInputError(
            "expected inputs of floating-point numbers of at most 64 bits, "
            f"got dtype={pixels.dtype}, shape={pixels.shape[1:]}; convert them first"
        )
    if not np.isfinite(pixels).all():
        first = pixels[~np.isfinite(pixels)][0]
        raise InvalidInputError(f"expected inputs of finite numbers, got {first}; replace or leave out such inputs")
    return pixels
