"""The interface of searches. A new search is one small class with `find` and `cost`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from sigmax.bounds import clopper_pearson_lower
from sigmax.errors import InvalidInputError
from sigmax.experts import Expert
from sigmax.models.classifier import BaseClassifier
from sigmax.named import Named, name_of
from sigmax.noise import SmoothingDistribution
from sigmax.sampling import Progress, count_by_expert
from sigmax.streams import Stage, Stream

# Rows of every forward pass of `mean_probabilities`. One shape, so that sigma does not depend on the inputs searched
# at the same time; small, because a single input pays for all rows.
SEARCH_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """Inputs whose noise and network are to be found. They will then be certified with n samples at level alpha."""

    experts: tuple[Expert, ...]  # the networks to choose from; most tasks have one
    noise: SmoothingDistribution
    x: Tensor  # inputs *dims
    label: Tensor | None  # (inputs,): the prediction under sigma0; None: the class is free
    n: int
    alpha: float
    indices: tuple[int, ...]  # of the inputs in their data set
    stream: Callable[[int, Stage], Stream]  # the random stream of an index, from its start
    batch_size: int
    leader: Tensor | None = None  # (inputs,): the expert whose prediction the label is; None: the first
    levels: int | None = None  # inputs are multiples of 1 / levels, and `hits` draws exact noise
    on_progress: Progress | None = None

    @property
    def classifier(self) -> BaseClassifier:
        """The first network, for searches that know only one."""
        return self.experts[0].classifier

    def streams(self, stage: Stage) -> list[Stream]:
        """One random stream per input, each from its start."""
        return [self.stream(index, stage) for index in self.indices]

    def constant(self, sigma: float) -> Tensor:
        """This sigma for every input, (inputs,)."""
        return self.x.new_full((len(self.x),), sigma)

    def start(self) -> "Choice":
        """Where a search begins: each input's leader under its sigma0."""
        start = Choice(sigma=self.constant(self.experts[0].sigma), expert=self.leader)
        sigmas = self.x.new_tensor([expert.sigma for expert in self.experts])
        return replace(start, sigma=sigmas[start.network.to(sigmas.device)])

    def counts(
        self,
        places: Tensor,
        sigma: Tensor,
        *,
        tau: Tensor | None = None,
        expert: Tensor | None = None,
        n: int,
        streams: Sequence[Stream],
    ) -> Tensor:
        """How often each class leads among n samples at sigma, for the inputs at these places, (places, classes).

        `tau` and `expert`, (places,), are as in `Choice`.
        """
        return count_by_expert(
            [each.classifier for each in self.experts],
            self.x[places.to(self.x.device)],
            sigma,
            tau=tau,
            expert=expert,
            noise=self.noise,
            levels=self.levels,
            n=n,
            streams=streams,
            batch_size=self.batch_size,
            on_progress=self.on_progress,
        )

    def hits(
        self,
        places: Tensor,
        sigma: Tensor,
        *,
        tau: Tensor | None = None,
        expert: Tensor | None = None,
        n: int,
        streams: Sequence[Stream],
    ) -> Tensor:
        """How many of n samples at sigma have the task's label, (places,); see `counts`."""
        if self.label is None:
            raise InvalidInputError("expected a fixed class whose samples are counted, got none; set fixes_class=True")
        counts = self.counts(places, sigma, tau=tau, expert=expert, n=n, streams=streams)
        return counts.gather(1, self.label.cpu()[places, None]).squeeze(1)

    def checked(self, choice: "Choice") -> "Choice":
        """What a search found, in the dtype of the inputs; refuses what cannot be."""
        if not isinstance(choice, Choice) or choice.sigma.shape != (len(self.x),):
            got = tuple(choice.sigma.shape) if isinstance(choice, Choice) else type(choice).__name__
            raise InvalidInputError(
                f"expected the search to return a Choice with one sigma per input, got {got} for {len(self.x)} inputs"
            )
        sigma = choice.sigma.to(self.x)  # as noise is scaled: a certificate must not speak of another sigma
        for index, level in zip(self.indices, sigma.tolist(), strict=True):
            if not 0.0 < level < float("inf"):
                raise InvalidInputError(
                    f"expected sigma > 0 for every input, got sigma[{index}]={level}; "
                    "lower the step size, set bounds, or use --search ascent"
                )
        experts = choice.network.tolist()
        if not all(0 <= place < len(self.experts) for place in experts):
            raise InvalidInputError(f"expected experts from 0 to {len(self.experts) - 1} in the Choice, got {experts}")
        return replace(choice, sigma=sigma, tau=choice.told.to(self.x))

    def split(self, size: int) -> Iterator["SearchTask"]:
        """The task in parts of at most this many inputs."""
        for start in range(0, len(self.x), size):
            part = slice(start, start + size)
            label, leader = (None if values is None else values[part] for values in (self.label, self.leader))
            yield replace(self, x=self.x[part], label=label, leader=leader, indices=self.indices[part])

    def worked(self, forward_passes: int) -> None:
        """Report work done, in forward passes of one sample."""
        if self.on_progress is not None:
            self.on_progress(forward_passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The result of a search, for each input."""

    sigma: Tensor  # (inputs,): the noise level, in the dtype of the inputs
    tau: Tensor | None = None  # (inputs,): the level that a noise-aware network is told; None: sigma
    expert: Tensor | None = None  # (inputs,) on the CPU: which of several networks; None: the first

    @property
    def told(self) -> Tensor:
        """The level that each input's network is told, if it takes one, (inputs,)."""
        return self.sigma if self.tau is None else self.tau

    @property
    def network(self) -> Tensor:
        """The place of each input's network among the experts, (inputs,)."""
        return torch.zeros(len(self.sigma), dtype=torch.int64) if self.expert is None else self.expert

    @classmethod
    def joined(cls, choices: Sequence["Choice"]) -> "Choice":
        """The choices for several groups of inputs as one."""
        sigma, tau, expert = (
            torch.cat([getattr(each, name) for each in choices]) for name in ("sigma", "told", "network")
        )
        return cls(sigma=sigma, tau=tau, expert=expert)

    def __getitem__(self, part: slice | Tensor) -> "Choice":
        """The choice for some of the inputs."""
        tau, expert = (None if values is None else values[part] for values in (self.tau, self.expert))
        return Choice(sigma=self.sigma[part], tau=tau, expert=expert)


class SigmaSearch(Named, ABC):
    """Chooses sigma for each input."""

    is_per_input: ClassVar[bool] = True
    takes_experts: ClassVar[bool] = False  # whether it can choose among several networks
    initial: float  # sigma0: the search starts here, and a fixed class is predicted here
    fixes_class: bool  # whether the class is the prediction under sigma0 (paper, Eq. 2)

    @property
    def upper(self) -> float | None:
        """The largest sigma that it may choose; None: unbounded."""
        return None

    def label(self) -> str:
        """A phrase for tables and legends. It shows the settings other than sigma0 and K."""
        return name_of(type(self))

    @abstractmethod
    def find(self, task: SearchTask) -> Choice:
        """Choose the noise of each input."""

    @abstractmethod
    def cost(self) -> int:
        """Forward passes per input, for progress and planning; a backward pass counts as two."""

    def cost_of(self, experts: Sequence[Expert]) -> int:  # noqa: ARG002
        """The same for these networks, where it depends on them."""
        return self.cost()


@final
@dataclass(frozen=True, slots=True)
class FixedSigma(SigmaSearch):
    """The same sigma for every input, as in Cohen et al. 2019."""

    name = "fixed"
    is_per_input: ClassVar[bool] = False
    takes_experts: ClassVar[bool] = True  # the first answers for all inputs, such as outside a frozen memory
    initial: float
    fixes_class: bool = False  # the class is selected under the only sigma there is

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)

    def find(self, task: SearchTask) -> Choice:
        """Choose sigma0 for all."""
        return Choice(sigma=task.constant(self.initial))

    def cost(self) -> int:
        """Nothing to search."""
        return 0


