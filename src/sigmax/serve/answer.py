"""Answers to single questions: look in the memory first; otherwise certify, and settle the answer in the memory."""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Self, final

import torch
from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.jobs import UnderWay
from sigmax.memory import FrozenMemory, Memory
from sigmax.sampling import Progress
from sigmax.smoothed import SmoothedClassifier
from sigmax.streams import SEED_BITS

Watcher = Callable[[PointCertificate], None]  # is told what has been proved so far


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A class and its certificate. All fields but label and rule are those of the certificate that it relies on."""

    label: int | None  # None: abstained
    radius: float
    sigma: float
    alpha: float
    p_lower: float
    n: int
    tau: float | None = None
    expert: int | None = None
    rule: Rule | None = None  # of the memory; None: a point certificate, which no memory has settled
    is_recalled: bool = False  # from the memory, without any sampling
    digest: str | None = None  # of the frozen memory whose fixed classifier answered; None: no such

    @classmethod
    def proved(cls, point: PointCertificate) -> Self:
        """What sampling has proved, where no memory settles it."""
        return cls(
            label=point.label,
            radius=point.radius,
            sigma=point.sigma,
            alpha=point.alpha,
            p_lower=point.p_lower,
            n=point.n,
            tau=point.tau,
            expert=point.expert,
        )

    @classmethod
    def of(cls, settled: SettledCertificate, memory: Memory, *, is_recalled: bool) -> Self:
        """What this memory has settled."""
        proof = settled.proof
        return cls(
            label=settled.label,
            radius=settled.radius,
            sigma=proof.sigma,
            alpha=proof.alpha,
            p_lower=proof.p_lower,
            n=proof.n,
            tau=proof.tau,
            expert=proof.expert,
            rule=settled.rule,
            is_recalled=is_recalled,
            digest=memory.digest,
        )


@final
@dataclass(slots=True, kw_only=True)
class Question:
    """An input, its sampling budget and its deadline. The asker may watch the sampling and stop it at any time."""

    x: Tensor  # *dims
    budget: Budget
    deadline: float | None = None  # of time.monotonic()
    on_proved: Watcher | None = None
    is_stopped: bool = False

    def is_over(self) -> bool:
        """Whether to end the sampling with what has been proved so far."""
        return self.is_stopped or (self.deadline is not None and time.monotonic() >= self.deadline)

    def show(self, one: UnderWay) -> None:
        """Tell the watcher what has been proved so far."""
        if self.on_proved is not None:
            self.on_proved(one.point or one.estimate.proved())


@final
class Answerer:
    """Answers questions about single inputs, never contradicting what its memory has answered before.

    Args:
        smoothed: The classifier.
        budget: How an input is sampled.
        memory: Where answers are settled; a frozen one answers by its fixed classifier, at one sigma, and stores
            nothing. None: answers are point certificates, and two of them may contradict.
    """

    def __init__(self, smoothed: SmoothedClassifier, budget: Budget, memory: Memory | None = None) -> None:
        if isinstance(memory, FrozenMemory):
            memory.check_search(smoothed.search)
        self.smoothed = smoothed
        self.budget = budget
        self.memory = memory

    def answer(
        self,
        x: Tensor,
        *,
        seconds: float | None = None,
        on_proved: Watcher | None = None,
        on_progress: Progress | None = None,
    ) -> Answer:
        """The answer for one input, (*dims). Its noise depends only on the seed and the input.

        Args:
            x: The input.
            seconds: Sample no longer than this. The answer is what has been proved by then; an `anytime` budget proves
                something from the first samples on.
            on_proved: Called with what has been proved, again and again while samples arrive.
            on_progress: Called with the number of forward passes done since the last call.
        """
        budget, index = self.budget, _index_of(x)
        (recalled,) = [None] if self.memory is None else self.recall(x[None], alpha=budget.alpha)
        if recalled is not None:
            return recalled
        deadline = None if seconds is None else time.monotonic() + seconds
        question = Question(x=x, budget=budget, deadline=deadline, on_proved=on_proved)
        job = self.smoothed.job(x[None], budget, indices=[index], on_progress=on_progress)
        (one,) = self.smoothed.sampler.begin(job, self.smoothed.choose(job))
        while one.point is None:
            if question.is_over():
                one.stop()
            else:
                self.smoothed.sampler.sample([one], on_progress=on_progress)
            question.show(one)
        return Answer.proved(one.point) if self.memory is None else self.settle(x[None], [one.point])[0]

    def recall(self, x: Tensor, *, alpha: float) -> list[Answer | None]:
        """What the memory can answer without sampling, for each input of a batch (batch, …)."""
        assert self.memory is not None, "there is a memory"
        found = self.memory.lookup_many(x, alpha=alpha)
        return [None if settled is None else Answer.of(settled, self.memory, is_recalled=True) for settled in found]

    def begin(self, questions: Sequence[Question]) -> list[UnderWay]:
        """Choose class and noise of inputs with one budget. The noise is secret and new for each question.

        Somebody who knows the seed beforehand could look for an input that it certifies wrongly.
        """
        budget = replace(questions[0].budget, seed=secrets.randbits(SEED_BITS))
        job = self.smoothed.job(torch.stack([question.x for question in questions]), budget)
        return self.smoothed.sampler.begin(job, self.smoothed.choose(job))

    def settle(self, x: Tensor, points: Sequence[PointCertificate]) -> list[Answer]:
        """The answers to give, from what sampling has proved of inputs (batch, …)."""
        assert self.memory is not None, "there is a memory"
        found = self.memory.settle_many(x, points)
        return [Answer.of(settled, self.memory, is_recalled=False) for settled in found]

    def unproved(self, question: Question) -> PointCertificate:
        """What is proved of an input that was never sampled: nothing."""
        return PointCertificate(
            label=None,
            radius=0.0,
            sigma=self.smoothed.search.initial,
            p_lower=0.0,
            n=0,
            alpha=question.budget.alpha,
            norm=self.smoothed.noise.norm,
        )


def _index_of(x: Tensor) -> int:
    """A number that names the input."""
    return int.from_bytes(blake2b(x.cpu().numpy().tobytes(), digest_size=7).digest(), "little")
