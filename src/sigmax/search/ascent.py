"""Algorithm 1: stochastic gradient ascent on the certified radius over sigma, for each input."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError, ModelError
from sigmax.noise import SmoothingDistribution
from sigmax.sampling import Stage
from sigmax.sigma.search import (
    SEARCH_ROWS,
    SearchTask,
    SigmaSearch,
    check_positive,
    initial_sigma,
    keep_better,
    limits_of,
    mean_probabilities,
)

PAPER_STEP = 1e-4  # what the paper calls alpha


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AscentSearch(SigmaSearch):
    """Gradient ascent on the radius from sigma0, never worse than sigma0 as far as a pilot can tell.

    Args:
        initial: sigma0, usually the noise level that the network was trained with.
        steps: K, the number of ascent steps.
        samples: n, the noise draws per step and input.
        step_size: What the paper calls alpha.
        bounds: Sigma is kept inside; by default [sigma0 / 4, 2 sigma0]. Far above its training sigma a
            network answers one class for everything, and radii would grow without meaning.
        clamp: Mean probabilities are cut to this range before the quantile function.
        fixes_class: Maximise the radius of the class predicted under sigma0 (Eq. 2) rather than of
            whichever class leads at a step.
        pilot: Samples with which sigma* must beat sigma0 on a stream of their own; 0: always take sigma*.
    """

    initial: float
    steps: int = 900
    samples: int = 1
    step_size: float = PAPER_STEP
    bounds: tuple[float, float] | None = None
    clamp: tuple[float, float] = (0.02, 0.98)
    fixes_class: bool = True
    pilot: int = 1000

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)
        check_positive("step_size", self.step_size)
        if self.steps < 0 or self.samples < 1 or self.pilot < 0:
            raise InvalidInputError(
                "expected steps >= 0, samples >= 1 and pilot >= 0, "
                f"got steps={self.steps}, samples={self.samples}, pilot={self.pilot}"
            )
        limits_of(self.initial, self.bounds)
        if self.pilot and not self.fixes_class:
            raise InvalidInputError("expected fixes_class=True with a pilot, got False; set pilot=0")

    @classmethod
    def paper(cls, *, initial: float, steps: int = 900, samples: int = 1, step_size: float = PAPER_STEP) -> Self:
        """The paper's Algorithm 1: plain ascent, the class free at each step, no bounds, no pilot."""
        unbounded = (-float("inf"), float("inf"))
        return cls(
            initial=initial,
            steps=steps,
            samples=samples,
            step_size=step_size,
            bounds=unbounded,
            fixes_class=False,
            pilot=0,
        )

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds in force."""
        return limits_of(self.initial, self.bounds)

    def find(self, task: SearchTask) -> Tensor:
        """Ascend for all inputs, a few at a time, then let the pilot choose between sigma* and sigma0."""
        inputs = max(1, SEARCH_ROWS // self.samples)
        sigma = torch.cat([self._ascend(part) for part in task.split(inputs)])
        return keep_better(task, sigma, self.initial, samples=self.pilot) if self.pilot else sigma

    def cost(self) -> int:
        """Each step is a forward and a backward pass for each draw; the pilot asks twice."""
        return 3 * self.steps * self.samples + 2 * self.pilot

    def _ascend(self, task: SearchTask) -> Tensor:
        streams = task.streams(Stage.SEARCH)

        def perturb(x: Tensor, sigma: Tensor) -> Tensor:
            task.worked(3 * self.samples * len(x))
            return task.noise.perturb(x, sigma, n=self.samples, streams=streams)

        return self.ascend(
            lambda noisy: mean_probabilities(task.classifier, noisy),
            task.x,
            initial_sigma(task, self.initial),
            perturb=perturb,
            noise=task.noise,
            label=task.label,
        )

    # Gradients are needed here also where the caller has turned them off.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def ascend(
        self,
        probabilities: Callable[[Tensor], Tensor],
        x: Tensor,
        sigma: Tensor,
        *,
        perturb: Callable[[Tensor, Tensor], Tensor],
        noise: SmoothingDistribution,
        label: Tensor | None = None,
    ) -> Tensor:
        """Take the K steps of Algorithm 1 from `sigma`, (inputs,); the model's weights get no gradient.

        Args:
            probabilities: Mean class probabilities, (inputs, n, *dims) -> (inputs, classes).
            x: The inputs, (inputs, *dims).
            sigma: Where to start, (inputs,).
            perturb: Fresh noisy copies of x at sigma, (inputs, n, *dims), differentiable in sigma.
            noise: The smoothing distribution.
            label: The class to certify, (inputs,); None: whichever leads at a step.
        """
        x, label = x.clone(), None if label is None else label.clone()  # tensors of inference mode know no gradient
        for _ in range(self.steps):
            sigma = sigma.detach().clone().requires_grad_()
            probs = probabilities(perturb(x, sigma)).clamp(*self.clamp)  # inputs classes
            if not probs.requires_grad:
                # The radius has a slope in sigma of its own: it would be followed as if the model said nothing.
                raise ModelError(
                    "expected a model with gradients for the ascent, got none; use HalvingSearch (halving)"
                )
            radius = noise.soft_radius(probs, sigma, label=label)  # inputs
            (slope,) = torch.autograd.grad(radius.sum(), sigma)
            sigma = (sigma + self.step_size * slope).clamp(*self.limits)
        return sigma.detach()
