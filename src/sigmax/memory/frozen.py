"""FrozenMemory: a memory that takes no more entries. It is a fixed classifier, whatever is asked and in which order.

If x lies in a stored ball, F(x) is the stored label. Otherwise F(x) is the class of the classifier smoothed at one
sigma. `settle_frozen` finds a ball around x on which F is constant.
"""

from collections.abc import Sequence
from typing import Self, final

import numpy as np

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory.balls import settle_frozen
from sigmax.memory.ledger import Freeze, Owner, Pixels, Place
from sigmax.memory.memory import Memory
from sigmax.memory.places import existing_owner, ledger_kind
from sigmax.memory.view import View
from sigmax.search import SigmaSearch

_NO_RECALL = -1.0  # below every alpha: an entry with the same input is a neighbour like others


@final
class FrozenMemory(Memory):
    """A fixed classifier F made of stored balls and of one smoothed classifier; it stores nothing.

    `lookup` answers without sampling if a stored ball contains the input. The same input gets its stored answer, any
    other input the largest ball around it inside a stored ball. alpha does not matter, because inside a ball F is the
    stored label by definition.

    `settle` takes a certificate at the one `sigma`. Outside all stored balls, it is cut where a ball with another label
    begins. Inside a ball, the answer is as for `lookup`, or the certificate if it has the same label and is larger.

    `CertificateMemory.freeze` makes one, and `open` opens it again.
    """

    def __init__(self, view: View) -> None:
        view.is_fixed = True
        super().__init__(view)
        freeze = view.ledger.frozen()
        if freeze is None or freeze.entries != len(view):
            place = view.ledger.place
            self.close()
            got = "a live one" if freeze is None else f"{len(view)} entries instead of {freeze.entries}"
            what = "freeze it by `sigmax memory freeze`" if freeze is None else "restore it from a copy"
            raise MemoryRefusedError(f"{place}: expected a frozen memory, got {got}; {what}")
        self._freeze: Freeze = freeze

    @classmethod
    def open(cls, place: Place, *, norm: int, fingerprint: str | None = None) -> Self:
        """Open a memory that was frozen; one with another norm or fingerprint is refused."""
        existing_owner(place)  # opening a ledger would create it
        return cls(View(ledger_kind(place)(place, Owner(norm=norm, fingerprint=fingerprint))))

    @classmethod
    def existing(cls, place: Place) -> Self:
        """Open a memory that was frozen with the norm and the fingerprint that it was created with."""
        return cls(View(ledger_kind(place)(place, existing_owner(place))))

    @staticmethod
    def digest_at(place: Place) -> str:
        """The digest of the frozen memory at this place, without reading its entries."""
        ledger = ledger_kind(place)(place, existing_owner(place))
        try:
            freeze = ledger.frozen()
        finally:
            ledger.close()
        if freeze is None:
            raise MemoryRefusedError(
                f"{ledger.place}: expected a frozen memory, got a live one; freeze it by `sigmax memory freeze`"
            )
        return freeze.digest

    @property
    def digest(self) -> str:
        """The name of F: a digest of the norm, the fingerprint, sigma and all entries."""
        return self._freeze.digest

    @property
    def sigma(self) -> float:
        """The noise level outside all stored balls."""
        return self._freeze.sigma

    def check_search(self, search: SigmaSearch) -> None:
        """Refuse a search that gives any input another sigma, before anything is sampled."""
        if search.is_per_input or np.float32(search.initial) != np.float32(self.sigma):
            got = "per-input sigma" if search.is_per_input else f"sigma={search.initial}"
            raise InvalidInputError(
                f"{self.place}: expected sigma={self.sigma} for every input, as it was frozen with, got {got}; "
                f"use --sigma {self.sigma:g} without --per-input"
            )

    def _answers(
        self, pixels: Pixels, points: Sequence[PointCertificate | None], alphas: Sequence[float]
    ) -> list[SettledCertificate | None]:
        del alphas  # inside a ball, F is the stored label by definition
        self._view.refresh()
        recall = [1.0 if point is None else _NO_RECALL for point in points]
        return [
            question.answer or settle_frozen(question.point, question.neighbours)
            for question in self._view.questions(pixels, points, recall)
        ]

    def _check_point(self, point: PointCertificate) -> None:
        super()._check_point(point)
        # Sigma comes from float32 tensors as often as not.
        is_one = np.float32(point.sigma) == np.float32(self.sigma) and point.tau in (None, point.sigma)
        if not is_one or point.expert != 0:
            raise InvalidInputError(
                f"expected a certificate of the first network at sigma={self.sigma}, as this memory was frozen with, "
                f"got sigma={point.sigma}, tau={point.tau}, expert={point.expert}; certify with --sigma {self.sigma:g} "
                "and without --per-input"
            )
