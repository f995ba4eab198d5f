"""The one way to answer a question: look it up in the memory, else certify it and settle the answer there."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import final

from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import Rule
from sigmax.memory import CertificateMemory
from sigmax.sampling import Progress
from sigmax.smoothed import SmoothedClassifier


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A class, and what is certified of it."""

    label: int | None  # None: abstained
    radius: float
    sigma: float
    alpha: float  # of the certificate that the answer relies on
    rule: Rule | None = None  # of the memory; None: a point certificate, which no memory has settled
    is_recalled: bool = False  # from the memory, without any sampling


@final
class Answerer:
    """Answers questions about single inputs, never contradicting what its memory has answered before.

    Args:
        smoothed: The classifier.
        budget: How an input is sampled.
        memory: Where answers are settled; None: answers are point certificates, and two of them may contradict.
    """

    def __init__(self, smoothed: SmoothedClassifier, budget: Budget, memory: CertificateMemory | None = None) -> None:
        self.smoothed = smoothed
        self.budget = budget
        self.memory = memory

    def answer(self, x: Tensor, *, on_progress: Progress | None = None) -> Answer:
        """The answer for one input, (*dims). An input names its own noise: its answer depends on no other question."""
        budget = self.budget
        index = int.from_bytes(blake2b(x.cpu().numpy().tobytes(), digest_size=7).digest(), "little")
        recalled = self.memory.lookup(x, alpha=budget.alpha) if self.memory else None
        settled = recalled
        if settled is None:
            job = self.smoothed.job(x[None], budget, indices=[index], on_progress=on_progress)
            (point,) = self.smoothed.certify_job(job)
            if self.memory is None:
                return Answer(label=point.label, radius=point.radius, sigma=point.sigma, alpha=point.alpha)
            settled = self.memory.settle(x, point)
        return Answer(
            label=settled.label,
            radius=settled.radius,
            sigma=settled.sigma,
            alpha=settled.alpha,
            rule=settled.rule,
            is_recalled=recalled is not None,
        )
