"""Where the sigma of each training example comes from: one sigma for all, the table of Algorithm 2, or a range."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.named import Named
from sigmax.noise import SmoothingDistribution
from sigmax.search import AscentSearch
from sigmax.search.ascent import PAPER_STEP
from sigmax.train.draws import Draws
from sigmax.train.evaluation import Network, evaluating, noisy_logits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A training step's visit to its examples."""

    network: Network
    noise: SmoothingDistribution
    x: Tensor  # share *dims
    sigma: Tensor  # (share,): from the last visit to each example; at first the recipe's sigma
    initial: float  # the recipe's sigma
    epoch: int  # from 0
    draws: Draws


class SigmaSource(Named, ABC):
    """Chooses the sigma of training examples at each visit."""

    is_per_input: ClassVar[bool] = True
    suffix: ClassVar[str] = ""  # what it adds to the name of a method, such as -ds2
    warmup: int = 0  # epochs with the recipe's sigma for all before it begins
    bounds: tuple[float, float] | None = None  # the sigmas that were asked for; None: near that of the recipe

    @property
    def passes(self) -> int:
        """Forward passes per example and visit, a backward pass counting as two: for planning."""
        return 0

    def check(self, sigma: float) -> None:
        """Refuse settings that do not fit the sigma of a recipe."""
        low, high = self.bounds or (sigma, sigma)
        if not 0 < low <= sigma <= high < float("inf"):
            raise InvalidInputError(f"expected 0 < low <= sigma <= high, got sigma={sigma} and the range {low}, {high}")

    @abstractmethod
    def choose(self, visit: Visit) -> Tensor:
        """Sigma of the visited examples, (share,)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSigma(SigmaSource):
    """One sigma for all examples."""

    name = "constant"
    is_per_input: ClassVar[bool] = False

    def choose(self, visit: Visit) -> Tensor:
        """The sigma of the recipe."""
        return visit.sigma


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaTable(SigmaSource):
    """Per-example sigma. Each visit to an example ascends from where the last one ended (Algorithm 2)."""

    name = "table"
    suffix = "-ds2"
    warmup: int = 0  # epochs with one sigma for all before the search begins
    search_steps: int = 1  # K, ascent steps per visit
    search_samples: int = 1  # noise draws per ascent step
    step_size: float = PAPER_STEP  # of the ascent
    bounds: tuple[float, float] | None = None  # sigma stays inside; by default [sigma / 4, 2 sigma]

    def search(self, initial: float) -> AscentSearch:
        """Algorithm 1 from this sigma, inside the bounds."""
        return AscentSearch(
            initial=initial,
            steps=self.search_steps,
            samples=self.search_samples,
            step_size=self.step_size,
            bounds=self.bounds,
            fixes_class=False,
            pilot=0,
        )

    @property
    def passes(self) -> int:
        """Each ascent step is a forward and a backward pass for each draw."""
        return 3 * self.search_steps * self.search_samples

    def check(self, sigma: float) -> None:
        """Refuse what Algorithm 1 refuses."""
        SigmaSource.check(self, sigma)  # super() does not find its class in a dataclass with slots
        self.search(sigma)

    def choose(self, visit: Visit) -> Tensor:
        """K ascent steps on the radius of the network as it is now.

        The network is in evaluation mode: neither its batch-norm statistics nor its gradients change.
        """
        if visit.epoch < self.warmup:
            return visit.sigma
        noise = visit.noise
        with evaluating(visit.network) as fixed:
            return self.search(visit.initial).ascend(
                lambda noisy, sigma: noisy_logits(fixed, noisy, sigma).softmax(dim=-1).mean(dim=1),
                visit.x,
                visit.sigma,
                perturb=lambda x, sigma: noise.add(x, sigma, visit.draws.noise(noise, x, self.search_samples)),
                noise=noise,
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaRange(SigmaSource):
    """Every visit to an example draws its sigma from a range, uniformly in log sigma."""

    name = "range"
    bounds: tuple[float, float]  # the smallest and the largest sigma

    def choose(self, visit: Visit) -> Tensor:
        """A fresh draw for each example."""
        low, high = self.bounds
        return (low * (high / low) ** visit.draws.uniform()).to(visit.x)
