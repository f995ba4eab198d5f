"""The random numbers of a training step. Those of an example do not depend on how many processes share the batch."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from sigmax.noise import SmoothingDistribution
from sigmax.streams import Stage, Stream, random_stream


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws for a whole batch, of which this process takes its share.

    Args:
        stream: Of noise.
        levels: Of one number per example.
        batch: The examples of all processes.
        share: Those of this process.
    """

    stream: Stream
    levels: Stream
    batch: int
    share: slice

    @classmethod
    def at(cls, seed: int, step: int, *, batch: int, share: slice, device: torch.device) -> Self:
        """Those of a training step."""
        stream, levels = (random_stream(seed, step, stage, device) for stage in (Stage.TRAINING, Stage.LEVELS))
        return cls(stream=stream, levels=levels, batch=batch, share=share)

    def noise(self, noise: SmoothingDistribution, x: Tensor, draws: int) -> Tensor:
        """Noise at sigma = 1 for the inputs x, (share, *dims): (share, draws, *dims)."""
        self.stream.skip(self.share.start * draws)
        eps = noise.draw(self.stream, len(x) * draws, x.shape[1:], dtype=x.dtype)
        self.stream.skip((self.batch - self.share.stop) * draws)
        return eps.view(len(x), draws, *x.shape[1:])

    def uniform(self) -> Tensor:
        """A number in (0, 1) for each example, (share,)."""
        return self.levels.uniform(self.batch, (), dtype=torch.float32)[self.share]
