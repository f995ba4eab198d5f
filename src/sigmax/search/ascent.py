"""Algorithm 1: stochastic gradient ascent on the certified radius over the per-input sigma."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, final

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError, ModelError
from sigmax.noise import SmoothingDistribution
from sigmax.search.base import (
    SEARCH_ROWS,
    BoundedSearch,
    Choice,
    SearchTask,
    check_positive,
    keep_better,
    mean_probabilities,
    resolved_bounds,
    with_draws,
)
from sigmax.streams import Stage

PAPER_STEP = 1e-4  # what the paper calls alpha
ALGORITHM_1 = "Algorithm 1"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AscentSearch(BoundedSearch):
    """Gradient ascent on the radius from sigma0. If a pilot finds sigma0 better, sigma0 is kept.

    Args:
        initial: sigma0, usually the noise level that the network was trained with.
        steps: K, the number of ascent steps.
        samples: n, the noise draws per step and input.
        step_size: The step size, which the paper calls alpha.
        bounds: Bounds of sigma; by default [sigma0 / 4, 2 sigma0]. Far above its training sigma a network answers
            one class for everything, and radii would grow without meaning.
        clamp: Mean probabilities are clamped to this range before the quantile function.
        fixes_class: Maximise the radius of the class predicted under sigma0 (Eq. 2), not of the class that leads at
            each step.
        pilot: Fresh samples at sigma* and at sigma0; sigma* must be better there. 0: always take sigma*.
    """

    name = "ascent"
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
        object.__setattr__(self, "bounds", resolved_bounds(self.initial, self.bounds))
        if self.pilot and not self.fixes_class:
            raise InvalidInputError("expected fixes_class=True with a pilot, got False; set pilot=0")

    @classmethod
    def paper(cls, *, initial: float, steps: int = 900, samples: int = 1, step_size: float = PAPER_STEP) -> Self:
        """The paper's Algorithm 1: plain ascent with a free class, without bounds or pilot."""
        bounded = cls(initial=initial, steps=steps, samples=samples, step_size=step_size)
        return replace(bounded, bounds=(-math.inf, math.inf), fixes_class=False, pilot=0)

    def label(self) -> str:
        """Algorithm 1, or how it differs from that."""
        if self.upper is not None:
            name = self._within("bounded ascent" if self.fixes_class else "bounded ascent, class free")
        else:
            name = "unbounded ascent" if self.fixes_class else ALGORITHM_1
        if self.step_size != PAPER_STEP:
            name += f", steps of {self.step_size:g}"
        return with_draws(name, self.samples)

    def find(self, task: SearchTask) -> Choice:
        """Ascend for a few inputs at a time; then let the pilot choose between sigma* and sigma0."""
        inputs = max(1, SEARCH_ROWS // self.samples)
        sigma = torch.cat([self._ascend(part) for part in task.split(inputs)])
        return keep_better(task, Choice(sigma=sigma), samples=self.pilot)

    def cost(self) -> int:
        """A forward and a backward pass per step and draw, and two pilots."""
        return 3 * self.steps * self.samples + 2 * self.pilot

    def _ascend(self, task: SearchTask) -> Tensor:
        streams = task.streams(Stage.SEARCH)

        def perturb(x: Tensor, sigma: Tensor) -> Tensor:
            task.worked(3 * self.samples * len(x))
            return task.noise.perturb(x, sigma, n=self.samples, streams=streams)

        probabilities = partial(mean_probabilities, task.classifier)
        start = task.constant(self.initial)
        return self.ascend(probabilities, task.x, start, perturb=perturb, noise=task.noise, label=task.label)

    # The caller may have turned gradients off.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def ascend(
        self,
        probabilities: Callable[[Tensor, Tensor], Tensor],
        x: Tensor,
        sigma: Tensor,
        *,
        perturb: Callable[[Tensor, Tensor], Tensor],
        noise: SmoothingDistribution,
        label: Tensor | None = None,
    ) -> Tensor:
        """Take the K steps of Algorithm 1 from `sigma`; the model's weights get no gradient.

        Args:
            probabilities: Mean class probabilities of noisy copies (inputs, n, *dims) at sigma, (inputs, classes).
            x: The inputs, (inputs, *dims).
            sigma: Where to start, (inputs,).
            perturb: Fresh noisy copies of x at sigma, (inputs, n, *dims), differentiable in sigma.
            noise: The smoothing distribution.
            label: The class to certify, (inputs,); None: the class that leads at each step.
        """
        x, label = x.clone(), None if label is None else label.clone()  # tensors of inference mode have no gradients
        for _ in range(self.steps):
            sigma = sigma.detach().clone().requires_grad_()
            probs = probabilities(perturb(x, sigma), sigma).clamp(*self.clamp)  # inputs classes
            if not probs.requires_grad:
                # The radius depends on sigma directly too. The ascent would follow that slope and ignore the model.
                raise ModelError("expected a model with gradients for an ascent, got none; use HalvingSearch (halving)")
            radius = noise.soft_radius(probs, sigma, label=label)  # inputs
            (slope,) = torch.autograd.grad(radius.sum(), sigma)
            sigma = (sigma + self.step_size * slope).clamp(*self.limits)
        return sigma.detach()
