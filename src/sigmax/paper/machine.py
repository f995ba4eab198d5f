"""Where an experiment runs, and how fast that is."""

import math
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from lightning_fabric import Fabric
from torch import nn

from sigmax.errors import InvalidInputError
from sigmax.models import BaseClassifier, build_network
from sigmax.models.backends import Backend, accelerate, place_model
from sigmax.noise import Gaussian
from sigmax.sampling import count_classes, default_batch_size
from sigmax.search import AscentSearch
from sigmax.search.base import SEARCH_ROWS, mean_probabilities
from sigmax.streams import Stage, random_stream


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where networks run.

    Args:
        device: By default an accelerator if there is any.
        backend: What runs the networks that are certified.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Forward passes of one sample per second."""

    sampling: float  # in full batches, by the backend
    search: float  # with gradients, in the small batches of searches, a backward pass counting as two


def measure_speed(arch: str, *, shape: tuple[int, ...], classes: int, machine: Machine) -> Speed:
    """Time one batch and one ascent step of an untrained network: seconds for small networks."""
    network = build_network(arch, num_classes=classes, in_channels=shape[0]).eval()
    place_model(network, machine.device)
    rows = machine.batch or default_batch_size(math.prod(shape))
    fast = accelerate(network, machine.backend, batch_shape=(rows, *shape))
    classifier = BaseClassifier(fast, num_classes=classes)
    noise, ascent = Gaussian(), AscentSearch.paper(initial=1.0, steps=1)
    x = torch.zeros(SEARCH_ROWS, *shape, device=classifier.device)
    sigma = x.new_ones(len(x))
    streams = [random_stream(0, index, Stage.SEARCH, classifier.device) for index in range(len(x))]
    stream = random_stream(0, 0, Stage.ESTIMATION, classifier.device)

    def sample() -> None:
        count_classes(classifier, x[:1], sigma[:1], noise=noise, n=rows, streams=[stream], batch_size=rows)

    def search() -> None:
        perturb = partial(noise.perturb, n=1, streams=streams)
        ascent.ascend(partial(mean_probabilities, classifier), x, sigma, perturb=perturb, noise=noise)

    return Speed(sampling=rows / _seconds(sample), search=len(x) * ascent.cost() / _seconds(search))


def _seconds(act: Callable[[], object]) -> float:
    """How long it takes, after a first time that pays for what is set up once."""
    act()
    times, seconds = timeit.Timer(act).autorange()
    return seconds / times
