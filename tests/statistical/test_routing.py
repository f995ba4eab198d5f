"""Routing: the smaller of two certified radii, each at half of alpha, keeps the promise without a memory."""

import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

from oracles import HalfSpace
from sigmax import Experts, SmoothedClassifier
from sigmax.errors import InvalidInputError
from sigmax.routing import Route, RoutedClassifier
from sigmax.streams import Stage, Stream, random_stream


class Across(nn.Module):
    """A router whose regions are half-spaces: route 1 where the axis across the classes is above 0."""

    def __init__(self, plane: HalfSpace) -> None:
        super().__init__()
        other = torch.roll(plane.normal, 1)
        across = other - (other @ plane.normal) * plane.normal
        self.register_buffer("normal", across / across.norm())
        self.normal: Tensor

    def forward(self, x: Tensor) -> Tensor:
        score = x @ self.normal
        return torch.stack([-score, score], dim=1)


def routed(dimensions: int) -> tuple[RoutedClassifier, HalfSpace, Across]:
    plane = HalfSpace(dimensions).eval()
    across = Across(plane).eval()
    experts = SmoothedClassifier(
        Experts([plane, HalfSpace(dimensions, sharpness=3.0).eval()]), num_classes=2, sigma=0.25
    )
    routes = [Route(sigma=0.15), Route(sigma=0.5, expert=1)]
    return RoutedClassifier(across, routes, experts=experts, sigma=0.4), plane, across


@pytest.mark.statistical
def test_radius_is_the_distance_to_the_nearer_of_both_planes_in_3072_dimensions() -> None:
    alpha, repeats = 0.05, 64
    classifier, plane, across = routed(3_072)
    to_plane = torch.linspace(0.1, 0.5, repeats)
    to_edge = torch.linspace(-0.5, 0.5, repeats)[torch.randperm(repeats, generator=torch.Generator().manual_seed(1))]
    x = plane.at_distance(to_plane) + to_edge[:, None] * across.normal
    found = classifier.certify(x, n=600, alpha=alpha)
    truth = torch.minimum(to_plane, to_edge.abs())
    misses = sum(c.radius > float(d) for c, d in zip(found, truth, strict=True))
    assert misses <= binom.ppf(1 - 1e-6, repeats, alpha)
    assert sum(c.radius for c in found) > 0.4 * float(truth.sum())
    for c, edge in zip(found, to_edge.tolist(), strict=True):
        assert c.alpha == alpha
        if c.label is not None:
            assert c.label == 1
            assert c.route_radius is not None
            assert c.expert_radius is not None
            assert c.radius == min(c.route_radius, c.expert_radius)
            if abs(edge) > 0.2:
                assert (c.expert, c.sigma) == ((1, 0.5) if edge > 0 else (0, pytest.approx(0.15)))
    assert any(c.route_radius is not None and c.route_radius < (c.expert_radius or 0) for c in found)


def test_an_unsure_router_abstains_and_the_answer_does_not_depend_on_the_batch() -> None:
    classifier, plane, across = routed(16)
    x = plane.at_distance(torch.tensor([0.5, 0.5, 0.5])) + torch.tensor([0.0, 0.3, -0.3])[:, None] * across.normal
    found = classifier.certify(x, n=500)
    assert [c.label for c in found] == [None, 1, 1]
    assert found[0].radius == 0.0
    assert classifier.certify(x[2:], n=500, indices=[2]) == found[2:]


def test_the_router_draws_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Stage] = []

    def watch(seed: int, index: int, stage: Stage, device: torch.device) -> Stream:
        used.append(stage)
        return random_stream(seed, index, stage, device)

    monkeypatch.setattr("sigmax.sampler.random_stream", watch)
    classifier, plane, _ = routed(16)
    classifier.certify(plane.at_distance(torch.tensor([0.5])), n=200)
    assert sorted(stage for stage in used if stage != Stage.PREFLIGHT) == [
        Stage.SELECTION,
        Stage.ESTIMATION,
        Stage.ROUTE_SELECTION,
        Stage.ROUTE_ESTIMATION,
    ]


def test_routes_to_nowhere_are_refused() -> None:
    classifier, _, across = routed(16)
    for route in (Route(sigma=0.25, expert=2), Route(sigma=0.0)):
        with pytest.raises(InvalidInputError, match="routes"):
            RoutedClassifier(across, [route, route], experts=classifier.experts, sigma=0.4)
