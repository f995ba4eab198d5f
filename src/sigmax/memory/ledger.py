"""The durable log of a memory, as an interface: append under a lock, read after a sequence number, read points."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector
from sigmax.memory.index import SketchedBalls

FORMAT = 4  # of what ledgers store, including the sketches

Place = str | Path  # where a ledger is: a path or a URL
Pixels = NDArray[np.floating]  # an input as it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One certified ball: the answer given for x."""

    id: int
    x: Vector  # flattened
    answer: SettledCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """That a ledger takes no more entries: the fixed classifier that it belongs to, by its digest."""

    sigma: float  # of the classifier outside all balls
    entries: int
    digest: str  # of the owner, of sigma and of all entries

    def refusal(self, place: str) -> MemoryRefusedError:
        """What to say to those who want to append."""
        return MemoryRefusedError(
            f"{place}: expected a live memory to store an answer in, got one that is frozen (digest {self.digest}); "
            "answer with --frozen, or go on with a copy of it, made by `sigmax memory copy`"
        )


class ConnectionLostError(MemoryRefusedError):
    """A server is gone, or was. Whether the last transaction was committed is unknown: asking again finds out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a ledger belongs to; the fingerprint names the model, its preprocessing and the noise."""

    format: int = FORMAT
    norm: int
    fingerprint: str | None

    def __str__(self) -> str:
        return f"format {self.format} with l{self.norm} balls and fingerprint {str(self.fingerprint)[:12]}"

    def check(self, written: "Owner | None", place: str) -> None:
        """Refuse a ledger that was written for another owner; None stands for a new ledger."""
        if written not in (None, self):
            raise MemoryRefusedError(
                f"{place}: expected a memory of {self}, got {written}; use another memory, "
                "because each belongs to one model, preprocessing, norm, noise and format"
            )


class Ledger(ABC):
    """Entries with the ids 1, 2, 3, … in the order in which they were appended; they never change.

    So reading needs no lock. Only one thread may use a ledger at a time. Every method raises `MemoryRefusedError` if
    the storage fails or is damaged.
    """

    is_shared: bool  # whether other processes may append to it
    place: str  # as messages name it
    owned_by: Owner

    @abstractmethod
    def __init__(self, place: Place | None, owner: Owner) -> None:
        """Open the ledger at this place or create it; None keeps it in this process. Check the owner."""

    @staticmethod
    @abstractmethod
    def owner(place: Place) -> Owner | None:
        """What the ledger at this place belongs to; None if no ledger has been created there."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """A transaction that excludes all other writers; leaving it without an error commits durably."""

    @abstractmethod
    def roll_back(self) -> None:
        """Undo a transaction that an error or an interrupt left open."""

    @abstractmethod
    def append(
        self, first: int, inputs: Sequence[Pixels], answers: Sequence[SettledCertificate], balls: SketchedBalls
    ) -> None:
        """Append entries with the ids first, first + 1, …; only inside `locked`. Refused once it is frozen."""

    @abstractmethod
    def copy_from(self, other: "Ledger", *, on_progress: Callable[[int], None] | None = None) -> int:
        """Append the entries of another ledger that this one lacks, byte for byte; refuse if it has others.

        Returns how many entries there are then.
        """

    @abstractmethod
    def freeze(self, sigma: float) -> Freeze:
        """Take no more entries, from any process. Freezing twice with the same sigma is allowed."""

    @abstractmethod
    def frozen(self) -> Freeze | None:
        """How it was frozen; None: it is live."""

    @abstractmethod
    def digest(self, sigma: float) -> str:
        """The digest of all entries, as `freeze` computes it."""

    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the inputs; the first entry sets it."""

    @abstractmethod
    def balls(self, *, after: int) -> SketchedBalls | None:
        """The next page of what the search needs, after this id; None if there are no more entries."""

    @abstractmethod
    def read(self, *, after: int, limit: int) -> list[Entry]:
        """The next entries after this id, at most `limit`."""

    @abstractmethod
    def points(self, ids: Sequence[int]) -> list[Vector]:
        """The flattened inputs of these entries."""

    @abstractmethod
    def check(self) -> None:
        """Read everything, to find damage that opening does not notice."""

    @abstractmethod
    def close(self) -> None:
        """Release the storage. Closing twice is allowed; any other use is refused."""
