"""Successive halving over a few sigmas: the search that needs answers only, no gradients."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.sampling import Stage, count_classes
from sigmax.sigma.curve import ExpectedRadii, fit_probits
from sigmax.sigma.search import SearchTask, SigmaSearch, check_positive, keep_better, limits_of

# Places on the curve from one candidate to the next.
_FINER = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingSearch(SigmaSearch):
    """Tries sigmas on a logarithmic grid, and spends each round's samples on the better half of them.

    The class is the prediction under sigma0. A sigma is judged by J, the radius to expect of the certification
    to come, after a smooth curve through the hits at all sigmas so far; sigma* is the best of the curve, also
    between the candidates. All sigmas of an input see the same noise, so that luck favours none of them. At the
    end a pilot on noise of its own must find sigma* better than sigma0, which is kept otherwise.

    Args:
        initial: sigma0, usually the noise level that the network was trained with.
        candidates: Sigmas on the grid, from the lower bound to the upper.
        samples: Samples of each in the first round; each round has twice as many of half as many.
        rounds: Rounds.
        bounds: Of sigma; by default [sigma0 / 4, 2 sigma0].
        pilot: Samples with which sigma* must beat sigma0; 0: always take sigma*.
    """

    revision: ClassVar[int] = 2  # 1 judged each sigma by its own hits
    initial: float
    candidates: int = 13
    samples: int = 16
    rounds: int = 3
    bounds: tuple[float, float] | None = None
    pilot: int = 128
    fixes_class: bool = True

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)
        if self.candidates < 2 or self.samples < 1 or self.rounds < 1 or self.pilot < 0:
            raise InvalidInputError(
                "expected candidates >= 2, samples >= 1, rounds >= 1 and pilot >= 0, got "
                f"candidates={self.candidates}, samples={self.samples}, rounds={self.rounds}, pilot={self.pilot}"
            )
        low, high = self.limits
        if not 0.0 < low < high < float("inf"):
            raise InvalidInputError(f"expected bounds 0 < low < high, got [{low}, {high}]")
        if not self.fixes_class:
            raise InvalidInputError("expected fixes_class=True: without a class to keep to there is nothing to judge")

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds in force."""
        return limits_of(self.initial, self.bounds)

    def find(self, task: SearchTask) -> Tensor:
        """Halve until the rounds are over, then let the pilot choose between sigma* and sigma0."""
        sigma = self._winners(task)
        return keep_better(task, sigma, self.initial, samples=self.pilot) if self.pilot else sigma

    def cost(self) -> int:
        """The samples of all rounds, and twice the pilot."""
        return sum(left * samples for left, samples in self._plan()) + 2 * self.pilot

    def _plan(self) -> list[tuple[int, int]]:
        """Each round as (sigmas that are left, samples of each)."""
        return [(max(2, -(-self.candidates >> i)), self.samples << i) for i in range(self.rounds)]

    def _winners(self, task: SearchTask) -> Tensor:
        assert task.label is not None
        fine = torch.from_numpy(np.geomspace(*self.limits, _FINER * (self.candidates - 1) + 1))
        grid = fine[::_FINER]
        radii = ExpectedRadii(task.noise, fine.tolist(), n=task.n, alpha=task.alpha)
        hits, draws = (torch.zeros(len(task.x), self.candidates, dtype=torch.int64) for _ in range(2))
        scores = torch.zeros(len(task.x), len(fine), dtype=torch.float64)
        streams = {
            (i, j): task.stream(index, Stage.SEARCH)
            for i, index in enumerate(task.indices)
            for j in range(self.candidates)
        }
        labels = task.label.cpu()
        for left, samples in self._plan():
            chosen = scores[:, ::_FINER].topk(left, dim=1).indices
            pairs = [(i, j) for i, row in enumerate(chosen.sort(dim=1).values.tolist()) for j in row]
            rows, columns = (torch.tensor(part) for part in zip(*pairs, strict=True))
            counts = count_classes(
                task.classifier,
                task.x[rows.to(task.x.device)],
                grid[columns],
                noise=task.noise,
                n=samples,
                streams=[streams[pair] for pair in pairs],
                batch_size=task.batch_size,
                on_progress=task.on_progress,
            )
            hits[rows, columns] += counts.gather(1, labels[rows, None]).squeeze(1)
            draws[rows, columns] += samples
            curve = fit_probits(hits.numpy(), draws.numpy(), grid.numpy(), fine.numpy())
            scores = torch.from_numpy(radii(*curve))
        return fine[scores.argmax(dim=1)].to(task.x)
