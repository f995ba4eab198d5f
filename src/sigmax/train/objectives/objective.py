"""What a training objective is given and must return. A new objective is one small file in this package."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.named import Named
from sigmax.noise import SmoothingDistribution
from sigmax.train.evaluation import Network, noisy_logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Examples, the sigma of each, and all random numbers: an objective draws none of its own."""

    x: Tensor  # batch *dims
    labels: Tensor  # (batch,)
    sigma: Tensor  # (batch,)
    eps: Tensor  # batch draws *dims, at sigma = 1
    uniform: Tensor  # (batch,): a random number in (0, 1) for each
    noise: SmoothingDistribution
    epoch: int  # from 0

    def logits(self, network: Network, x: Tensor | None = None) -> Tensor:
        """The logits of every noisy copy, (batch, draws, classes); of other inputs `x` under the same noise."""
        noisy = self.noise.add(self.x if x is None else x, self.sigma, self.eps)  # batch draws *dims
        return noisy_logits(network, noisy, self.sigma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an objective makes of a batch."""

    loss: Tensor  # scalar, the mean over the examples; it is differentiated
    logits: Tensor  # batch draws classes: for the noisy accuracy that people watch


class Objective(Named, ABC):
    """Turns a network and a batch into a loss. Subclasses are frozen dataclasses.

    The fields of the dataclass are its options: `--option NAME=VALUE` sets them on the command line. Numbers are
    at least 0.
    """

    draws: int  # noisy copies of each example

    def __post_init__(self) -> None:
        for name, value in self.settings().items():
            least = 1 if name == "draws" else 0
            if isinstance(value, int | float) and not least <= value < float("inf"):
                raise InvalidInputError(f"expected {name} >= {least}, got {name}={value}")

    @property
    def passes(self) -> int:
        """Forward passes per example and visit, a backward pass counting as two: for planning."""
        return 3 * self.draws

    @abstractmethod
    def __call__(self, network: Network, batch: Batch) -> Outcome:
        """The loss of this batch. It is the mean over examples, so that processes can average theirs."""
