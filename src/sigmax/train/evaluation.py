"""The network as certification will see it: in evaluation mode, without a trace in its training state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sigmax.data import ImageSource
from sigmax.models.architectures import told
from sigmax.noise import SmoothingDistribution
from sigmax.sampling import Stage, random_stream

_ROWS = 500  # images at a time


@contextmanager
def evaluating(network: Callable[..., Tensor]) -> Iterator[Callable[..., Tensor]]:
    """The bare network in evaluation mode and full precision, taken out of what wraps it; then as it was.

    Gradients with respect to inputs and sigma are small: half precision would lose them.
    """
    if not isinstance(network, nn.Module):
        yield network
        return
    bare = getattr(network, "module", network)
    modes = [(module, module.training) for module in bare.modules()]
    bare.eval()
    try:
        with torch.autocast(next(bare.parameters()).device.type, enabled=False):
            yield bare
    finally:
        for module, is_training in modes:
            module.training = is_training


@torch.no_grad()
def noisy_accuracy(
    network: nn.Module, source: ImageSource, *, noise: SmoothingDistribution, sigma: float, seed: int
) -> float:
    """The share of images that the network gets right under one draw of noise each."""
    device = next(network.parameters()).device
    stream = random_stream(seed, 0, Stage.PREDICTION, device)
    hits = 0
    with evaluating(network) as fixed:
        for start in range(0, len(source), _ROWS):
            places = range(start, min(start + _ROWS, len(source)))
            x = torch.from_numpy(source.images(places)).to(device)
            noisy = x + sigma * noise.fill(torch.empty_like(x), generator=stream)
            logits = told(fixed, noisy, torch.full((1,), sigma, device=device))
            hits += int((logits.argmax(dim=1).cpu().numpy() == source.labels[start : start + _ROWS]).sum())
    return hits / len(source)
