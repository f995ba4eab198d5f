"""Successive halving: finds what a dense grid finds, keeps sigma0 where that is better, needs no gradients."""

import pytest
import torch
from torch import Tensor

from oracles import HalfSpace
from sigmax import FixedSigma, SmoothedClassifier
from sigmax.errors import InvalidInputError
from sigmax.search import HalvingSearch


class Shrinking:
    """A black box: class 1 inside a shell around the origin whose probability under noise falls with sigma.

    Class 1 while the mean of squares of the input stays below `limit`; with x = 0 in d dimensions that is
    sigma^2 chi^2_d / d < limit, so that below sqrt(limit) nearly every sample hits and above it none.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, x: Tensor) -> Tensor:
        score = self.limit - x.flatten(1).square().mean(dim=1)
        return torch.stack([-score, score], dim=1)


@pytest.mark.parametrize(("limit", "low", "high"), [(0.09, 0.2, 0.3), (0.2, 0.34, 0.45), (10.0, 0.5, 0.5)])
def test_finds_the_largest_sigma_that_still_answers(limit: float, low: float, high: float) -> None:
    g = SmoothedClassifier(
        Shrinking(limit), num_classes=2, sigma=HalvingSearch(initial=0.25), identity="shrinking", batch_size=64
    )
    certificates = g.certify(torch.zeros(4, 512), n=2_000)
    fixed = SmoothedClassifier(Shrinking(limit), num_classes=2, sigma=0.25, identity="shrinking").certify(
        torch.zeros(4, 512), n=2_000
    )
    for found, plain in zip(certificates, fixed, strict=True):
        assert found.label == 1
        assert low - 1e-6 <= found.sigma <= high + 1e-6
        assert found.radius >= plain.radius


def test_keeps_sigma0_where_nothing_is_better() -> None:
    """The next sigma of the grid is beyond what the model stands, the one before gives less."""
    g = SmoothedClassifier(Shrinking(0.073), num_classes=2, sigma=HalvingSearch(initial=0.25), identity="shrinking")
    assert all(c.sigma == pytest.approx(0.25) for c in g.certify(torch.zeros(4, 2_048), n=500))


def test_costs_what_it_says() -> None:
    model = HalfSpace(3 * 32 * 32).eval()
    search = HalvingSearch(initial=0.25)
    assert search.cost() <= 1_000
    done: list[int] = []
    x = model.at_distance(torch.linspace(0.1, 1.0, 8))
    SmoothedClassifier(model, num_classes=2, sigma=search).certify(x, n=1_000, on_progress=done.append)
    assert sum(done) == 8 * (100 + search.cost() + 1_000)


def test_an_answer_does_not_depend_on_its_neighbours() -> None:
    model = HalfSpace(48).eval()
    x = model.at_distance(torch.linspace(0.1, 1.0, 6))
    g = SmoothedClassifier(model, num_classes=2, sigma=HalvingSearch(initial=0.25), batch_size=64)
    together = g.certify(x, n=500)
    assert [g.certify(x[i : i + 1], n=500, indices=[i])[0] for i in range(6)] == together


def test_never_far_behind_one_sigma_on_a_half_space() -> None:
    model = HalfSpace(48).eval()
    x = model.at_distance(torch.linspace(0.05, 1.2, 24))
    found, fixed = (
        SmoothedClassifier(model, num_classes=2, sigma=sigma).certify(x, n=5_000)
        for sigma in (HalvingSearch(initial=0.25), FixedSigma(0.25))
    )
    assert sum(c.radius for c in found) > sum(c.radius for c in fixed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("candidates", 1),
        ("samples", 0),
        ("rounds", 0),
        ("pilot", -1),
        ("bounds", (0.5, 0.1)),
        ("bounds", (0.3, 0.6)),
        ("fixes_class", False),
    ],
)
def test_impossible_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=name):
        HalvingSearch(initial=0.25, **{name: value})  # type: ignore[arg-type]
