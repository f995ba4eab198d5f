"""Training with noise augmentation (Cohen et al. 2019): cross entropy on x + sigma * eps."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sigmax.noise import SmoothingDistribution


def train_under_noise(
    network: nn.Module,
    x: Tensor,
    labels: Tensor,
    *,
    noise: SmoothingDistribution,
    sigma: float,
    epochs: int,
    batch_size: int = 64,
    peak_learning_rate: float = 0.01,
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> None:
    """Train in place for data that fits in memory; leaves the network in eval mode.

    AdamW under a one-cycle learning rate; the order of the data and the noise follow from the seed.

    Args:
        network: The network, with its initial weights.
        x: Inputs, (n, …).
        labels: Classes, (n,).
        noise: The smoothing distribution.
        sigma: Its level.
        epochs: Passes over the data.
        batch_size: Inputs per step.
        peak_learning_rate: The highest learning rate of the cycle.
        seed: Seeds order and noise.
        on_epoch: Called after each epoch with its number and its mean loss.
    """
    generator = torch.Generator(x.device).manual_seed(seed)
    steps = -(-len(x) // batch_size)
    optimizer = torch.optim.AdamW(network.parameters(), lr=peak_learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak_learning_rate, total_steps=epochs * steps)
    network.train()
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(x), generator=generator, device=x.device), batch_size):
            eps = noise.fill(torch.empty_like(x[batch]), generator=generator)
            loss = cross_entropy(network(x[batch] + sigma * eps), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        if on_epoch is not None:
            on_epoch(epoch, total / len(x))
    network.eval()
