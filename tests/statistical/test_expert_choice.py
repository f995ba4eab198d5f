"""Choosing the network keeps the promise of a certificate, because other samples choose it."""

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

from oracles import HalfSpace
from sigmax import Experts, HalvingSearch, SmoothedClassifier
from sigmax.bounds import clopper_pearson_lower
from sigmax.sampling import count_classes
from sigmax.streams import Stage, random_stream


class Slanted(nn.Module):
    """Another half-space: the first numbers decide, and inputs may be nearer to its plane or further away."""

    def __init__(self, plane: HalfSpace, turn: float) -> None:
        super().__init__()
        other = torch.roll(plane.normal, 1)
        normal = plane.normal + turn * (other - (other @ plane.normal) * plane.normal)
        self.register_buffer("normal", normal / normal.norm())
        self.normal: Tensor

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1) @ self.normal
        return torch.stack([-score, score], dim=1)


@pytest.mark.statistical
def test_two_half_spaces_in_3072_dimensions() -> None:
    alpha, repeats, plane = 0.01, 64, HalfSpace(3_072).eval()
    slanted = Slanted(plane, turn=0.7).eval()
    x = plane.at_distance(torch.linspace(0.1, 0.6, repeats)) + 0.3 * torch.linspace(-1, 1, repeats)[
        torch.randperm(repeats, generator=torch.Generator().manual_seed(0)), None
    ] * torch.roll(plane.normal, 1)
    distances = torch.stack([x @ plane.normal, x @ slanted.normal], dim=1)
    search = HalvingSearch(initial=0.25, candidates=5, samples=8, rounds=2, pilot=32)
    smoothed = SmoothedClassifier(Experts([plane, slanted], sigmas=[0.25, 0.4]), num_classes=2, sigma=search)
    certificates = smoothed.certify(x, n=600, alpha=alpha)
    # The radius of an answer is the distance to the plane of the network that was chosen.
    truth = [float(row[c.expert]) * (1 if c.label == 1 else -1) for c, row in zip(certificates, distances, strict=True)]
    answered = [(c.radius, d) for c, d in zip(certificates, truth, strict=True) if c.label is not None]
    assert sum(radius > distance for radius, distance in answered) <= binom.ppf(1 - 1e-6, repeats, alpha)
    assert {c.expert for c in certificates} == {0, 1}
    best = sum(float(row.max()) for row in distances.clamp(min=0))
    assert sum(radius for radius, _ in answered) > 0.7 * best


class Sign(nn.Module):
    """Class 1 where one number is above 0: a coin for inputs at 0, whatever the noise."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([-x[:, self.axis], x[:, self.axis]], dim=1)


@pytest.mark.statistical
def test_the_luckiest_of_many_coins_would_be_certified_by_its_own_samples() -> None:
    alpha, repeats, n, coins = 0.05, 120, 200, [Sign(axis).eval() for axis in range(10)]
    x = torch.zeros(repeats, len(coins))
    search = HalvingSearch(initial=0.25, candidates=2, samples=8, rounds=2, pilot=32)
    smoothed = SmoothedClassifier(Experts(coins), num_classes=2, sigma=search)
    # Every radius above 0 is false: each class has probability 1/2 at any sigma.
    ours = sum(c.label is not None for c in smoothed.certify(x, n=n, alpha=alpha))
    assert ours <= binom.ppf(1 - 1e-6, repeats, alpha)
    lucky = torch.zeros(repeats, dtype=torch.bool)
    for expert in smoothed.experts:
        streams = [random_stream(0, i, Stage.ESTIMATION, torch.device("cpu")) for i in range(repeats)]
        counts = count_classes(
            expert.classifier,
            x,
            torch.full((repeats,), 0.25),
            noise=smoothed.noise,
            n=n,
            streams=streams,
            batch_size=1024,
        )
        lucky |= torch.tensor([clopper_pearson_lower(k, n, alpha=alpha) > 0.5 for k in counts[:, 1].tolist()])
    assert int(lucky.sum()) > 1.5 * binom.ppf(1 - 1e-6, repeats, alpha)
