"""The one way to answer a question: look it up in the memory, else certify it and settle the answer there."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import final

from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import Rule
from sigmax.errors import InvalidInputError
from sigmax.memory import FrozenMemory, Memory
from sigmax.sampling import Progress
from sigmax.smoothed import SmoothedClassifier


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A class, and what is certified of it."""

    label: int | None  # None: abstained
    radius: float | None = None  # None: predicted, not certified
    sigma: float | None = None
    alpha: float | None = None  # of the certificate that the answer relies on
    rule: Rule | None = None
    is_recalled: bool = False  # from the memory, without any sampling
    digest: str | None = None  # of the frozen memory whose fixed classifier answered; None: no such


@final
class Answerer:
    """Answers questions about single inputs, never contradicting what its memory has answered before.

    Args:
        smoothed: The classifier.
        budget: How an input is sampled.
        memory: Where answers are settled; a frozen one answers by its fixed classifier, at one sigma, and stores
            nothing. None: the class is predicted, and nothing is certified.
    """

    def __init__(self, smoothed: SmoothedClassifier, budget: Budget, memory: Memory | None = None) -> None:
        if isinstance(memory, FrozenMemory) and smoothed.search.is_per_input:
            raise InvalidInputError(
                "expected one sigma outside the balls of a frozen memory, got per-input sigma; "
                f"use sigma={memory.sigma}"
            )
        self.smoothed = smoothed
        self.budget = budget
        self.memory = memory

    def answer(self, x: Tensor, *, on_progress: Progress | None = None) -> Answer:
        """The answer for one input, (*dims). An input names its own noise: its answer depends on no other question."""
        budget = self.budget
        index = int.from_bytes(blake2b(x.cpu().numpy().tobytes(), digest_size=7).digest(), "little")
        if self.memory is None:
            (label,) = self.smoothed.predict(
                x[None],
                n0=budget.n0,
                n=budget.n,
                alpha=budget.alpha,
                seed=budget.seed,
                indices=[index],
                on_progress=on_progress,
            )
            return Answer(label=label)
        recalled = self.memory.lookup(x, alpha=budget.alpha)
        settled = recalled
        if settled is None:
            job = self.smoothed.job(x[None], budget, indices=[index], on_progress=on_progress)
            (point,) = self.smoothed.certify_job(job)
            settled = self.memory.settle(x, point)
        return Answer(
            label=settled.label,
            radius=settled.radius,
            sigma=settled.sigma,
            alpha=settled.alpha,
            rule=settled.rule,
            is_recalled=recalled is not None,
            digest=self.memory.digest,
        )
