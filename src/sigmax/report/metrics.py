"""Numbers from certificate tables: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sigmax.records import ABSTAIN, CertificateTable

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0)


def certified_accuracy(table: CertificateTable, radii: ArrayLike) -> NDArray[np.float64]:
    """The share of inputs answered correctly with a radius of at least r, for each r."""
    reached = np.sort(table.radius[table.is_correct])
    return (len(reached) - np.searchsorted(reached, np.asarray(radii, dtype=np.float64), side="left")) / max(
        len(table), 1
    )


def average_certified_radius(table: CertificateTable) -> float:
    """ACR: the mean over all inputs of the radius where the answer is correct, else 0."""
    return float(np.where(table.is_correct, table.radius, 0.0).sum() / max(len(table), 1))


def abstentions(table: CertificateTable) -> float:
    """The share of inputs without an answer."""
    return float((table.predict == ABSTAIN).sum() / max(len(table), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One line of a table of results."""

    name: str
    inputs: int
    answers: str  # "settled" by a memory, or "point" certificates
    radii: tuple[float, ...]
    accuracy: tuple[float, ...]  # certified accuracy at each radius
    acr: float
    abstained: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarise(name: str, table: CertificateTable, radii: Sequence[float]) -> Summary:
    """What `sigmax show` prints of a table."""
    return Summary(
        name=name,
        inputs=len(table),
        answers="settled" if table.is_settled else "point",
        radii=tuple(radii),
        accuracy=tuple(certified_accuracy(table, np.array(radii)).tolist()),
        acr=average_certified_radius(table),
        abstained=abstentions(table),
    )


def common_radii(tables: Sequence[CertificateTable]) -> tuple[float, ...]:
    """The usual radii, up to the largest that any of the tables certifies."""
    largest = max((float(table.radius.max(initial=0.0)) for table in tables), default=0.0)
    return tuple(radius for radius in RADII if radius <= largest)
