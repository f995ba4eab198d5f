"""What live and frozen memories share: entries to read, to search and to check."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

import numpy as np

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory.explain import Explanation, explain
from sigmax.memory.ledger import ConnectionLostError, Entry, Freeze, Pixels
from sigmax.memory.nearest import Nearby, nearest
from sigmax.memory.view import Input, View, as_array

_BLOCK = 256  # inputs settled in one transaction: enough to share the wait for the disk
_PAGE = 256  # entries read at a time
_PATIENCE = 60.0  # seconds to wait for a server that restarts

T = TypeVar("T")


class Memory(ABC):
    """Balls with labels; entries with different labels never share a point.

    Threads may share an object, and processes a file or a database. A signal handler must not use it: it may interrupt
    a call.
    """

    def __init__(self, view: View) -> None:
        self.norm = view.norm
        self._view = view
        self._lock = view.lock
        try:
            self._steadily(view.refresh)
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """Where it is kept, without any password."""
        return self._view.ledger.place

    @property
    def fingerprint(self) -> str | None:
        """What it belongs to."""
        return self._view.ledger.owned_by.fingerprint

    @property
    def frozen(self) -> Freeze | None:
        """How it was frozen; None: it is live."""
        return self._steadily(self._view.ledger.frozen)

    @property
    @abstractmethod
    def digest(self) -> str | None:
        """What all answers of a frozen memory follow from, beside the network; None: it is live."""

    def __len__(self) -> int:
        return len(self._view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file or the connection; the memory cannot be used afterwards."""
        with self._lock:
            self._view.is_current = False
            self._view.ledger.close()

    def settle(self, x: Input, point: PointCertificate) -> SettledCertificate:
        """Turn a point certificate into the answer to give for x."""
        return self.settle_many(x[None], [point])[0]

    def settle_many(self, x: Input, points: Sequence[PointCertificate]) -> list[SettledCertificate]:
        """Settle a batch of inputs (batch, …); the answers are those of settling one after another, but faster."""
        if len(x) != len(points):
            raise InvalidInputError(
                f"expected one certificate per input, got {len(points)} for {len(x)} inputs; pass both in one order"
            )
        for point in points:
            self._check_point(point)
        alphas = [point.alpha for point in points]
        return [answer for answer in self._ask(x, points, alphas, self._answers) if answer is not None]

    def lookup(self, x: Input, *, alpha: float = 1.0) -> SettledCertificate | None:
        """The answer that the memory can give for x without sampling; None if it can give none."""
        return self.lookup_many(x[None], alpha=alpha)[0]

    def lookup_many(self, x: Input, *, alpha: float = 1.0) -> list[SettledCertificate | None]:
        """The answer of `lookup` for each input of a batch (batch, …)."""
        return self._ask(x, [None] * len(x), [alpha] * len(x), self._answers)

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order in which they were settled."""
        last = 0
        while page := self._steadily(lambda: self._page(after=last)):  # noqa: B023 - called at once
            yield from page
            last += len(page)

    def explain(self, x: Input) -> Explanation:
        """The answer for x that follows from the entries, and which of them decided; nothing is stored."""
        return self._steadily(lambda: explain(self._view, x))

    def nearest(self, x: Input, count: int = 5) -> list[Nearby]:
        """The entries nearest to x, nearest first; nothing is stored."""
        return self._steadily(lambda: nearest(self._view, x, count))

    def contradictions(self, on_progress: Callable[[int], None] | None = None) -> Iterator[tuple[int, int]]:
        """All pairs of entries (by id) with different labels that share a point; there must be none.

        Every pair is decided exactly: sketches rule out only pairs that are certainly far apart. A damaged memory is
        refused, and so is a sketch that does not belong to its input, or a frozen memory with another digest.
        """
        self._steadily(self._check)
        for i in range(len(self)):
            for j in self._steadily(lambda: self._view.rivals(i)):  # noqa: B023 - called at once
                yield i + 1, j + 1
            if on_progress is not None:
                on_progress(1)

    @abstractmethod
    def _answers(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        """Answer a block of inputs (batch, …): settle them, or look them up where there is no point certificate."""

    def _ask(
        self,
        x: Input,
        points: Sequence[PointCertificate | None],
        alphas: Sequence[float],
        answer: Callable[..., list[SettledCertificate | None]],
    ) -> list[SettledCertificate | None]:
        """The answers for inputs (batch, …), block by block."""
        answers: list[SettledCertificate | None] = []
        for start in range(0, len(x), _BLOCK):
            block = slice(start, start + _BLOCK)
            pixels = as_array(x[block])
            answers += self._steadily(lambda: answer(pixels, points[block], alphas[block]))  # noqa: B023 - at once
        return answers

    def _steadily(self, work: Callable[[], T]) -> T:
        """Work under the lock of this object; again where the connection to a server was lost.

        What was lost may have been committed. Asked again, the same input gets the answer that was stored, if one was.
        """
        deadline: float | None = None
        with self._lock:
            while True:
                try:
                    if deadline is not None:
                        self._view.ledger.roll_back()  # connects again
                    return work()
                except ConnectionLostError:
                    self._view.is_current = False
                    # From the first loss on: a process that was suspended may notice it long after its work began.
                    deadline = deadline or time.monotonic() + _PATIENCE
                    if time.monotonic() > deadline:
                        raise
                time.sleep(random.uniform(0.05, 0.25))  # random, so that clients do not come back all at once

    def _check(self) -> None:
        self._view.refresh()
        self._view.ledger.check()

    def _page(self, *, after: int) -> list[Entry]:
        self._view.ledger.roll_back()
        return self._view.ledger.read(after=after, limit=_PAGE)

    def _check_point(self, point: PointCertificate) -> None:
        if point.norm != self.norm:
            raise InvalidInputError(
                f"expected a certificate in l{self.norm}, got norm={point.norm}; use a memory with norm={point.norm}"
            )
        if not 0.0 <= point.radius < np.inf:
            raise InvalidInputError(
                f"expected a finite radius >= 0, got radius={point.radius}; certify the input again"
            )
