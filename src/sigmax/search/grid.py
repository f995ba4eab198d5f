"""The paper's baseline: the best of equally spaced sigmas, with few samples each."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.search.base import (
    SEARCH_ROWS,
    Choice,
    SearchTask,
    SigmaSearch,
    check_positive,
    mean_probabilities,
    with_draws,
)
from sigmax.streams import Stage


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch(SigmaSearch):
    """Grid search with a fixed number of evaluations (paper, appendix "Data Dependent Greedy Search").

    Args:
        initial: sigma0, under which the class is predicted.
        evaluations: Forward passes per input; the grid has evaluations / samples points. The paper's 200 equal
            K = 100 ascent steps with one draw, a forward and a backward pass each.
        samples: n, the noise draws at each grid point.
        upper: The last grid point; the first is one spacing above 0.
        clamp: Mean probabilities are clamped to this range before the quantile function.
        fixes_class: Keep the class predicted under sigma0, as in the paper's equation; False lets each grid point
            choose its class.
    """

    name = "grid"
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
        """The sigmas to try."""
        points = self.evaluations // self.samples
        return [self.upper * (i + 1) / points for i in range(points)]

    @classmethod
    def like_ascent(cls, *, initial: float, steps: int = 900, samples: int = 1) -> Self:
        """The grid with the cost of K ascent steps. As in the paper, a step costs two evaluations."""
        return cls(initial=initial, evaluations=2 * steps * samples, samples=samples, upper=max(1.0, 2 * initial))

    def label(self) -> str:
        """The name, and the draws if there are several."""
        return with_draws("grid", self.samples)

    def find(self, task: SearchTask) -> Choice:
        """Try the whole grid for a few inputs at a time."""
        inputs = max(1, SEARCH_ROWS // self.samples)
        return Choice(sigma=torch.cat([self._best(part) for part in task.split(inputs)]))

    def cost(self) -> int:
        """One forward pass per evaluation."""
        return len(self.grid) * self.samples

    def _best(self, task: SearchTask) -> Tensor:
        streams = task.streams(Stage.SEARCH)
        best = task.constant(self.initial)
        best_radius = torch.full_like(best, -torch.inf)
        with torch.no_grad():
            for level in self.grid:
                sigma = task.constant(level)
                noisy = task.noise.perturb(task.x, sigma, n=self.samples, streams=streams)  # inputs n *dims
                probs = mean_probabilities(task.classifier, noisy, sigma).clamp(*self.clamp)  # inputs classes
                radius = task.noise.soft_radius(probs, sigma, label=task.label)  # inputs
                better = radius > best_radius
                best = torch.where(better, sigma, best)
                best_radius = torch.where(better, radius, best_radius)
                task.worked(self.samples * len(task.x))
        return best
