"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Self, final

import numpy as np
import torch
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory.balls import Neighbour, Vector, compare_distance, distance_bounds, is_inside, settle
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

    def __repr__(self) -> str:
        return f"<CertificateMemory of {len(self):,} answers, l{self.norm}>"

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

        The alpha of the certificate is a demand: the answer relies on no certificate with a larger one. An input that
        was answered before gets the same answer, if that meets the demand. An answer without a label claims nothing
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
        return [answer for answer in self._ask(x, points, [point.alpha for point in points]) if answer is not None]

    def lookup(self, x: Input, *, alpha: float = 1.0) -> SettledCertificate | None:
        """The answer that the memory can give for x without sampling; None if it can give none.

        It relies on no certificate with a larger alpha than this. Like any answer it is binding: inside a stored ball,
        it is stored before it is returned, and x gets the same answer again.
        """
        return self.lookup_many(x[None], alpha=alpha)[0]

    def lookup_many(self, x: Input, *, alpha: float = 1.0) -> list[SettledCertificate | None]:
        """The answer of `lookup` for each input of a batch (batch, …)."""
        return self._ask(x, [None] * len(x), [alpha] * len(x))

    def recall_many(self, x: Input, *, alpha: float = 1.0) -> list[SettledCertificate | None]:
        """The answer that was given before to each input of a batch (batch, …), None if none; nothing is stored."""
        answers: list[SettledCertificate | None] = []
        for start in range(0, len(x), _BLOCK):
            pixels = _as_array(x[start : start + _BLOCK])
            with self._lock:
                self._refresh()
                questions = self._searched(pixels, [None] * len(pixels), [alpha] * len(pixels))
                answers += [question.answer for question in questions]
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

    def _ask(
        self, x: Input, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        """Settle inputs (batch, …), or look them up where there is no point certificate, block by block."""
        answers: list[SettledCertificate | None] = []
        for start in range(0, len(x), _BLOCK):
            block = slice(start, start + _BLOCK)
            pixels = _as_array(x[block])
            with self._lock:
                answers += self._ask_block(pixels, points[block], alphas[block])
        return answers

    def _ask_block(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        """Answer inputs in one transaction: search, lock, search what was appended since, append, commit, reply."""
        self._refresh()
        questions = self._searched(pixels, points, alphas)
        if not any(question.is_open() for question in questions):
            return [question.answer for question in questions]
        seen = len(self)
        self._is_current = False
        with self._ledger.locked():
            self._catch_up()
            new: list[_Question] = []  # questions that become entries
            index = SketchIndex(self._sketch(pixels.shape[1:]))
            for question in questions:
                # Search what other processes appended since the first search, then what this block has settled.
                self._search(question, start=seen)
                self._see(question, index, lambda rows: np.stack([new[i].x for i in rows]), lambda i: new[i].given())
                if question.answer is None:  # else the same input was answered before
                    question.answer = question.settled()
                    if question.answer is not None and question.answer.label is not None:  # else it claims nothing
                        index.add(_sketched([question]))
                        new.append(question)
            if new:
                balls = _sketched(new)
                given = [question.given() for question in new]
                self._ledger.append(len(self) + 1, [question.pixels for question in new], given, balls)
        # Committed: from here on the answers count, even if the rest is interrupted.
        if new:
            self._add(balls)
        return [question.answer for question in questions]

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

    def _searched(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list["_Question"]:
        """Questions about a batch of inputs (batch, …), after a search in all stored entries."""
        sketch = self._sketch(pixels.shape[1:])
        x = pixels.astype(np.float64).reshape(len(pixels), -1)  # batch d
        sketches = sketch(x)  # batch size; one product for all inputs
        margins = sketch.margins(x, sketches).tolist()
        questions = [_Question(*each) for each in zip(pixels, x, sketches, margins, points, alphas, strict=True)]
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
        radius, label = (question.point.radius, question.point.label) if question.point else (0.0, None)
        near = index.near(question.sketch, question.margin, radius=radius, label=label, start=start)
        first = 1 if index is self._index else len(self) + 1  # the id of the first entry in the index
        for i, y, low, high in self._measured(question.x, near, inputs):
            ball, read = index.ball(i), partial(answer, i)
            if low == 0.0 and ball.alpha <= question.alpha and np.array_equal(question.x, y):
                question.answer = read()
                return
            is_home = is_inside(question.x, y, ball.radius, low, high, norm=self.norm)
            seen = Neighbour(id=first + i, ball=ball, read=read, low=low, high=high, is_home=is_home)
            question.neighbours.append(seen)

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
_Answer = Callable[[int], SettledCertificate]  # a position of an index -> its answer


@dataclass(slots=True)
class _Question:
    """An input with what sampling says of it, and what the memory has found about it so far."""

    pixels: Pixels  # as it is stored
    x: Vector  # flattened
    sketch: Numbers
    margin: float  # how much the sketch may overestimate a distance
    point: PointCertificate | None  # None: looked up
    alpha: float  # the largest that an answer may have
    answer: SettledCertificate | None = None
    neighbours: list[Neighbour] = field(default_factory=list)

    def settled(self) -> SettledCertificate | None:
        """The answer that follows from the neighbours."""
        return settle(self.point, self.neighbours, alpha=self.alpha)

    def is_open(self) -> bool:
        """Whether an answer has yet to be settled."""
        return self.answer is None and (self.point is not None or self.settled() is not None)

    def given(self) -> SettledCertificate:
        """The answer of a question that has one."""
        assert self.answer is not None, "it has been settled"
        return self.answer


def _kind(place: Place | None) -> type[Ledger]:
    """The kind of ledger that is kept at this place."""
    if "://" in str(place):
        raise InvalidInputError(f"expected the path of a SQLite file, got place={place}; give a path")
    return SqliteLedger


def _sketched(questions: Sequence[_Question]) -> SketchedBalls:
    """Questions with an answer as the search keeps them."""
    answers = [question.given() for question in questions]
    return SketchedBalls(
        labels=np.array([answer.label for answer in answers], dtype=np.int64),
        radii=np.array([answer.radius for answer in answers]),
        alphas=np.array([answer.alpha for answer in answers]),
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
