"""What every classifier that certifies can do with a job: the interface of engines and memories."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.jobs import Job
from sigmax.sampling import Progress


class Certifier(ABC):
    """Certifies the inputs of a job, block by block."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What a memory of its answers belongs to."""

    @abstractmethod
    def job(
        self,
        x: Tensor,
        budget: Budget,
        *,
        indices: Sequence[int] | None = None,
        truth: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> Job:
        """Inputs to certify, checked. The true classes only decide which inputs get `budget.n_wrong` samples."""

    @abstractmethod
    def block_size(self, job: Job) -> int:
        """Inputs whose class and noise are chosen together; the last bits of an answer may depend on it."""

    @abstractmethod
    def certify_block(self, job: Job, *, begin: int = 0) -> Iterator[PointCertificate]:
        """The certificates of a block of inputs, each as soon as it is known.

        The first `begin` are known already: they take part in what inputs share, and are not sampled again.
        """

    @abstractmethod
    def cost(self, budget: Budget) -> int:
        """Forward passes per input, at most: for progress and planning."""

    def certify_job(self, whole: Job) -> list[PointCertificate]:
        """The certificates of all inputs of a job."""
        points: list[PointCertificate] = []
        for block in whole.parts(self.block_size(whole)):
            points += self.certify_block(whole[block])
        return points
