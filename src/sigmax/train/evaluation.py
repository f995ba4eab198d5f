"""The network as certification will see it: in evaluation mode, under noise, told the noise level if it takes one."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sigmax.data import ImageSource
from sigmax.models.levels import told
from sigmax.noise import SmoothingDistribution
from sigmax.streams import Stage, random_stream

# Logits of a batch of inputs; a noise-aware network also takes the noise level of each.
Network = Callable[..., Tensor]
_ROWS = 500  # images at a time


@contextmanager
def evaluating(network: Network) -> Iterator[Network]:
    """The bare network in evaluation mode and full precision; afterwards its modes are as before.

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


def noisy_logits(network: Network, noisy: Tensor, sigma: Tensor) -> Tensor:
    """Logits (batch, draws, classes) of noisy copies (batch, draws, *dims) at the levels sigma, (batch,)."""
    tau = sigma.repeat_interleave(noisy.shape[1])
    return told(network, noisy.flatten(0, 1), tau).reshape(*noisy.shape[:2], -1)


@torch.no_grad()
def noisy_accuracy(
    network: nn.Module,
    source: ImageSource,
    *,
    noise: SmoothingDistribution,
    sigma: float,
    seed: int,
    most: int | None = None,
) -> float:
    """The share of images that the network classifies correctly under one draw of noise each.

    `most` limits the images; then they are spread evenly over the source.
    """
    device = next(network.parameters()).device
    stream = random_stream(seed, 0, Stage.EVALUATION, device)
    hits, judged = 0, range(0, len(source), math.ceil(len(source) / most) if most else 1)
    with evaluating(network) as fixed:
        for start in range(0, len(judged), _ROWS):
            places = judged[start : start + _ROWS]
            x = torch.from_numpy(source.images(places)).to(device)
            levels = x.new_full((len(x),), sigma)
            eps = noise.draw(stream, len(x), x.shape[1:], dtype=x.dtype).unsqueeze(1)
            answers = noisy_logits(fixed, noise.add(x, levels, eps), levels).argmax(dim=-1).squeeze(1)
            hits += int((answers.cpu().numpy() == source.labels[places]).sum())
    return hits / len(judged)
