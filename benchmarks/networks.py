"""The networks of the benchmarks, with random weights: the time of a forward pass does not depend on them."""

import torch
from torch import Tensor, nn

from sigmax import SmoothedClassifier
from sigmax.models import build_network
from sigmax.models.backends import Backend, accelerate

NETWORKS = ("fast-resnet9", "resnet20")  # the CPU network of the zoo, and the field's small one
SHAPE, CLASSES, SIGMA = (3, 32, 32), 10, 0.25


def make_network(arch: str) -> nn.Module:
    torch.manual_seed(0)
    return build_network(arch, num_classes=CLASSES, in_channels=SHAPE[0]).eval()


def make_smoothed(arch: str, backend: Backend) -> tuple[SmoothedClassifier, Tensor]:
    """The smoothed network, and a batch just as its sampling loop sends it: shape and layout."""
    network = make_network(arch)
    seen: list[Tensor] = []
    hook = network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    SmoothedClassifier(network, num_classes=CLASSES, sigma=SIGMA).predict(torch.rand(1, *SHAPE), n=1)
    hook.remove()
    batch = seen[0]
    model = accelerate(network, backend, batch_shape=tuple(batch.shape))
    return SmoothedClassifier(model, num_classes=CLASSES, sigma=SIGMA), batch
