"""The networks of the benchmarks, with random weights: the time of a forward pass does not depend on them."""

from typing import get_args

import torch
from torch import Tensor, nn

from sigmax import SmoothedClassifier
from sigmax.engine.probe import fastest_batch
from sigmax.errors import ModelError
from sigmax.models import BaseClassifier, build_network
from sigmax.models.backends import Backend, accelerate
from sigmax.sampling import sample_buffer

NETWORKS = ("patch-resnet10", "resnet20")  # the CPU network of the zoo, and the field's small one
SHAPE, CLASSES, SIGMA = (3, 32, 32), 10, 0.25


def make_network(arch: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(arch, num_classes=CLASSES, in_channels=SHAPE[0]).eval()


def best_rows(network: nn.Module) -> int:
    return fastest_batch(BaseClassifier(network, num_classes=CLASSES), SHAPE)


def make_smoothed(arch: str, backend: Backend) -> tuple[SmoothedClassifier, Tensor]:
    """The smoothed network at its fastest batch, and a batch just as its sampling loop sends it: shape and layout."""
    network = make_network(arch)
    rows = best_rows(network)
    batch = sample_buffer(torch.rand(1, *SHAPE), rows)[-1]
    model = accelerate(network, backend, batch_shape=tuple(batch.shape))
    return SmoothedClassifier(model, num_classes=CLASSES, sigma=SIGMA, batch_size=rows), batch


def usable_backends() -> tuple[tuple[Backend, ...], str]:
    """Those that have what they need here; and a sentence for the note on each that has not."""
    usable: list[Backend] = []
    missing = ""
    for backend in get_args(Backend):
        try:
            accelerate(nn.Conv2d(1, 1, 1).eval(), backend, batch_shape=(1, 1, 8, 8))
            usable.append(backend)
        except ModelError as error:
            missing += f" Nothing runs by {backend} here: {error}."
    return tuple(usable), missing
