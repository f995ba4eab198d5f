"""Successive halving over a few sigmas, told levels and networks: a search that needs no gradients."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch

from sigmax.errors import InvalidInputError
from sigmax.experts import Expert
from sigmax.search.base import BoundedSearch, Choice, SearchTask, check_positive, keep_better, resolved_bounds
from sigmax.search.candidates import Candidates
from sigmax.search.curve import ExpectedRadii, fit_probits
from sigmax.streams import Stage

# Samples of all rounds together, for families of networks: below 5 % of n = 100,000 with the pilots and the selection.
_MOST = 4_096
# What noise-aware networks are told, as multiples of sigma. On 30 split-off CIFAR-10 images this gave 17 % more radius
# expected than tau = sigma, and 3 % more than 1, 1.41 and 2 alone.
_TAUS = (0.7, 1.0, 1.41, 2.0, 2.8)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HalvingSearch(BoundedSearch):
    """Tries sigmas on a logarithmic grid, and spends the samples of each round on the better half of them.

    The class is the prediction under sigma0. A smooth curve, fitted to the hits at all sigmas, gives J: the expected
    radius of the certification at every sigma. sigma* is where J is largest, also between the candidates. All sigmas of
    an input see the same noise, so that luck favours none of them. At the end, sigma0 is kept unless a pilot on fresh
    noise finds sigma* better.

    A noise-aware network is tried with several told levels at each sigma. Several networks are tried together, each
    with a grid inside its own bounds. There are then fewer samples per candidate, about 4,000 in all.

    Args:
        initial: sigma0, usually the noise level that the network was trained with.
        candidates: Sigmas on the grid, from the lower to the upper bound.
        samples: Samples per sigma in the first round. Each later round has half the sigmas with twice the samples.
        rounds: Number of rounds.
        bounds: Bounds of sigma; by default [sigma0 / 4, 2 sigma0].
        pilot: Fresh samples at sigma* and at sigma0; sigma* must be better there. 0: always take sigma*.
        taus: The told levels to try for a noise-aware network, as multiples of sigma; levels outside the bounds are
            left out. None: 0.7, 1, 1.41, 2 and 2.8.
    """

    name = "halving"
    takes_experts: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # 1 judged each sigma by its own hits
    initial: float
    candidates: int = 13
    samples: int = 16
    rounds: int = 3
    bounds: tuple[float, float] | None = None
    pilot: int = 128
    fixes_class: bool = True
    taus: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)
        if self.taus is not None and not 0 < len(self.taus) == len(set(self.taus)):
            raise InvalidInputError(f"expected one or more different taus, got taus={self.taus}")
        for ratio in self.taus or ():
            check_positive("taus", ratio)
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
        """Halve in all rounds; then let the pilot choose between the winner and the start."""
        return keep_better(task, self._winners(task), samples=self.pilot)

    def cost(self) -> int:
        """The samples of all rounds, and two pilots."""
        return self._cost(self.candidates)

    def cost_of(self, experts: Sequence[Expert]) -> int:
        """The same for all candidates of these networks."""
        return self._cost(sum(len(each.grid) for each in self._of(experts)))

    def _cost(self, candidates: int) -> int:
        return sum(left * samples for left, samples in self._plan(candidates)) + 2 * self.pilot

    def _plan(self, candidates: int) -> list[tuple[int, int]]:
        """Each round as (candidates left, samples per candidate)."""
        samples = self.samples
        if candidates > self.candidates:
            samples = min(samples, max(1, _MOST // (candidates * self.rounds)))
        return [(max(2, -(-candidates >> i)), samples << i) for i in range(self.rounds)]

    def _of(self, experts: Sequence[Expert]) -> list[Candidates]:
        return [Candidates(expert, sigmas=self.candidates, taus=self.taus or _TAUS) for expert in experts]

    def _winners(self, task: SearchTask) -> Choice:
        families = self._of(task.experts)
        radii = [ExpectedRadii(task.noise, each.fine[:, 0].tolist(), n=task.n, alpha=task.alpha) for each in families]
        sizes = [len(each.grid) for each in families]
        grid = torch.from_numpy(np.concatenate([each.grid for each in families]))  # candidates 2
        owner = torch.repeat_interleave(torch.tensor(sizes))  # the expert of each candidate
        hits, draws = (torch.zeros(len(task.x), len(grid), dtype=torch.int64) for _ in range(2))
        scores = [torch.zeros(len(task.x), len(each.fine), dtype=torch.float64) for each in families]
        streams = [[task.stream(index, Stage.SEARCH) for _ in grid] for index in task.indices]
        for left, samples in self._plan(len(grid)):
            known = torch.cat([part[:, each.places] for part, each in zip(scores, families, strict=True)], dim=1)
            chosen = known.topk(left, dim=1).indices
            pairs = [(i, j) for i, row in enumerate(chosen.sort(dim=1).values.tolist()) for j in row]
            rows, columns = (torch.tensor(part) for part in zip(*pairs, strict=True))
            used = [streams[i][j] for i, j in pairs]
            sigma, tau = grid[columns].unbind(1)
            hits[rows, columns] += task.hits(rows, sigma, tau=tau, expert=owner[columns], n=samples, streams=used)
            draws[rows, columns] += samples
            parts = (torch.split(values, sizes, dim=1) for values in (hits, draws))
            scores = [
                torch.from_numpy(radius(*fit_probits(k.numpy(), m.numpy(), each.grid, each.fine)))
                for k, m, each, radius in zip(*parts, families, radii, strict=True)
            ]
        fine = torch.from_numpy(np.concatenate([each.fine for each in families]))
        expert = torch.repeat_interleave(torch.tensor([len(each.fine) for each in families]))
        best = torch.cat(scores, dim=1).argmax(dim=1)
        sigma, tau = fine[best].to(task.x).unbind(1)
        return Choice(sigma=sigma, tau=tau, expert=expert[best])
