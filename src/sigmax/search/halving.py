"""Successive halving over a few sigmas: a search that needs no gradients."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.search.base import BoundedSearch, Choice, SearchTask, check_positive, keep_better, resolved_bounds
from sigmax.search.curve import ExpectedRadii, fit_probits
from sigmax.streams import Stage

# Points of the fine grid per candidate.
_FINER = 4


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingSearch(BoundedSearch):
    """Tries sigmas on a logarithmic grid, and spends the samples of each round on the better half of them.

    The class is the prediction under sigma0. A smooth curve through the hits at all sigmas gives J, the expected radius
    of the certification, at every sigma. sigma* is where J is largest, also between the candidates. All sigmas of an
    input see the same noise, so that luck favours none of them. At the end, sigma0 is kept unless a pilot on fresh
    noise finds sigma* better.

    Args:
        initial: sigma0, usually the noise level that the network was trained with.
        candidates: Sigmas on the grid, from the lower to the upper bound.
        samples: Samples per sigma in the first round. Each later round has half the sigmas with twice the samples.
        rounds: Number of rounds.
        bounds: Bounds of sigma; by default [sigma0 / 4, 2 sigma0].
        pilot: Samples in which sigma* must beat sigma0; 0: always take sigma*.
    """

    name = "halving"
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
        low, high = bounds = resolved_bounds(self.initial, self.bounds)
        object.__setattr__(self, "bounds", bounds)
        if not 0.0 < low < high < math.inf:
            raise InvalidInputError(f"expected bounds 0 < low < high, got [{low}, {high}]")
        if not self.fixes_class:
            raise InvalidInputError("expected fixes_class=True, got False; halving counts the hits of one class")

    def label(self) -> str:
        """The name, and the bounds unless they are the default ones."""
        return self._within("halving")

    def find(self, task: SearchTask) -> Choice:
        """Halve in all rounds; then let the pilot choose between sigma* and sigma0."""
        return Choice(sigma=keep_better(task, self._winners(task), self.initial, samples=self.pilot))

    def cost(self) -> int:
        """The samples of all rounds, and two pilots."""
        return sum(left * samples for left, samples in self._plan()) + 2 * self.pilot

    def _plan(self) -> list[tuple[int, int]]:
        """Each round as (sigmas left, samples per sigma)."""
        return [(max(2, -(-self.candidates >> i)), self.samples << i) for i in range(self.rounds)]

    def _winners(self, task: SearchTask) -> Tensor:
        fine = torch.from_numpy(np.geomspace(*self.limits, _FINER * (self.candidates - 1) + 1))
        grid = fine[::_FINER]
        radii = ExpectedRadii(task.noise, fine.tolist(), n=task.n, alpha=task.alpha)
        hits, draws = (torch.zeros(len(task.x), self.candidates, dtype=torch.int64) for _ in range(2))
        scores = torch.zeros(len(task.x), len(fine), dtype=torch.float64)
        streams = [[task.stream(index, Stage.SEARCH) for _ in range(self.candidates)] for index in task.indices]
        for left, samples in self._plan():
            chosen = scores[:, ::_FINER].topk(left, dim=1).indices
            pairs = [(i, j) for i, row in enumerate(chosen.sort(dim=1).values.tolist()) for j in row]
            rows, columns = (torch.tensor(part) for part in zip(*pairs, strict=True))
            used = [streams[i][j] for i, j in pairs]
            hits[rows, columns] += task.hits(rows, grid[columns], n=samples, streams=used)
            draws[rows, columns] += samples
            curve = fit_probits(hits.numpy(), draws.numpy(), grid.numpy(), fine.numpy())
            scores = torch.from_numpy(radii(*curve))
        return fine[scores.argmax(dim=1)].to(task.x)
