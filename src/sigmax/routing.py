"""Per-input noise without a memory: a smoothed and certified router picks the network and its noise.

This is dual randomized smoothing (ICLR 2026). Answers do not depend on the order of questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.jobs import Job
from sigmax.sampling import Progress
from sigmax.search import Choice
from sigmax.smoothed import SmoothedClassifier
from sigmax.streams import Stage

# The router draws noise of its own for each of its stages.
_STAGES = {Stage.SELECTION: Stage.ROUTE_SELECTION, Stage.ESTIMATION: Stage.ROUTE_ESTIMATION}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a router can pick: a network, its noise level sigma, and its told level tau."""

    sigma: float
    expert: int = 0  # which of several networks
    tau: float | None = None  # None: sigma


@final
class RoutedClassifier:
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
        self, router: Callable[..., Tensor], routes: Sequence[Route], *, experts: SmoothedClassifier, sigma: float
    ) -> None:
        self.routes = tuple(routes)
        self.experts = experts
        for route in self.routes:
            if not 0.0 < route.sigma < float("inf") or not 0 <= route.expert < len(experts.experts):
                raise InvalidInputError(
                    f"expected routes with sigma > 0 to one of {len(experts.experts)} experts, got {route}; "
                    "experts are counted from 0"
                )
        self.router = SmoothedClassifier(
            router,
            num_classes=len(self.routes),
            noise=experts.noise,
            sigma=sigma,
            levels=experts.levels,
            batch_size=experts.batch_size,
            stages=_STAGES,
        )

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
        budget = Budget(n0=n0, n=n, alpha=alpha / 2, seed=seed)
        whole = self.experts.job(x, budget, indices=indices, on_progress=on_progress)
        # Routes are many and similar: without a bound on the runner-up, the router would often abstain.
        routing = self.router.job(x, replace(budget, runner_up=True), indices=indices, on_progress=on_progress)
        points: list[PointCertificate] = []
        for block in whole.parts(self.experts.block_size(whole)):
            points += self._certify(whole[block], routing[block], alpha)
        return points

    def _certify(self, job: Job, routing: Job, alpha: float) -> list[PointCertificate]:
        picked = self.router.choose(routing)
        choice = self._choice(picked.label, like=job.x)
        answers = self.experts.estimate(job, self.experts.decide(job, choice))
        proofs = self.router.estimate(routing, picked)
        return [_joined(answer, proof, alpha) for answer, proof in zip(answers, proofs, strict=True)]

    def _choice(self, picked: Tensor, *, like: Tensor) -> Choice:
        chosen = [self.routes[place] for place in picked.tolist()]
        return Choice(
            sigma=like.new_tensor([route.sigma for route in chosen]),
            tau=like.new_tensor([route.tau or route.sigma for route in chosen]),
            expert=torch.tensor([route.expert for route in chosen], dtype=torch.int64),
        )


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