class BoundedSearch(SigmaSearch):
    """A search inside bounds, which are resolved when it is made."""

    bounds: tuple[float, float] | None

    @property
    def limits(self) -> tuple[float, float]:
        """The resolved bounds."""
        assert self.bounds is not None
        return self.bounds

    @property
    def upper(self) -> float | None:
        """The upper bound, if it is finite."""
        return self.limits[1] if self.limits[1] < math.inf else None

    def _within(self, label: str) -> str:
        """The label with the bounds, unless they are the default ones."""
        if self.limits == resolved_bounds(self.initial, None):
            return label
        low, high = (bound / self.initial for bound in self.limits)
        return f"{label} within {low:g} to {high:g} sigma0"


def resolved_bounds(initial: float, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The bounds of sigma, by default [sigma0 / 4, 2 sigma0]; sigma0 must be inside."""
    low, high = bounds or (initial / 4, 2 * initial)
    if -float("inf") < low <= 0:
        raise InvalidInputError(f"expected bounds above 0, got [{low}, {high}]")
    if not low <= initial <= high:
        raise InvalidInputError(f"expected sigma0 inside its bounds, got sigma0={initial} and [{low}, {high}]")
    return low, high


def mean_probabilities(classifier: BaseClassifier, noisy: Tensor, sigma: Tensor) -> Tensor:
    """Mean of f(noisy, sigma) over the draws, (inputs, draws, *dims) -> (inputs, classes); differentiable."""
    inputs, draws = noisy.shape[:2]
    rows, told = noisy.flatten(0, 1), sigma.repeat_interleave(draws)
    missing = -len(rows) % SEARCH_ROWS
    padded = torch.cat([rows, rows[-1:].detach().expand(missing, *rows.shape[1:])])
    told = torch.cat([told, told[-1:].detach().expand(missing)])
    parts = zip(torch.split(padded, SEARCH_ROWS), torch.split(told, SEARCH_ROWS), strict=True)
    probs = torch.cat([classifier.probabilities(part, tau) for part, tau in parts])
    return probs[: len(rows)].reshape(inputs, draws, -1).mean(dim=1)


def projected_radius(
    task: SearchTask, sigma: Tensor, *, tau: Tensor | None = None, expert: Tensor | None = None, samples: int
) -> Tensor:
    r"""The radius $J(\sigma)$ that certification would give, estimated by a pilot, in float64.

    The pilot has its own random stream, and every choice sees the same noise. `sigma`, and with it `tau` and `expert`,
    have one value per input, (inputs,), or several, (choices, inputs).
    """
    choices = sigma.shape[:-1].numel()
    places = torch.arange(len(task.x)).repeat(choices)
    streams = [stream for _ in range(choices) for stream in task.streams(Stage.PILOT)]
    told, network = (None if values is None else values.flatten() for values in (tau, expert))
    hits = task.hits(places, sigma.flatten(), tau=told, expert=network, n=samples, streams=streams)
    expected = partial(expected_radius, samples=samples, n=task.n, alpha=task.alpha, noise=task.noise)
    radii = [expected(k, sigma=level) for k, level in zip(hits.tolist(), sigma.flatten().tolist(), strict=True)]
    return torch.tensor(radii, dtype=torch.float64).reshape(sigma.shape)


def expected_radius(
    hits: int, *, samples: int, n: int, alpha: float, noise: SmoothingDistribution, sigma: float
) -> float:
    r"""The expected radius $J$ of a certification, if some samples have its class; 0 if it would abstain.

    $J(\sigma) = R_\sigma(\mathrm{CP}(\tilde p N, N, \alpha))$ with $\tilde p = (k + 1/2)/(m + 1)$. Here k of the m
    samples have the class, CP is the Clopper-Pearson lower bound, and N and alpha are those of the certification.
    """
    p_lower = clopper_pearson_lower((hits + 0.5) / (samples + 1) * n, n, alpha=alpha)
    return noise.radius(p_lower, sigma=sigma) if p_lower > 0.5 else 0.0


def keep_better(task: SearchTask, found: Choice, *, samples: int) -> Choice:
    """Go back to the start unless a pilot projects a larger radius for the choice; without samples, keep the choice."""
    if not samples:
        return found
    both = (found, task.start())
    sigma, tau = torch.stack([each.sigma for each in both]), torch.stack([each.told for each in both])
    expert = torch.stack([each.network for each in both])
    own, kept = projected_radius(task, sigma, tau=tau, expert=expert, samples=samples)
    is_better = own > kept
    there = is_better.to(sigma.device)
    return Choice(
        sigma=torch.where(there, sigma[0], sigma[1]),
        tau=torch.where(there, tau[0], tau[1]),
        expert=torch.where(is_better, expert[0], expert[1]),
    )


def with_draws(label: str, draws: int) -> str:
    """The label with the number of noise draws per sigma, n in the paper's Algorithm 1, if there are several."""
    return f"{label}, {draws} draws" if draws > 1 else label


def check_positive(name: str, value: float) -> None:
    """Refuse a value that is not a finite positive number."""
    if not 0.0 < value < math.inf:
        raise InvalidInputError(f"expected {name} > 0, got {name}={value}")
