"""The paper's baseline: the best of equally spaced sigmas, judged by few samples each."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.sampling import Stage
from sigmax.sigma.search import (
    SEARCH_ROWS,
    SearchTask,
    SigmaSearch,
    check_positive,
    initial_sigma,
    mean_probabilities,
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch(SigmaSearch):
    """Grid search with a fixed number of evaluations (paper, appendix "Data Dependent Greedy Search").

    Args:
        initial: sigma0, under which the class is predicted.
        evaluations: Forward passes per input: the grid has evaluations / samples points. The paper's
            200 equal K = 100 ascent steps with one draw, a forward and a backward pass each.
        samples: n, the noise draws at each grid point.
        upper: The grid ends here; it starts one spacing above 0, where the radius is 0.
        clamp: Mean probabilities are cut to this range before the quantile function.
        fixes_class: As in the paper's equation; False lets each grid point choose its class.
    """

    initial: float
    evaluations: int = 200
    samples: int = 1
    upper: float = 1.0
    clamp: tuple[float, float] = (0.02, 0.98)
    fixes_class: bool = True

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)
        check_positive("upper", self.upper)
        if not 1 <= self.samples <= self.evaluations:
            raise InvalidInputError(
                f"expected 1 <= samples <= evaluations, got samples={self.samples}, evaluations={self.evaluations}"
            )

    @property
    def grid(self) -> list[float]:
        """The sigmas that are tried."""
        points = self.evaluations // self.samples
        return [self.upper * (i + 1) / points for i in range(points)]

    def find(self, task: SearchTask) -> Tensor:
        """Try the whole grid for all inputs, a few at a time."""
        inputs = max(1, SEARCH_ROWS // self.samples)
        return torch.cat([self._best(part) for part in task.split(inputs)])

    def cost(self) -> int:
        """One forward pass for each evaluation."""
        return len(self.grid) * self.samples

    def _best(self, task: SearchTask) -> Tensor:
        streams = task.streams(Stage.SEARCH)
        best = initial_sigma(task, self.initial)
        best_radius = torch.full_like(best, -torch.inf)
        with torch.no_grad():
            for level in self.grid:
                sigma = initial_sigma(task, level)
                noisy = task.noise.perturb(task.x, sigma, n=self.samples, streams=streams)  # inputs n *dims
                probs = mean_probabilities(task.classifier, noisy).clamp(*self.clamp)  # inputs classes
                radius = task.noise.soft_radius(probs, sigma, label=task.label)  # inputs
                better = radius > best_radius
                best = torch.where(better, sigma, best)
                best_radius = torch.where(better, radius, best_radius)
                task.worked(self.samples * len(task.x))
        return best
