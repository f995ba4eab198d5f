"""The noise level of each training example: one constant, or the table of Algorithm 2."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.models.architectures import takes_level
from sigmax.noise import SmoothingDistribution
from sigmax.sigma import AscentSearch
from sigmax.train.evaluation import evaluating
from sigmax.train.objectives import Network


@final
class SigmaTable:
    """Sigma of every example across epochs, each visit starting where the last one ended (Algorithm 2).

    Args:
        initial: sigma0, where all begin.
        examples: How many training examples there are.
        search: Algorithm 1 with its K, its draws and its step size; None: sigma0 stays.
        warmup: Epochs with sigma0 for all before the search begins.
    """

    def __init__(self, initial: float, *, examples: int, search: AscentSearch | None = None, warmup: int = 0) -> None:
        self.values = torch.full((examples,), initial)
        self.search = search
        self.warmup = warmup

    def choose(
        self,
        network: Network,
        x: Tensor,
        indices: Tensor,
        *,
        epoch: int,
        perturb: Callable[[Tensor, Tensor], Tensor],
        noise: SmoothingDistribution,
    ) -> Tensor:
        """Sigma for these examples, (batch,): K ascent steps on the radius from what the table has.

        The network is taken as it is now and in evaluation mode; its batch-norm statistics and gradients
        stay untouched. Nothing is kept yet: where several processes share a batch, `keep` gets all shares.
        """
        sigma = self.values[indices].to(x)
        if self.search is None or epoch < self.warmup:
            return sigma
        if takes_level(network):
            raise InvalidInputError("expected a plain network for a table of sigma, got one that is told a level")
        with evaluating(network) as fixed:

            def probabilities(noisy: Tensor) -> Tensor:
                probs = fixed(noisy.flatten(0, 1)).softmax(dim=-1)
                return probs.reshape(*noisy.shape[:2], -1).mean(dim=1)

            return self.search.ascend(probabilities, x, sigma, perturb=perturb, noise=noise)

    def keep(self, indices: Tensor, sigma: Tensor) -> None:
        """Remember what was chosen, for the next visit to start from."""
        self.values[indices] = sigma.to(self.values)
