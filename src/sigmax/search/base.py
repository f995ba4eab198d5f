"""What a sigma search is given and must return. A new search is one small class with `find`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from sigmax.bounds import clopper_pearson_lower
from sigmax.errors import InvalidInputError
from sigmax.models.classifier import BaseClassifier
from sigmax.noise import SmoothingDistribution
from sigmax.sampling import Progress, Stage, count_classes

# Gradient searches evaluate the model at this one shape too, so that sigma does not depend on what else
# is searched at the same time. Small, because a single input pays for all the rows.
SEARCH_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask:
    """Find sigma for these inputs: they will be certified with n samples at level alpha."""

    classifier: BaseClassifier
    noise: SmoothingDistribution
    x: Tensor  # inputs *dims
    label: Tensor | None  # (inputs,): the prediction under the initial sigma; None: the class is free
    n: int
    alpha: float
    indices: tuple[int, ...]  # of the inputs in their data set
    stream: Callable[[int, Stage], torch.Generator]  # the random stream of an index, from its beginning
    batch_size: int
    on_progress: Progress | None = None

    def streams(self, stage: Stage) -> list[torch.Generator]:
        """Fresh streams, one per input, each from its beginning."""
        return [self.stream(index, stage) for index in self.indices]

    def split(self, size: int) -> Iterator["SearchTask"]:
        """The same task in parts of at most this many inputs."""
        for start in range(0, len(self.x), size):
            part = slice(start, start + size)
            label = None if self.label is None else self.label[part]
            yield replace(self, x=self.x[part], label=label, indices=self.indices[part])

    def worked(self, forward_passes: int) -> None:
        """Report work done, in forward passes of one sample."""
        if self.on_progress is not None:
            self.on_progress(forward_passes)


class SigmaSearch(ABC):
    """Chooses sigma for each input."""

    is_per_input: ClassVar[bool] = True
    revision: ClassVar[int] = 1  # grows when the same settings find another sigma
    initial: float  # sigma0: where the search starts, and where a fixed class is predicted
    fixes_class: bool  # whether the class is the prediction under sigma0 (paper, Eq. 2)

    def settings(self) -> dict[str, Any]:
        """What it is and how it is set, for the records: a run is continued only with the same."""
        own = asdict(self) if is_dataclass(self) else getattr(self, "__dict__", {})
        said = {"kind": type(self).__name__, "initial": self.initial, "fixes_class": self.fixes_class, **own}
        return said | ({"revision": self.revision} if self.revision > 1 else {})

    @abstractmethod
    def find(self, task: SearchTask) -> Tensor:
        """Return sigma, (inputs,) in the dtype of the inputs."""

    @abstractmethod
    def cost(self) -> int:
        """Forward passes per input, a backward pass counting as two: for progress and planning."""


@final
@dataclass(frozen=True, slots=True)
class FixedSigma(SigmaSearch):
    """The same sigma for every input, as in Cohen et al. 2019."""

    is_per_input: ClassVar[bool] = False
    initial: float
    fixes_class: bool = False  # the class is selected under the only sigma there is

    def __post_init__(self) -> None:
        check_positive("sigma", self.initial)

    def find(self, task: SearchTask) -> Tensor:
        """Return sigma0 for all."""
        return initial_sigma(task, self.initial)

    def cost(self) -> int:
        """Nothing to search."""
        return 0


def limits_of(initial: float, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The bounds in force, which sigma0 must be inside."""
    low, high = bounds or (initial / 4, 2 * initial)
    if not low <= initial <= high:
        raise InvalidInputError(f"expected sigma0 inside its bounds, got {initial} and [{low}, {high}]")
    return low, high


def initial_sigma(task: SearchTask, initial: float) -> Tensor:
    """sigma0 for each input of the task."""
    return torch.full((len(task.x),), initial, dtype=task.x.dtype, device=task.x.device)


def mean_probabilities(classifier: BaseClassifier, noisy: Tensor) -> Tensor:
    """Mean over the draws of f(noisy), (inputs, draws, *dims) -> (inputs, classes); differentiable."""
    inputs, draws = noisy.shape[:2]
    rows = noisy.flatten(0, 1)
    missing = -len(rows) % SEARCH_ROWS
    padded = torch.cat([rows, rows[-1:].detach().expand(missing, *rows.shape[1:])])
    probs = torch.cat([classifier.probabilities(part) for part in torch.split(padded, SEARCH_ROWS)])
    return probs[: len(rows)].reshape(inputs, draws, -1).mean(dim=1)


def projected_radius(task: SearchTask, sigma: Tensor, *, samples: int) -> Tensor:
    r"""The radius that certification would give, judged by a pilot: $J(\sigma)$ in float64.

    $J(\sigma) = R_\sigma(\mathrm{CP}(\tilde p N, N, \alpha))$ with $\tilde p = (k + 1/2)/(m + 1)$, where k of m
    pilot samples answer the task's label, CP is the Clopper-Pearson lower bound, and N and alpha are
    those of the certification; 0 where it would abstain. The pilot's noise is its own stream, and the
    same for every sigma asked about: one for each input, (inputs,), or several at once, (choices, inputs).
    """
    if task.label is None:
        raise InvalidInputError("expected a fixed class for a pilot, got none; set fixes_class=True")
    choices = sigma.shape[:-1].numel()
    counts = count_classes(
        task.classifier,
        task.x.repeat(choices, *[1] * (task.x.ndim - 1)),
        sigma.flatten(),
        noise=task.noise,
        n=samples,
        streams=[stream for _ in range(choices) for stream in task.streams(Stage.PILOT)],
        batch_size=task.batch_size,
        on_progress=task.on_progress,
    )
    hits = counts.gather(1, task.label.cpu().repeat(choices)[:, None]).squeeze(1).tolist()
    radii = [project(task, k, samples, level) for k, level in zip(hits, sigma.flatten().tolist(), strict=True)]
    return torch.tensor(radii, dtype=torch.float64).reshape(sigma.shape)


def project(task: SearchTask, k: float, samples: int, sigma: float) -> float:
    """J of one input: the radius that certification would give if it hit as often as k of these samples did."""
    p_lower = clopper_pearson_lower((k + 0.5) / (samples + 1) * task.n, task.n, alpha=task.alpha)
    return task.noise.radius(p_lower, sigma=sigma) if p_lower > 0.5 else 0.0


def keep_better(task: SearchTask, sigma: Tensor, initial: float, *, samples: int) -> Tensor:
    """For each input sigma where a pilot of this many samples projects a larger radius than at sigma0, else sigma0."""
    start = initial_sigma(task, initial)
    own, kept = projected_radius(task, torch.stack([sigma, start]), samples=samples)
    return torch.where((own > kept).to(sigma.device), sigma, start)


def check_positive(name: str, value: float) -> None:
    """Refuse a value that is not a finite positive number."""
    if not 0.0 < value < float("inf"):
        raise InvalidInputError(f"expected {name} > 0, got {name}={value}")
