"""Metrics for loops of your own: fed with certificates as they come, asked at any time, merged across workers."""

from collections.abc import Sequence
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.records import ABSTAIN, CertificateTable
from sigmax.report.metrics import count_certified, counted_radii

Certificates = Sequence[PointCertificate | SettledCertificate]


def certificate_table(
    certificates: Certificates, labels: Sequence[int], *, name: str = "", norm: int | None = None
) -> CertificateTable:
    """The table of certificates that are in memory, for every metric of `sigmax.report.metrics`.

    Args:
        certificates: Points or settled answers, all in one norm.
        labels: The true class of each.
        name: Of the table.
        norm: Needed only where no answer was sampled, so that none says it: all of them were looked up in a memory.
    """
    if len(certificates) != len(labels):
        raise InvalidInputError(
            f"expected one label per certificate, got {len(labels)} labels for {len(certificates)} certificates"
        )
    points = _points(certificates)
    norms = _norms(points) | ({norm} if norm else set())
    if len(norms) > 1:
        raise InvalidInputError(f"expected certificates in one norm, got {sorted(norms)}")
    if certificates and not norms:
        raise InvalidInputError("expected norm=1 or norm=2 for answers that were all looked up, got none")
    return CertificateTable(
        name=name,
        idx=np.arange(len(labels)),
        label=np.array(labels, dtype=np.int64),
        predict=_labels(certificates),
        radius=np.array([answer.radius for answer in certificates], dtype=np.float64),
        seconds=np.full(len(labels), np.nan),
        sigma=np.array([answer.sigma for answer in certificates], dtype=np.float64),
        point_predict=_labels(points),
        point_radius=np.array([point.radius for point in points], dtype=np.float64),
        rule=tuple(answer.rule if isinstance(answer, SettledCertificate) else "point" for answer in certificates),
        samples=np.array([point.n if isinstance(point, PointCertificate) else 0 for point in points], dtype=np.int64),
        norm=norms.pop() if norms else 2,
    )


def _points(certificates: Certificates) -> Certificates:
    """What each was before a memory settled it; itself where that is not known."""
    return [answer.point or answer if isinstance(answer, SettledCertificate) else answer for answer in certificates]


def _norms(points: Certificates) -> set[int]:
    return {point.norm for point in points if isinstance(point, PointCertificate)}


def _labels(certificates: Certificates) -> NDArray[np.int64]:
    return np.array([ABSTAIN if c.label is None else c.label for c in certificates], dtype=np.int64)


class _Metric:
    """What has seen inputs, all certified in one norm."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all inputs."""
        self.inputs = 0
        self.norm: int | None = None  # no answer so far has said which: those that a memory looked up do not

    def _table(self, certificates: Certificates, labels: Sequence[int]) -> CertificateTable:
        """The table of these, which are in the norm of those before."""
        said = self.norm or next(iter(_norms(_points(certificates))), None)
        table = certificate_table(certificates, labels, norm=said or 2)  # where nobody says it, no number depends on it
        self.norm = said
        self.inputs += len(table)
        return table

    def _take(self, other: "_Metric") -> None:
        """Add the inputs of another to those of this one."""
        if self.norm and other.norm and self.norm != other.norm:
            raise InvalidInputError(f"expected two metrics in one norm, got l{self.norm} and l{other.norm}")
        self.norm = self.norm or other.norm
        self.inputs += other.inputs


@final
class CertifiedAccuracy(_Metric):
    """The share of the inputs so far that are answered correctly with a radius of at least r, for each r.

    Two of them added are as one that saw the inputs of both.
    """

    def __init__(self, radii: Sequence[float]) -> None:
        self.radii = tuple(radii)
        super().__init__()

    def reset(self) -> None:
        """Forget all inputs."""
        super().reset()
        self._hits = np.zeros(len(self.radii), dtype=np.int64)

    def update(self, certificates: Certificates, labels: Sequence[int]) -> None:
        """Count these answers to inputs with these labels."""
        self._hits = self._hits + count_certified(self._table(certificates, labels), self.radii)

    def compute(self) -> NDArray[np.float64]:
        """Certified accuracy at each radius."""
        return self._hits / max(self.inputs, 1)

    def __add__(self, other: Self) -> Self:
        if self.radii != other.radii:
            raise InvalidInputError(f"expected two metrics at the same radii, got {self.radii} and {other.radii}")
        total = type(self)(self.radii)
        total._hits = self._hits + other._hits
        for part in (self, other):
            total._take(part)
        return total


@final
class AverageCertifiedRadius(_Metric):
    """ACR of the inputs so far: the mean of the radius where the answer is correct, else 0.

    Two of them added are as one that saw the inputs of both.
    """

    def reset(self) -> None:
        """Forget all inputs."""
        super().reset()
        self._radii = 0.0

    def update(self, certificates: Certificates, labels: Sequence[int]) -> None:
        """Count these answers to inputs with these labels."""
        self._radii += float(counted_radii(self._table(certificates, labels)).sum())

    def compute(self) -> float:
        """ACR."""
        return self._radii / max(self.inputs, 1)

    def __add__(self, other: Self) -> Self:
        total = type(self)()
        total._radii = self._radii + other._radii
        for part in (self, other):
            total._take(part)
        return total
