"""Classifiers whose certified radii are known in closed form."""

import torch
from torch import Tensor, nn


class HalfSpace(nn.Module):
    """Class 1 where w . x > 0, else class 0. Under Gaussian noise of any sigma, R is the distance to the plane."""

    def __init__(self, dimensions: int, *, sharpness: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        normal = torch.randn(dimensions, generator=generator, dtype=torch.float64)
        self.register_buffer("normal", (normal / normal.norm()).float())
        self.sharpness = sharpness
        self.normal: Tensor

    def at_distance(self, distances: Tensor) -> Tensor:
        """Inputs of class 1 this far from the plane, (batch, dimensions)."""
        return distances[:, None] * self.normal

    def forward(self, x: Tensor) -> Tensor:
        score = self.sharpness * (x.flatten(1) @ self.normal)
        return torch.stack([-score, score], dim=1)


class AxisThreshold(nn.Module):
    """Class 1 where x[0] > 0, else class 0. Under uniform noise of half-width lambda, R = |x[0]| up to lambda."""

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1)[:, 0]
        return torch.stack([-score, score], dim=1)


class FixedProbabilities(nn.Module):
    """Answers class c with probability p[c], whatever the input: reads its luck off one noisy coordinate."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor(probabilities, dtype=torch.float64).cumsum(0)[:-1])
        self.edges: Tensor
        self.classes = len(probabilities)

    def forward(self, x: Tensor) -> Tensor:
        luck = torch.special.ndtr(x.flatten(1)[:, 0].double())  # uniform under N(0, 1) around 0
        return nn.functional.one_hot(torch.bucketize(luck, self.edges), self.classes).float()
