"""What a training objective is given and must return. A new objective is one small file in this package."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sigmax.models.architectures import told
from sigmax.noise import SmoothingDistribution, add_noise

# Logits of a batch of inputs; a noise-aware network takes the noise level of each as well.
Network = Callable[..., Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Examples, the noise level of each, and the noise itself: an objective draws nothing."""

    x: Tensor  # batch *dims
    labels: Tensor  # (batch,)
    sigma: Tensor  # (batch,)
    eps: Tensor  # batch draws *dims, at sigma = 1
    noise: SmoothingDistribution
    epoch: int  # from 0

    def logits(self, network: Network, x: Tensor | None = None) -> Tensor:
        """The logits of every noisy copy, (batch, draws, classes); of other inputs `x` under the same noise."""
        noisy = add_noise(self.x if x is None else x, self.sigma, self.eps)  # batch draws *dims
        tau = self.sigma.repeat_interleave(noisy.shape[1])
        return told(network, noisy.flatten(0, 1), tau).reshape(*noisy.shape[:2], -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one batch gives."""

    loss: Tensor  # scalar, to be differentiated; the mean over the examples
    logits: Tensor  # batch draws classes: for the noisy accuracy that people watch


class Objective(ABC):
    """Turns (network, batch, sigma of each example) into a loss. Subclasses are frozen dataclasses.

    The fields of the dataclass are its options: `--option NAME=VALUE` sets them from the command line.
    """

    name: ClassVar[str]  # what --method says
    draws: int  # noisy copies of each example

    @property
    def passes(self) -> int:
        """Forward passes per example and visit, a backward pass counting as two: for planning."""
        return 3 * self.draws

    @abstractmethod
    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """The loss of this batch. It is the mean over examples, so that processes can average theirs."""
