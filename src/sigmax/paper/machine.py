"""Where an experiment runs, and how fast that is."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import final

import torch
from lightning_fabric import Fabric
from torch import nn

from sigmax.errors import InvalidInputError
from sigmax.models import BaseClassifier, build_network
from sigmax.models.backends import Backend, accelerate, place_model
from sigmax.noise import Gaussian
from sigmax.sampling import Stage, batch_rows, count_classes, random_stream
from sigmax.sigma import AscentSearch, SearchTask
from sigmax.sigma.search import SEARCH_ROWS

_TIMES, _ENOUGH = 15, 0.3  # how often something is timed at most, and for how many seconds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where networks run.

    Args:
        device: By default an accelerator if there is any.
        backend: What certifies; see `sigmax.models.backends.accelerate`.
        batch: Noisy samples per forward pass; by default the fastest for each network.
    """

    device: str | None = None
    backend: Backend = "eager"
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InvalidInputError(f"expected --batch >= 1, got batch={self.batch}")
        place_model(nn.Identity(), self.device)  # refuses what is not here, before any work

    def fabric(self, precision: str) -> Fabric:
        """Where a training runs: on this device, or on one of this kind."""
        if self.device is None:
            return Fabric(devices=1, precision=precision)  # type: ignore[arg-type]
        place, accelerator = torch.device(self.device), torch.accelerator.current_accelerator()
        is_one_of_many = place.index is not None and accelerator is not None and place.type == accelerator.type
        devices = [place.index] if is_one_of_many else 1
        return Fabric(accelerator=place.type, devices=devices, precision=precision)  # type: ignore[arg-type]

    def prepare(self, model: nn.Module, shape: tuple[int, ...], batch: int) -> nn.Module:
        """The network, which is in its place, behind its engine, for batches of inputs of this shape."""
        return accelerate(model, self.backend, batch_shape=(batch_rows(math.prod(shape), batch), *shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Forward passes of one sample per second."""

    sampling: float  # in full batches, behind the engine
    search: float  # with gradients, in the small batches of searches, a backward pass counting as two


def measure_speed(arch: str, *, shape: tuple[int, ...], classes: int, machine: Machine) -> Speed:
    """Time one batch and one ascent step of an untrained network behind its engine: seconds for small networks."""
    network = build_network(arch, num_classes=classes, in_channels=shape[0]).eval()
    place_model(network, machine.device)
    rows = batch_rows(math.prod(shape), machine.batch)
    classifier = BaseClassifier(machine.prepare(network, shape, rows), num_classes=classes)
    device = classifier.device
    x = torch.zeros(SEARCH_ROWS, *shape, device=device)
    stream = partial(random_stream, 0, device=device)
    task = SearchTask(
        classifier=classifier,
        noise=Gaussian(),
        x=x,
        label=None,
        n=1,
        alpha=0.5,
        indices=tuple(range(len(x))),
        stream=stream,
        batch_size=rows,
    )

    def sample() -> None:
        streams = [stream(0, Stage.SEARCH)]
        count_classes(classifier, x[:1], x.new_ones(1), noise=task.noise, n=rows, streams=streams, batch_size=rows)

    ascent = AscentSearch.paper(initial=1.0, steps=1)
    return Speed(sampling=rows / _seconds(sample), search=len(x) * ascent.cost() / _seconds(lambda: ascent.find(task)))


def _seconds(act: Callable[[], object]) -> float:
    """How long it usually takes: timed a few times, after one that pays for what is set up once."""
    act()
    times = [time.perf_counter()]
    while len(times) <= _TIMES and (len(times) < 2 or times[-1] - times[0] < _ENOUGH):
        act()
        times.append(time.perf_counter())
    return median(later - earlier for earlier, later in pairwise(times))
