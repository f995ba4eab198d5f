"""Metrics for loops of your own: fed with certificates as they come, asked at any time, merged across workers."""

from collections.abc import Sequence
from copy import copy
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from sigmax.errors import InvalidInputError
from sigmax.table import Answers, certificate_table, norms_of


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

    def update(self, certificates: Answers, labels: Sequence[int]) -> None:
        """Count these answers to inputs with these labels."""
        norm = self.norm or next(iter(norms_of(certificates)), None)
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
