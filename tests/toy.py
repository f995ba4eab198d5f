"""What requests of the tests name: models, searches and noise of one's own; and the requests themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from oracles import HalfSpace
from sigmax import (
    Choice,
    Gaussian,
    HalvingSearch,
    PointCertificate,
    SearchTask,
    SigmaSearch,
    SmoothingDistribution,
)
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.models.reference import ModelReference
from sigmax.runs import CertificationSpec
from sigmax.sampling import Progress
from sigmax.streams import Stream


def half_space() -> nn.Module:
    """A model for inputs of four numbers."""
    return HalfSpace(4).eval()


def sharper_half_space() -> nn.Module:
    """Another, with the same answers."""
    return HalfSpace(4, sharpness=2.0).eval()


def small_network() -> nn.Module:
    """A network for inputs of four numbers: rows of so small layers may differ in the last bits by their place."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 2)).eval()


class Dropping(nn.Module):
    """A model with dropout that eval mode does not turn off."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=True)[:, :2]


def dropping() -> nn.Module:
    """Its factory."""
    return Dropping().eval()


class Threshold:
    """A model that is no module."""

    identity = "by the first number"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([0.5 - x[:, 0], x[:, 0] - 0.5], dim=1)


class Level(nn.Module):
    """A model that is told a noise level."""

    takes_level = True

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        score = x.mean(dim=1) - tau
        return torch.stack([-score, score], dim=1)


def level() -> nn.Module:
    """Its factory."""
    return Level().eval()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Brighter(SigmaSearch):
    """Sigma0, and up to so many times as much for brighter inputs."""

    initial: float
    factor: float = 2.0
    fixes_class: bool = True

    def find(self, task: SearchTask) -> Choice:
        share = task.x.flatten(1).mean(dim=1).clamp(0, 1)
        return Choice(sigma=self.initial * (1 + (self.factor - 1) * share))

    def cost(self) -> int:
        return 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled(SigmaSearch):
    """Twice sigma0 for every input."""

    is_per_input: ClassVar[bool] = False
    initial: float
    fixes_class: bool = False

    def find(self, task: SearchTask) -> Choice:
        return Choice(sigma=task.x.new_full((len(task.x),), 2 * self.initial))

    def cost(self) -> int:
        return 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(SigmaSearch):
    """One sigma for all inputs that are searched together, by what they look like."""

    initial: float
    fixes_class: bool = True

    def find(self, task: SearchTask) -> Choice:
        return Choice(sigma=(self.initial * (0.5 + task.x.mean())).expand(len(task.x)))

    def cost(self) -> int:
        return 0


@final
@dataclass(frozen=True, slots=True)
class Wide(SmoothingDistribution):
    """Gaussian noise that calls something else its sigma."""

    norm = 2
    width: float = 2.0

    def draw(self, stream: Stream, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        return stream.normal(n, shape, dtype=dtype) * self.width

    def radius(self, p_lower: float, *, sigma: float, p_upper: float | None = None) -> float:
        return Gaussian().radius(p_lower, sigma=self.width * sigma, p_upper=p_upper)

    def probability(self, radius: float, *, sigma: float) -> float:
        return Gaussian().probability(radius, sigma=self.width * sigma)

    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        return Gaussian().soft_radius(probs, self.width * sigma, label=label)


def toy_spec(
    folder: Path,
    *,
    model: str = "toy:half_space",
    n: int = 200,
    inputs: int = 3,
    most: int | None = None,
    **changes: Any,
) -> CertificationSpec:
    """A request for a model on so many inputs of four numbers, which are written to `folder`, with per-input sigma."""
    data = folder / f"toy-{inputs}.npz"
    if not data.exists():
        random = np.random.default_rng(0)
        np.savez(data, images=random.random((inputs, 4), dtype=np.float32), labels=np.arange(inputs) % 2)
    spec = CertificationSpec(
        model=ModelReference(name=model),
        data=DataReference(name=f"arrays:{data}", max=most),
        search=HalvingSearch(initial=0.25),
        budget=Budget(n=n),
        batch=64,
    )
    return replace(spec, **changes)


def point(label: int | None, radius: float) -> PointCertificate:
    """A certificate for a table."""
    return PointCertificate(label=label, radius=radius, sigma=0.25, p_lower=0.9, n=100, alpha=0.001, norm=2)


@contextmanager
def quietly(_what: str, _work: int) -> Iterator[Progress]:
    """Track nothing."""
    yield lambda _: None
