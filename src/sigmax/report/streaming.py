"""Metrics for loops of your own: fed with certificates as they come, asked at any time, merged across workers."""

from collections.abc import Sequence
from copy import copy
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.runs import ABSTAIN, CertificateTable

Certificates = Sequence[PointCertificate | SettledCertificate]


def certificate_table(
    certificates: Certificates, labels: Sequence[int], *, norm: int | None = None
) -> CertificateTable:
    """The table of points or settled answers, with the true class of each, for all of `sigmax.report.metrics`.

    `norm` is needed only where all answers were looked up in a memory: these do not say it.
    """
    if len(certificates) != len(labels):
        raise InvalidInputError(f"expected a label per certificate, got {len(labels)} for {len(certificates)}")
    points, norms = _points(certificates), _norms(certificates) | ({norm} if norm else set())
    if len(norms) > 1 or (certificates and not norms):
        raise InvalidInputError(f"expected certificates in one norm, got {sorted(norms)}; looked-up ones need norm=")
    return CertificateTable(
        name="",
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


def _labels(certificates: Certificates) -> NDArray[np.int64]:
    return np.array([ABSTAIN if answer.label is None else answer.label for answer in certificates], dtype=np.int64)


def _norms(certificates: Certificates) -> set[int]:
    return {point.norm for point in _points(certificates) if isinstance(point, PointCertificate)}


class _Metric:
    """What has seen inputs, all certified in one norm. Two of them added are as one that saw the inputs of both."""

    radii: tuple[float, ...] = ()  # where it is asked

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all inputs."""
        self.inputs = 0
        self.norm: int | None = None  # None: no answer has said it yet
        self._reached: list[float] = []  # the radii of correct answers

    def update(self, certificates: Certificates, labels: Sequence[int]) -> None:
        """Count these answers to inputs with these labels."""
        norm = self.norm or next(iter(_norms(certificates)), None)
        table = certificate_table(certificates, labels, norm=norm or 2)  # no number depends on a norm that none says
        self.norm, self.inputs = norm, self.inputs + len(table)
        self._reached += table.radius[table.is_correct].tolist()

    def __add__(self, other: Self) -> Self:
        if self.radii != other.radii or (self.norm and other.norm and self.norm != other.norm):
            both = [f"l{metric.norm or '?'} at {metric.radii}" for metric in (self, other)]
            raise InvalidInputError(f"expected two metrics in one norm at the same radii, got {' and '.join(both)}")
        total = copy(self)
        total.inputs, total.norm = self.inputs + other.inputs, self.norm or other.norm
        total._reached = self._reached + other._reached
        return total


@final
class CertifiedAccuracy(_Metric):
    """The share of the inputs so far that are answered correctly with a radius of at least r, for each r."""

    def __init__(self, radii: Sequence[float]) -> None:
        super().__init__()
        self.radii = tuple(radii)

    def compute(self) -> NDArray[np.float64]:
        """Certified accuracy at each radius."""
        reached = np.array(self._reached)
        return np.array([(reached >= radius).sum() for radius in self.radii]) / max(self.inputs, 1)


@final
class AverageCertifiedRadius(_Metric):
    """ACR of the inputs so far: the mean of the radius where the answer is correct, else 0."""

    def compute(self) -> float:
        """ACR."""
        return float(np.sum(self._reached) / max(self.inputs, 1))
