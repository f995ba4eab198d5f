"""CertificateMemory: settles answers so that no two of them contradict each other (Algorithm 3)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self, final

import numpy as np

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory.balls import settle
from sigmax.memory.frozen import FrozenMemory
from sigmax.memory.index import SketchIndex
from sigmax.memory.ledger import Owner, Pixels, Place
from sigmax.memory.memory import Memory
from sigmax.memory.places import existing_owner, ledger_kind
from sigmax.memory.sqlite import SqliteLedger
from sigmax.memory.view import Input, Question, View, sketched


@final
class CertificateMemory(Memory):
    """All answers given so far, as balls with labels; entries with different labels never share a point.

    `settle` stores an answer before returning it. The answer relies on no certificate with a larger alpha than that of
    the given one. An input that was answered before gets the same answer, if its alpha is small enough. An abstention
    claims nothing and is not stored, so a later call may answer.

    `settle_many` stores inputs in shared transactions. After an interrupt, the memory holds the answers to the first
    inputs of the batch and no others; settling the batch again gives the same answers.

    `lookup` relies on no certificate with a larger alpha than asked. An answer from inside a stored ball is stored
    before it is returned, so the input gets the same answer again.

    Args:
        norm: The norm of the balls and of the certificates, 1 or 2.
        fingerprint: What the memory belongs to, usually `SmoothedClassifier.fingerprint`.
        place: A SQLite file that the processes of a machine may share, or a postgresql:// URL for several machines;
            None keeps the memory in this process.
    """

    def __init__(self, *, norm: int, fingerprint: str | None = None, place: Place | None = None) -> None:
        if norm not in (1, 2):
            raise InvalidInputError(f"expected norm 1 or 2, got norm={norm}; choose one of them")
        super().__init__(View(ledger_kind(place)(place, Owner(norm=norm, fingerprint=fingerprint))))

    @classmethod
    def open(cls, place: Place, *, norm: int, fingerprint: str | None = None) -> Self:
        """Open or create a durable memory, in a SQLite file or behind a postgresql:// URL.

        A memory with another norm or fingerprint is refused: one model's certificates say nothing about another.
        """
        return cls(norm=norm, fingerprint=fingerprint, place=place)

    @classmethod
    def existing(cls, place: Place) -> Self:
        """Open a memory with the norm and the fingerprint that it was created with."""
        return cls(norm=(owner := existing_owner(place)).norm, fingerprint=owner.fingerprint, place=place)

    @classmethod
    def discard_empty(cls, file: Path) -> int:
        """Delete a memory file unless it holds entries; return how many entries kept it from being deleted."""
        if SqliteLedger.owner(file) is not None:
            with cls.existing(file) as memory:
                if len(memory):
                    return len(memory)
        SqliteLedger.remove(file)
        return 0

    @property
    def digest(self) -> None:
        """None: its answers depend on those given before."""
        return

    def __repr__(self) -> str:
        return f"<CertificateMemory of {len(self):,} answers, l{self.norm}>"

    def freeze(self, *, sigma: float) -> FrozenMemory:
        """Make the memory read-only, for all processes, and return it as a fixed classifier.

        Args:
            sigma: The one noise level outside all stored balls.
        """
        if not 0.0 < sigma < np.inf:
            raise InvalidInputError(f"expected sigma > 0, got sigma={sigma}; give the noise level outside all balls")
        self._steadily(lambda: self._freeze(sigma))
        return FrozenMemory(self._view)

    def _freeze(self, sigma: float) -> None:
        self._view.refresh()
        self._view.is_current = False
        self._view.ledger.freeze(sigma)

    def recall_many(self, x: Input, *, alpha: float = 1.0) -> list[SettledCertificate | None]:
        """The answer that was given before to each input of a batch (batch, …), None if none; nothing is stored."""
        return self._ask(x, [None] * len(x), [alpha] * len(x), self._recalled)

    def _recalled(
        self, pixels: Pixels, points: Sequence[None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        self._view.refresh()
        return [question.answer for question in self._view.questions(pixels, points, alphas)]

    def _answers(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        """Answer inputs in one transaction: search, lock, search what was appended since, append, commit, reply."""
        view = self._view
        view.refresh()
        questions = view.questions(pixels, points, alphas)
        if not any(_is_open(question) for question in questions):
            return [question.answer for question in questions]
        seen = len(view)
        view.is_current = False
        with view.ledger.locked():
            view.catch_up()
            new: list[Question] = []  # questions that become entries
            index = SketchIndex(view.sketch(pixels.shape[1:]))
            for question in questions:
                # Search what other processes appended since the first search, then what this block has settled.
                view.search(question, start=seen)
                view.see(question, index, lambda rows: np.stack([new[i].x for i in rows]), lambda i: new[i].given())
                if question.answer is None:  # else the same input was answered before
                    question.answer = _settled(question)
                    if question.answer is not None and question.answer.label is not None:  # else it claims nothing
                        index.add(sketched([question]))
                        new.append(question)
            if new:
                balls = sketched(new)
                given = [question.given() for question in new]
                view.ledger.append(len(view) + 1, [question.pixels for question in new], given, balls)
        # Committed: from here on the answers count, even if the rest is interrupted.
        if new:
            view.add(balls)
        return [question.answer for question in questions]


def _settled(question: Question) -> SettledCertificate | None:
    """The answer that follows from the neighbours."""
    return settle(question.point, question.neighbours, alpha=question.alpha)


def _is_open(question: Question) -> bool:
    """Whether an answer has yet to be settled."""
    return question.answer is None and (question.point is not None or _settled(question) is not None)
