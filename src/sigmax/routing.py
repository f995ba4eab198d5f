"""Per-input noise without a memory: a smoothed and certified router picks the network and its noise.

This is dual randomized smoothing (ICLR 2026). Answers do not depend on the order of questions.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.certifier import Certifier
from sigmax.errors import InvalidInputError
from sigmax.experts import Experts
from sigmax.jobs import Job
from sigmax.models.classifier import BaseClassifier
from sigmax.sampling import Progress
from sigmax.search import Choice
from sigmax.smoothed import SmoothedClassifier
from sigmax.streams import Stage

# The router draws noise of its own for each of its stages.
_STAGES = {Stage.SELECTION: Stage.ROUTE_SELECTION, Stage.ESTIMATION: Stage.ROUTE_ESTIMATION}
_NAME = re.compile(r"expert (\d+), sigma (\S+), tau (\S+)")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a router can pick: a network, its noise level sigma, and its told level tau."""

    sigma: float
    expert: int = 0  # which of several networks
    tau: float | None = None  # None: sigma

    @property
    def name(self) -> str:
        """The class of a router that stands for it; `parse` reads it."""
        return f"expert {self.expert}, sigma {self.sigma}, tau {self.tau or self.sigma}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The route that a class of a router stands for."""
        if (found := _NAME.fullmatch(name)) is None:
            raise InvalidInputError(
                f"expected a router whose classes are routes such as {cls(sigma=0.25).name!r}, got class {name!r}; "
                "train one on the data of route_examples"
            )
        expert, sigma, tau = found.groups()
        return cls(expert=int(expert), sigma=float(sigma), tau=float(tau))


@final
class RoutedClassifier(Certifier):
    r"""A fixed classifier with per-input noise: the smoothed router H picks a route, and its smoothed expert G answers.

    H is constant within $R_H$ and the chosen G within $R_G$, so the answer is constant within $\min(R_H, R_G)$. Each of
    the two bounds fails with probability at most alpha / 2.

    Args:
        router: The base router: a network with one score per route.
        routes: The routes that it picks from, in the order of its scores.
        experts: The classifier whose networks answer. Its own sigma is not used.
        sigma: The noise level of the router.
    """

    def __init__(
        self,
        router: Callable[..., Tensor] | BaseClassifier,
        routes: Sequence[Route],
        *,
        experts: SmoothedClassifier,
        sigma: float,
    ) -> None:
        self.routes = tuple(routes)
        self.experts = experts
        for route in self.routes:
            if not 0.0 < route.sigma < float("inf") or not 0 <= route.expert < len(experts.experts):
                raise InvalidInputError(
                    f"expected routes with sigma > 0 to one of {len(experts.experts)} experts, got {route}; "
                    "experts are counted from 0"
                )
        if isinstance(router, BaseClassifier) and router.num_classes != len(self.routes):
            raise InvalidInputError(
                f"expected a router with a score for each of {len(self.routes)} routes, got {router.num_classes} scores"
            )
        self.router = SmoothedClassifier(
            Experts([router]),
            num_classes=len(self.routes),
            noise=experts.noise,
            sigma=sigma,
            levels=experts.levels,
            batch_size=experts.sampler.batch_size,
            stages=_STAGES,
        )

    @property
    def fingerprint(self) -> str:
        """What its answers belong to: router and experts with their noise, the router's sigma and the routes."""
        routes = "; ".join(route.name for route in self.routes)
        parts = f"{self.router.fingerprint} at {self.router.search.initial} to {self.experts.fingerprint}: {routes}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def certify(
        self,
        x: Tensor,
        *,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 0.001,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[PointCertificate]:
        """Certify each input; the arguments are those of `SmoothedClassifier.certify`.

        The router takes n0 and n samples, and the expert as many again. All certificates speak of one fixed classifier,
        so two of them contradict each other only if one is wrong, with probability at most alpha each.
        """
        budget = Budget(n0=n0, n=n, alpha=alpha, seed=seed)
        whole = self.job(x, budget, indices=indices, on_progress=on_progress)
        return self.certify_job(whole)

    def job(
        self,
        x: Tensor,
        budget: Budget,
        *,
        indices: Sequence[int] | None = None,
        truth: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> Job:
        """Inputs to certify, checked. n0 and n are the samples of the router, and again of the expert."""
        self.router.job(x, _routing_budget(budget), indices=indices)
        return self.experts.job(x, budget, indices=indices, truth=truth, on_progress=on_progress)

    def block_size(self, job: Job) -> int:
        """Inputs that are chosen for together."""
        return self.experts.block_size(job)

    def certify_block(self, job: Job, *, begin: int = 0) -> Iterator[PointCertificate]:
        """As `SmoothedClassifier.certify_block`: the answer of the chosen expert, and the choice itself."""
        routing = replace(
            job, x=job.x.to(self.router.classifier.device), budget=_routing_budget(job.budget), truth=None
        )
        picked = self.router.choose(routing)
        decision = self.experts.sampler.decide(job, self._choice(picked.label, like=job.x))
        answering = replace(job, budget=_halved(job.budget))
        for part in self.experts.sampler.estimate_parts(job):
            if part.stop > begin:
                answers = self.experts.sampler.estimate(answering[part], decision[part])
                proofs = self.router.sampler.estimate(routing[part], picked[part])
                points = [_joined(*both, job.budget.alpha) for both in zip(answers, proofs, strict=True)]
                yield from points[max(0, begin - part.start) :]

    def cost(self, budget: Budget) -> int:
        """Forward passes per input, at most."""
        return 2 * (budget.n0 + budget.n)

    def _choice(self, picked: Tensor, *, like: Tensor) -> Choice:
        chosen = [self.routes[place] for place in picked.tolist()]
        return Choice(
            sigma=like.new_tensor([route.sigma for route in chosen]),
            tau=like.new_tensor([route.tau or route.sigma for route in chosen]),
            expert=torch.tensor([route.expert for route in chosen], dtype=torch.int64),
        )


def _halved(budget: Budget) -> Budget:
    return replace(budget, alpha=budget.alpha / 2)


def _routing_budget(budget: Budget) -> Budget:
    if budget.radii or budget.anytime:
        raise InvalidInputError("expected a router without radii or anytime, got one of them; leave out --at")
    # Routes are many and alike: without a bound on the second one, the router would often abstain.
    return replace(_halved(budget), runner_up=True, n_wrong=None)


def _joined(answer: PointCertificate, proof: PointCertificate, alpha: float) -> PointCertificate:
    """What both prove together: nothing if one of them abstains."""
    is_certain = answer.label is not None and proof.label is not None
    return replace(
        answer,
        label=answer.label if is_certain else None,
        radius=min(answer.radius, proof.radius) if is_certain else 0.0,
        alpha=alpha,
        expert_radius=answer.radius,
        route_radius=proof.radius,
    )
