"""The entries of a ledger as the search sees them: an index that follows the ledger, and questions about inputs."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import final

import numpy as np
import torch
from torch import Tensor

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory.balls import Neighbour, Vector, compare_distance, distance_bounds, is_inside
from sigmax.memory.index import Numbers, Sketch, SketchedBalls, SketchIndex
from sigmax.memory.ledger import Ledger, Pixels

_CACHE_BYTES = 64 * 2**20  # inputs of entries kept in memory
_CACHED_ANSWERS = 2**14  # about 16 megabytes
_CROWD_BYTES = 32 * 2**20  # inputs compared with x at a time: bounds the memory needed when many entries are near

Input = Tensor | Pixels
Inputs = Callable[[list[int]], Vector]  # positions of an index -> inputs (m, d)
Answers = Callable[[int], SettledCertificate]  # a position of an index -> its answer


@dataclass(slots=True)
class Question:
    """An input with what sampling says of it, and what the memory has found about it so far."""

    pixels: Pixels  # as it is stored
    x: Vector  # flattened
    sketch: Numbers
    margin: float  # how much the sketch may overestimate a distance
    point: PointCertificate | None  # None: looked up
    alpha: float  # the largest that an answer may have
    answer: SettledCertificate | None = None
    neighbours: list[Neighbour] = field(default_factory=list)

    def given(self) -> SettledCertificate:
        """The answer of a question that has one."""
        assert self.answer is not None, "it has been settled"
        return self.answer


@final
class View:
    """The entries of one ledger. Only one thread may use it at a time: the one that holds `lock`."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.lock = threading.RLock()
        self.norm = ledger.owned_by.norm
        self.index: SketchIndex | None = None  # None until the first entry sets the shape
        self.is_current = False  # whether the index has all entries and no transaction is open
        self.is_fixed = False  # whether nobody can append any more
        self._points: dict[int, Vector] = {}  # inputs by position, oldest first
        self._answers: dict[int, SettledCertificate] = {}  # likewise

    def __len__(self) -> int:
        return len(self.index) if self.index is not None else 0

    def refresh(self) -> None:
        """Bring the index up to date, and end a transaction that an interrupt left open."""
        if not self.is_current:
            self.ledger.roll_back()
            self.catch_up()
            self.is_current = self.is_fixed or not self.ledger.is_shared

    def catch_up(self) -> None:
        """Add the entries to the index that it does not have yet."""
        while balls := self.ledger.balls(after=len(self)):
            self.add(balls)

    def add(self, balls: SketchedBalls) -> None:
        """Add entries to the index that are stored after those it has."""
        if self.index is None:
            self.index = SketchIndex(Sketch(self.ledger.shape()))
        self.index.add(balls)

    def sketch(self, shape: tuple[int, ...]) -> Sketch:
        """The sketch for inputs of this shape; another shape than that of the entries is refused."""
        if self.index is None:
            return Sketch(shape)
        if shape != self.index.sketch.shape:
            raise InvalidInputError(
                f"expected inputs of shape {self.index.sketch.shape}, like the others in this memory, "
                f"got shape={shape}; use another memory"
            )
        return self.index.sketch

    def questions(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[Question]:
        """Questions about a batch of inputs (batch, …), after a search in all stored entries."""
        sketch = self.sketch(pixels.shape[1:])
        x = pixels.astype(np.float64).reshape(len(pixels), -1)  # batch d
        sketches = sketch(x)  # batch size; one product for all inputs
        margins = sketch.margins(x, sketches).tolist()
        questions = [Question(*each) for each in zip(pixels, x, sketches, margins, points, alphas, strict=True)]
        for question in questions:
            self.search(question)
        return questions

    def search(self, question: Question, *, start: int = 0) -> None:
        """Search the stored entries from this position on."""
        if self.index is not None:
            self.see(question, self.index, self._inputs, self.answer, start=start)

    def see(self, question: Question, index: SketchIndex, inputs: Inputs, answers: Answers, *, start: int = 0) -> None:
        """Give a question the answer to the same input if the index has it, else the neighbours that matter."""
        if question.answer is not None:
            return
        radius, label = (question.point.radius, question.point.label) if question.point else (0.0, None)
        near = index.near(question.sketch, question.margin, radius=radius, label=label, start=start)
        first = 1 if index is self.index else len(self) + 1  # the id of the first entry in the index
        for i, y, low, high in self._measured(question.x, near, inputs):
            ball, read = index.ball(i), partial(answers, i)
            is_same = low == 0.0 and bool(np.array_equal(question.x, y))
            if is_same and ball.alpha <= question.alpha:
                question.answer = read()
            is_home = is_same or is_inside(question.x, y, ball.radius, low, high, norm=self.norm)
            seen = Neighbour(
                id=first + i, ball=ball, read=read, low=low, high=0.0 if is_same else high, is_home=is_home
            )
            question.neighbours.append(seen)
            if question.answer is not None:
                return

    def rivals(self, i: int) -> list[int]:
        """The later positions of the entries that contradict entry i."""
        assert self.index is not None, "there is an entry at this position"
        own, (x,) = self.index.ball(i), self._inputs([i])
        sketch = self.index.sketch(x)
        margin = float(self.index.sketch.margins(x, sketch))
        near = self.index.near(sketch, margin, radius=own.radius, label=own.label, start=i)
        if i not in near:
            raise MemoryRefusedError(
                f"expected entry {i + 1} with the sketch of its input, got another sketch; restore it from a copy"
            )
        others = [j for j in near if self.index.ball(j).label != own.label]
        rivals = []
        for j, y, low, _ in self._measured(x, others, self._inputs):
            reach = Fraction(own.radius) + Fraction(self.index.ball(j).radius)
            # Open balls that only touch share no point. Equal centres are a shared point, also at radius 0.
            if low <= reach and (np.array_equal(x, y) or compare_distance(x, y, reach, norm=self.norm) < 0):
                rivals.append(j)
        return rivals

    def answer(self, position: int) -> SettledCertificate:
        """The answer of the entry at this position; recently read ones are kept in memory."""
        if position not in self._answers:
            self._answers[position] = self.ledger.read(after=position, limit=1)[0].answer
            if len(self._answers) > _CACHED_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return self._answers[position]

    def distances(self, x: Vector, positions: list[int]) -> list[float]:
        """Lower bounds on the distances from x to these entries."""
        return [low for _, _, low, _ in self._measured(x, positions, self._inputs)]

    def _inputs(self, positions: list[int]) -> Vector:
        """The inputs (m, d) of stored entries; recently read ones are kept in memory."""
        missing = [i for i in positions if i not in self._points]
        if missing:
            self._points.update(zip(missing, self.ledger.points([i + 1 for i in missing]), strict=True))
        found = np.stack([self._points[i] for i in positions])  # m d
        while len(self._points) * found[0].nbytes > _CACHE_BYTES:
            del self._points[next(iter(self._points))]
        return found

    def _measured(self, x: Vector, positions: list[int], inputs: Inputs) -> Iterator[tuple[int, Vector, float, float]]:
        """Each position with its input and with bounds on its distance from x."""
        step = max(1, _CROWD_BYTES // x.nbytes)
        for start in range(0, len(positions), step):
            block = positions[start : start + step]
            points = inputs(block)  # m d
            lows, highs = distance_bounds(x, points, norm=self.norm)
            yield from zip(block, points, lows.tolist(), highs.tolist(), strict=True)


def sketched(questions: Sequence[Question]) -> SketchedBalls:
    """Questions with an answer as the search keeps them."""
    answers = [question.given() for question in questions]
    return SketchedBalls(
        labels=np.array([answer.label for answer in answers], dtype=np.int64),
        radii=np.array([answer.radius for answer in answers]),
        alphas=np.array([answer.alpha for answer in answers]),
        sketches=np.stack([question.sketch for question in questions]),
        margins=np.array([question.margin for question in questions]),
    )


def as_array(x: Input) -> Pixels:
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
