"""Inputs on their way to certificates: what is asked of them, what was decided, and what was seen so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.estimation import Counts, Estimate
from sigmax.sampling import Progress
from sigmax.search import Choice
from sigmax.streams import Stream


@dataclass(frozen=True, slots=True)
class Job:
    """Inputs to answer, with all that decides their noise."""

    x: Tensor  # inputs *dims
    indices: tuple[int, ...]
    budget: Budget
    on_progress: Progress | None
    truth: tuple[int, ...] | None = None  # where it is known

    def parts(self, size: int) -> Iterator[slice]:
        """Consecutive parts of at most this many inputs."""
        return (slice(start, min(start + size, len(self.x))) for start in range(0, len(self.x), size))

    def __getitem__(self, part: slice) -> "Job":
        """The same for some of the inputs."""
        truth = None if self.truth is None else self.truth[part]
        return replace(self, x=self.x[part], indices=self.indices[part], truth=truth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be certified of each input: this class, under this noise."""

    label: Tensor  # (inputs,)
    choice: Choice

    def __getitem__(self, part: slice) -> "Decision":
        """The same for some of the inputs."""
        return Decision(label=self.label[part], choice=self.choice[part])


@dataclass(slots=True, kw_only=True)
class UnderWay:
    """One input on its way to its certificate."""

    x: Tensor  # *dims
    label: int
    choice: Choice  # of this input alone
    estimate: Estimate
    stream: Stream
    counts: Tensor  # (classes,)
    drawn: int = 0
    point: PointCertificate | None = None
    due: int = field(init=False)  # samples to have before the next look

    def __post_init__(self) -> None:
        self.due = self.estimate.next_look(0)

    @property
    def expert(self) -> int:
        """The place of its network among the experts."""
        return int(self.choice.network[0])

    def take(self, samples: int, counts: Tensor) -> None:
        """Count these samples, and look where a look is due; what comes after the certificate is not looked at."""
        self.drawn += samples
        if self.point is not None:
            return
        self.counts += counts
        if self.drawn == self.due:
            self.point = self.estimate.look(self._seen())
            if self.point is None:
                self.due = self.estimate.next_look(self.drawn)

    def stop(self) -> None:
        """End the sampling here: the certificate is what has been proved so far."""
        if self.point is None:
            self.point = self.estimate.proved()

    def _seen(self) -> Counts:
        others = self.counts.clone()
        others[self.label] = 0
        return Counts(n=int(self.counts.sum()), hits=int(self.counts[self.label]), rival=int(others.max()))


def check_inputs(x: Tensor, indices: Sequence[int] | None) -> tuple[int, ...]:
    """The indices of inputs (batch, …), by default 0, 1, 2, …; refuses inputs that cannot be certified."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInputError(f"expected a floating-point tensor (batch, …), got {got}; divide 8-bit images by 255")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(f"expected float32 or float64, in which noise is fine enough, got {x.dtype}")
    if x[:1].numel() == 0 and len(x):
        raise InvalidInputError(f"expected inputs with at least one number each, got shape {tuple(x.shape)}")
    indices = tuple(range(len(x))) if indices is None else tuple(int(index) for index in indices)
    if len(indices) != len(x):
        raise InvalidInputError(f"expected one index per input, got {len(indices)} for {len(x)} inputs")
    is_finite = torch.isfinite(x).flatten(1).all(dim=1)
    if not is_finite.all():
        first = indices[int((~is_finite).nonzero()[0])]
        raise InvalidInputError(f"expected finite inputs, got NaN or infinity in input {first}")
    return indices
