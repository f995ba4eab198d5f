"""Experts: the network is chosen for each input with its noise, from samples that certify nothing."""

from dataclasses import replace
from typing import final

import pytest
import torch
from torch import Tensor, nn

from oracles import HalfSpace
from sigmax import AscentSearch, Experts, HalvingSearch, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.errors import InvalidInputError
from sigmax.models import BaseClassifier
from sigmax.search.candidates import Candidates
from sigmax.streams import Stage
from toy import Level, small_network

SEARCH = HalvingSearch(initial=0.25)


class Shifted(nn.Module):
    """Class 1 where the first number exceeds `edge`; class `low` below it."""

    def __init__(self, edge: float, *, low: int = 0, classes: int = 3) -> None:
        super().__init__()
        self.edge, self.low, self.classes = edge, low, classes

    def forward(self, x: Tensor) -> Tensor:
        label = torch.where(x[:, 0] > self.edge, 1, self.low)
        return nn.functional.one_hot(label, self.classes).float()


class Die(nn.Module):
    """Class 0, 1 or 2, each for a third of all noise of sigma 0.25."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.bucketize(x[:, 1].contiguous(), torch.tensor([-0.1077, 0.1077])), 3).float()


@final
class Told(nn.Module):
    """A half-space whose edge lies further away the closer tau is to `best` times the level 0.25."""

    takes_level = True

    def __init__(self, best: float) -> None:
        super().__init__()
        self.best = best

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        score = x[:, 0] + 1.0 - (torch.log(tau / (0.25 * self.best))).abs()
        return torch.stack([-score, score], dim=1)


def test_one_expert_equals_the_network_alone_bit_for_bit() -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    for model in (small_network(), Level().eval()):
        alone = SmoothedClassifier(model, num_classes=2, sigma=SEARCH)
        expert = SmoothedClassifier(Experts([model]), num_classes=2, sigma=SEARCH)
        assert alone.certify(x, n=300) == expert.certify(x, n=300)
        assert alone.predict(x, n=300) == expert.predict(x, n=300)
        assert alone.fingerprint == expert.fingerprint


def test_the_network_with_the_larger_radius_is_chosen_for_each_input() -> None:
    # To the right of 0 both answer 1; the edge of the second is further away on one side, and nearer on the other.
    class Bent(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Shifted(0.0).forward(torch.where(x[:, 1:2] > 0, x + 1.0, x - 0.3))

    x = torch.tensor([[0.5, 4.0], [0.5, -4.0]])
    smoothed = SmoothedClassifier(Experts([Shifted(0.0).eval(), Bent().eval()]), num_classes=3, sigma=SEARCH)
    far, near = smoothed.certify(x, n=2_000)
    assert (far.expert, far.label, near.expert, near.label) == (1, 1, 0, 1)
    assert 1.0 < far.radius <= 1.5
    assert near.radius <= 0.5
    assert {far.tau, near.tau} == {None}


def test_each_expert_keeps_inside_its_own_bounds() -> None:
    wide, narrow = HalfSpace(8).eval(), HalfSpace(8, sharpness=2.0).eval()
    x = wide.at_distance(torch.full((4,), 3.0))
    smoothed = SmoothedClassifier(
        Experts([wide, narrow], sigmas=[0.1, 0.5], bounds=[None, (0.4, 0.6)]),
        num_classes=2,
        sigma=HalvingSearch(initial=0.25),
    )
    for one in smoothed.certify(x, n=2_000):
        assert one.expert == 1
        assert 0.4 <= one.sigma <= 0.6 + 1e-6


@pytest.mark.parametrize("best", [0.7, 2.0])
def test_a_noise_aware_network_is_a_family_of_told_levels(best: float) -> None:
    search = HalvingSearch(initial=0.25, bounds=(0.2, 0.8), candidates=5)
    smoothed = SmoothedClassifier(Told(best).eval(), num_classes=2, sigma=search)
    (one,) = smoothed.certify(torch.tensor([[0.2]]), n=4_000)
    assert one.tau == pytest.approx(0.25 * best, rel=0.3)
    (same,) = SmoothedClassifier(Told(best).eval(), num_classes=2, sigma=replace(search, taus=(1.0,))).certify(
        torch.tensor([[0.2]]), n=4_000
    )
    assert same.tau == same.sigma


def test_candidates_stay_inside_the_range_also_in_what_is_told() -> None:
    aware, plain = (BaseClassifier(model.eval(), num_classes=2) for model in (Level(), HalfSpace(4)))
    (expert,) = Experts([aware], bounds=[(0.1, 0.8)]).resolve(
        num_classes=2, outputs="logits", identity=None, sigma=0.25, bounds=None
    )
    found = Candidates(expert, sigmas=13, taus=(0.7, 1.0, 2.0))
    assert (found.fine >= 0.1 - 1e-9).all()
    assert (found.fine <= 0.8 + 1e-9).all()
    assert len(found.grid) < 39
    assert {round(float(tau / sigma), 6) for sigma, tau in found.grid} == {0.7, 1.0, 2.0}
    alone = Candidates(replace(expert, classifier=plain), sigmas=13, taus=(0.7, 1.0, 2.0))
    assert len(alone.grid) == 13
    assert (alone.grid[:, 0] == alone.grid[:, 1]).all()
    with pytest.raises(InvalidInputError, match="taus"):
        Candidates(expert, sigmas=13, taus=(9.0,))


def test_where_the_first_would_abstain_the_next_decides() -> None:
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    unsure, two, zero = Die().eval(), Shifted(0.0, low=2).eval(), Shifted(0.0, low=0).eval()
    certify = {"n": 2_000, "n0": 101}
    first = SmoothedClassifier(Experts([unsure, two, zero]), num_classes=3, sigma=SEARCH).certify(x, **certify)  # type: ignore[arg-type]
    assert [(one.label, one.expert in (1, 2)) for one in first] == [(1, True), (2, True)]
    assert first[1].expert == 1  # only the second says 2
    # The first that is sure decides, however many others disagree.
    stubborn = SmoothedClassifier(Experts([zero, two, two]), num_classes=3, sigma=SEARCH).certify(x, **certify)  # type: ignore[arg-type]
    assert [one.label for one in stubborn] == [1, 0]
    voted = SmoothedClassifier(Experts([zero, two, two], class_rule="vote"), num_classes=3, sigma=SEARCH)
    assert [one.label for one in voted.certify(x, **certify)] == [1, 2]  # type: ignore[arg-type]


def test_none_sure_gives_the_class_of_the_first_and_abstains() -> None:
    for rule in ("first", "vote"):
        smoothed = SmoothedClassifier(
            Experts([Die().eval(), Die().eval()], class_rule=rule),
            num_classes=3,
            sigma=HalvingSearch(initial=0.25, bounds=(0.2, 0.3)),
        )
        (one,) = smoothed.certify(torch.zeros(1, 2), n=1_000, n0=100)
        assert (one.label, one.radius) == (None, 0.0)


def test_the_choice_does_not_depend_on_the_other_inputs() -> None:
    x = torch.rand(5, 4, generator=torch.Generator().manual_seed(3)) - 0.2
    models = [HalfSpace(4).eval(), Shifted(0.1, classes=2).eval(), Level().eval()]
    smoothed = SmoothedClassifier(Experts(models, sigmas=[0.12, 0.25, 0.4]), num_classes=2, sigma=SEARCH)
    together = smoothed.certify(x, n=300)
    assert len({one.expert for one in together}) > 1
    for i in (0, 4):
        assert smoothed.certify(x[i : i + 1], n=300, indices=[i]) == [together[i]]
    turned = smoothed.certify(x.flip(0), n=300, indices=list(range(4, -1, -1)))
    assert turned[::-1] == together


def test_the_order_of_the_experts_is_part_of_the_fingerprint() -> None:
    a, b = HalfSpace(4).eval(), HalfSpace(4, sharpness=2.0).eval()
    prints = [
        SmoothedClassifier(Experts(models), num_classes=2, sigma=SEARCH).fingerprint
        for models in ([a], [b], [a, b], [b, a], [a, b])
    ]
    assert len(set(prints)) == 4
    assert prints[2] == prints[4]


def test_with_one_sigma_the_first_network_answers_alone_under_the_name_of_all() -> None:
    x, a, b = (
        torch.rand(3, 4, generator=torch.Generator().manual_seed(0)),
        HalfSpace(4).eval(),
        Shifted(0.2, classes=2).eval(),
    )
    alone, family = (SmoothedClassifier(model, num_classes=2, sigma=0.25) for model in (a, Experts([a, b])))
    assert alone.certify(x, n=300) == family.certify(x, n=300)
    # So it can stand outside the balls of a frozen memory of all of them.
    searched = SmoothedClassifier(Experts([a, b]), num_classes=2, sigma=SEARCH)
    assert family.fingerprint == searched.fingerprint != alone.fingerprint


def test_choosing_stays_below_5_percent_of_100_000_samples() -> None:
    models = [HalfSpace(4).eval()] * 4 + [Level().eval()] * 3
    smoothed = SmoothedClassifier(
        Experts(models, sigmas=[0.25] * 7, bounds=[(0.05, 1.5)] * 7), num_classes=2, sigma=SEARCH
    )
    done: list[int] = []
    smoothed.certify(torch.full((2, 4), 0.5), n=1_000, on_progress=done.append)
    choosing = smoothed.cost(Budget()) - Budget().n
    assert 0 < choosing < 5_000
    assert sum(done) <= 2 * (choosing + 1_000)


def test_what_no_search_can_choose_from_is_refused() -> None:
    a = HalfSpace(4).eval()
    with pytest.raises(InvalidInputError, match="halving"):
        SmoothedClassifier(Experts([a, a]), num_classes=2, sigma=AscentSearch(initial=0.25))
    with pytest.raises(InvalidInputError, match="at least one"):
        Experts([])
    with pytest.raises(InvalidInputError, match="one sigma per expert"):
        Experts([a, a], sigmas=[0.25])
    with pytest.raises(InvalidInputError, match="class_rule"):
        Experts([a], class_rule="loudest")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="classes"):
        SmoothedClassifier(Experts([BaseClassifier(a, num_classes=3)]), num_classes=2, sigma=SEARCH)


def test_no_two_stages_share_a_number() -> None:
    assert len({int(stage) for stage in Stage}) == len(Stage)


def test_functions_with_one_name_are_not_taken_for_each_other() -> None:
    """Swapped, they would have the same fingerprint, and certificates name a network by its place."""

    def left(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, 0], -x[:, 0]], dim=1)

    def right(x: torch.Tensor) -> torch.Tensor:
        return -left(x)

    def both(*models: object) -> SmoothedClassifier:
        return SmoothedClassifier(Experts(models), num_classes=2, sigma=SEARCH, identity="mine")  # type: ignore[arg-type]

    with pytest.raises(InvalidInputError, match="identity"):
        both(left, right)
    assert len(both(left, left).experts) == 2
    named = [BaseClassifier(each, num_classes=2, identity=each.__name__) for each in (left, right)]
    assert both(*named).fingerprint != both(*reversed(named)).fingerprint
