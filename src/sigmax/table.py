"""A table of certificates: one row per input, in columns. Metrics, reports and results read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError

ABSTAIN = -1
Answers = Sequence[PointCertificate | SettledCertificate]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateTable:
    """The columns of a certificate table that reports use, one row per input."""

    name: str
    idx: NDArray[np.int64]
    label: NDArray[np.int64]  # the true class
    predict: NDArray[np.int64]
    radius: NDArray[np.float64]
    seconds: NDArray[np.float64]  # NaN where the log does not say
    sigma: NDArray[np.float64]  # NaN where the log does not say
    point_predict: NDArray[np.int64]  # before a memory settled it; the answer itself where the log does not say
    point_radius: NDArray[np.float64]  # as above
    rule: tuple[str, ...]  # "" where the log does not say
    samples: NDArray[np.int64]  # drawn for this input; 0 where the log does not say
    tau: NDArray[np.float64] | None = None  # the level that the network was told, NaN where it takes none
    expert: NDArray[np.int64] | None = None  # which of several networks; None: the log does not say, as above
    expert_radius: NDArray[np.float64] | None = None  # of the network that a router chose, NaN where none did
    route_radius: NDArray[np.float64] | None = None  # of the router's choice, as above
    alpha: float = float("nan")  # the largest of all answers; NaN where the log does not say
    norm: int = 2
    dropped: int = 0  # lines that were cut off

    def __len__(self) -> int:
        return len(self.idx)

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """Whether the answer is the true class; recomputed, because some logs keep a running count instead."""
        is_answer: NDArray[np.bool_] = self.predict != ABSTAIN
        return is_answer & np.equal(self.predict, self.label)

    @property
    def is_settled(self) -> bool:
        """Whether its answers were settled by a memory."""
        return any(rule not in ("", "point") for rule in self.rule)

    @property
    def is_routed(self) -> bool:
        """Whether a router chose, so that its answers need no memory."""
        return self.route_radius is not None and bool(np.isfinite(self.route_radius).any())


def certificate_table(
    certificates: Answers, labels: Sequence[int], *, norm: int | None = None, idx: Sequence[int] | None = None
) -> CertificateTable:
    """A table of point certificates or settled answers with their true classes, for all functions of `sigmax.metrics`.

    `norm` is needed only if all answers were looked up in a memory, because these do not record it. `idx` are the
    indices of the inputs; by default 0, 1, 2, …
    """
    if len(certificates) != len(labels):
        raise InvalidInputError(f"expected a label per certificate, got {len(labels)} for {len(certificates)}")
    points, norms = _points(certificates), norms_of(certificates) | ({norm} if norm else set())
    if len(norms) > 1 or (certificates and not norms):
        raise InvalidInputError(f"expected certificates in one norm, got {sorted(norms)}; give norm= for lookups")
    return CertificateTable(
        name="",
        idx=np.arange(len(labels)) if idx is None else np.array(idx, dtype=np.int64),
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


def _points(certificates: Answers) -> Answers:
    """What each was before a memory settled it; itself where that is not known."""
    return [answer.point or answer if isinstance(answer, SettledCertificate) else answer for answer in certificates]


def _labels(certificates: Answers) -> NDArray[np.int64]:
    return np.array([ABSTAIN if answer.label is None else answer.label for answer in certificates], dtype=np.int64)


def norms_of(certificates: Answers) -> set[int]:
    """The norms that these certificates say."""
    return {point.norm for point in _points(certificates) if isinstance(point, PointCertificate)}
