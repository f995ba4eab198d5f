"""Examples for routers: the best route of each image by the true class, and a router trained on them that certifies."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sigmax import Experts, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.data import load_source
from sigmax.data.source import ArraySource, SubsetSource
from sigmax.errors import DataError
from sigmax.models import load_model
from sigmax.routing import Route, RoutedClassifier
from sigmax.train import Recipe, train
from sigmax.train.router import route_examples, route_radii


class Edge(nn.Module):
    """Class 1 to the right of an edge."""

    def __init__(self, edge: float) -> None:
        super().__init__()
        self.edge = edge

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1)[:, 0] - self.edge
        return torch.stack([-score, score], dim=1)


ROUTES = [Route(sigma=0.2), Route(sigma=0.2, expert=1)]


def edges() -> SmoothedClassifier:
    return SmoothedClassifier(Experts([Edge(0.2).eval(), Edge(0.8).eval()]), num_classes=2, sigma=0.25)


def test_each_image_gets_the_route_with_the_larger_radius_of_its_true_class() -> None:
    x = np.array([[0.5, 0.0], [0.5, 0.0], [0.45, 1.0]], dtype=np.float32)
    labels = np.array([1, 0, 1])
    radii = route_radii(
        edges(), ROUTES, torch.from_numpy(x), labels.tolist(), indices=[0, 1, 2], samples=200, budget=Budget()
    )
    assert radii[0, 0] == pytest.approx(0.3, abs=0.08)
    assert radii[[0, 1], [1, 0]].tolist() == [0.0, 0.0]
    assert radii[1, 1] == pytest.approx(0.3, abs=0.08)
    made = route_examples(edges(), ROUTES, ArraySource("toy", x, labels, ("0", "1"), levels=None), samples=200)
    assert set(made.labels.tolist()) == {0, 1}
    assert len(made.class_names) == 2
    ones = [i for i, label in enumerate(made.labels.tolist()) if label == 1]
    assert (made.images(ones) == x[1]).all()
    assert len(made) > len(x)  # those with more at stake are there several times


def test_routes_that_are_alike_teach_nothing() -> None:
    same = ArraySource("toy", np.full((2, 2), 0.5, dtype=np.float32), np.array([1, 1]), ("0", "1"), levels=None)
    with pytest.raises(DataError, match="different radii"):
        route_examples(edges(), [ROUTES[0], ROUTES[0]], same)


def test_a_router_is_trained_as_any_network_and_certifies(tmp_path: Path, digits_model: Path) -> None:
    loaded, digits = load_model(str(digits_model)), load_source("digits", split="test")
    experts = SmoothedClassifier(loaded.model, num_classes=10, levels=digits.levels, sigma=0.25)
    routes = [Route(sigma=0.1), Route(sigma=0.25), Route(sigma=0.5)]
    few = SubsetSource(digits, np.arange(96))
    examples = route_examples(experts, routes, few, samples=16)
    train(Recipe(arch="digits-cnn", sigma=0.25, epochs=2, batch=32), examples, tmp_path)
    router = load_model(str(tmp_path))
    assert router.num_classes == len(routes)
    assert router.card is not None
    assert router.card.class_names[2] == "expert 0, sigma 0.5, tau 0.5"
    x = torch.from_numpy(digits.images(range(100, 108)))
    found = RoutedClassifier(router.model, routes, experts=experts, sigma=0.25).certify(x, n=300)
    assert {round(c.sigma, 6) for c in found} <= {route.sigma for route in routes}
    assert any(c.label is not None for c in found)
