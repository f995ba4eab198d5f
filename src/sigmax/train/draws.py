"""The random numbers of a training step. Those of an example do not depend on how many processes share the batch."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from sigmax.noise import SmoothingDistribution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws for a whole batch from one stream, of which this process takes its share."""

    stream: torch.Generator
    batch: int
    share: slice

    def noise(self, noise: SmoothingDistribution, x: Tensor, draws: int) -> Tensor:
        """Noise at sigma = 1 for the inputs x, (share, *dims): (share, draws, *dims)."""
        eps = x.new_empty((self.batch, draws, *x.shape[1:]))
        return noise.fill(eps, generator=self.stream)[self.share]

    def uniform(self) -> Tensor:
        """A number in [0, 1) for each example, (share,)."""
        return torch.rand(self.batch, generator=self.stream, device=self.stream.device)[self.share]
