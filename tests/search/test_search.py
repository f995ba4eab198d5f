from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.special import ndtr, ndtri

from oracles import HalfSpace
from sigmax import (
    AscentSearch,
    Choice,
    FixedSigma,
    Gaussian,
    GridSearch,
    HalvingSearch,
    SearchTask,
    SigmaSearch,
    SmoothedClassifier,
    Uniform,
)
from sigmax.bounds import clopper_pearson_lower
from sigmax.errors import InvalidInputError, ModelError
from sigmax.experts import Expert
from sigmax.models import BaseClassifier, build_network
from sigmax.noise import SmoothingDistribution
from sigmax.search import make_search, search_names
from sigmax.search.base import projected_radius
from sigmax.streams import Stage, Stream, random_stream
from toy import Brighter, Doubled

CPU = torch.device("cpu")


def stream(seed: int, index: int, stage: Stage) -> Stream:
    return random_stream(seed, index, stage, CPU)


def task(
    model: nn.Module,
    x: Tensor,
    *,
    label: Tensor | None = None,
    noise: SmoothingDistribution | None = None,
    n: int = 1000,
    sigma: float = 0.25,
) -> SearchTask:
    classes = model(x[:1]).shape[1]
    return SearchTask(
        experts=(Expert(classifier=BaseClassifier(model.eval(), num_classes=classes), sigma=sigma),),
        noise=noise or Gaussian(),
        x=x,
        label=label,
        n=n,
        alpha=0.001,
        indices=tuple(range(len(x))),
        stream=partial(stream, 0),
        batch_size=64,
    )


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize("samples", [1, 3])
def test_paper_ascent_is_algorithm_1_to_the_letter(samples: int) -> None:
    model, steps, step_size, sigma0 = small_network(), 25, 1e-4, 0.25
    x = torch.rand(5, 12, generator=torch.Generator().manual_seed(2))
    found = AscentSearch.paper(initial=sigma0, steps=steps, samples=samples).find(task(model, x)).sigma
    for i in range(5):  # one input at a time, straight from the pseudo-code
        generator = stream(0, i, Stage.SEARCH)
        sigma = torch.tensor(sigma0, requires_grad=True)
        for _ in range(steps):
            noise = generator.normal(samples, (12,), dtype=torch.float32)
            psi = model(x[i] + sigma * noise).softmax(dim=1).mean(dim=0)
            (e_a, e_b), _ = psi.topk(2)
            radius = sigma / 2 * (ndtri(e_a.clamp(0.02, 0.98)) - ndtri(e_b.clamp(0.02, 0.98)))
            (slope,) = torch.autograd.grad(radius, sigma)
            sigma = (sigma + step_size * slope).detach().requires_grad_()
        assert float(found[i]) == pytest.approx(float(sigma.detach()), abs=1e-6)
    assert float((found - sigma0).abs().max()) > 1e-4  # a hundred times what rounding allows


@pytest.mark.parametrize(
    "search", [AscentSearch(initial=0.3, steps=7, pilot=64), GridSearch(initial=0.3, evaluations=20)]
)
@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
def test_sigma_does_not_depend_on_what_else_is_searched(search: SigmaSearch, noise: SmoothingDistribution) -> None:
    torch.manual_seed(0)
    model = build_network("digits-cnn", num_classes=10, in_channels=1).eval()
    x = torch.rand(21, 1, 8, 8)
    label = model(x).argmax(dim=1)
    whole = task(model, x, label=label, noise=noise)
    alone = [search.find(part).sigma for part in whole.split(1)]
    assert torch.equal(search.find(whole).sigma, torch.cat(alone))


def test_search_leaves_the_network_as_it_was() -> None:
    torch.manual_seed(0)
    model = build_network("resnet20", num_classes=10, in_channels=3).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    AscentSearch.paper(initial=0.25, steps=2, samples=2).find(task(model, torch.rand(3, 3, 32, 32)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_ascent_keeps_to_its_bounds() -> None:
    x = HalfSpace(6).at_distance(torch.full((4,), 5.0))
    search = AscentSearch(initial=0.2, steps=50, step_size=1.0, pilot=0)
    sigma = search.find(task(HalfSpace(6, sharpness=50.0), x, label=torch.ones(4, dtype=torch.int64))).sigma
    assert torch.all(sigma == 0.4)
    downward = search.find(task(HalfSpace(6, sharpness=50.0), -x, label=torch.ones(4, dtype=torch.int64))).sigma
    assert torch.all((downward >= 0.05) & (downward <= 0.4))


def test_ascent_fixes_the_class_and_the_paper_leaves_it_free() -> None:
    # Class 0 at small noise, class 1 once noise is large: ascent on a free class can end up with class 1.
    class Shell(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            score = 20 * (x.square().mean(dim=1) - 0.09)
            return torch.stack([-score, score], dim=1)

    model, x = Shell().eval(), torch.zeros(1, 400)
    free = AscentSearch.paper(initial=0.31, steps=400)
    fixed = AscentSearch(initial=0.31, steps=400, pilot=0)
    zero = torch.zeros(1, dtype=torch.int64)
    kept, walked = fixed.find(task(model, x, label=zero)).sigma, free.find(task(model, x)).sigma
    assert float(kept[0]) < 0.31 < float(walked[0])


def test_sigma0_is_kept_where_the_pilot_says_so() -> None:
    class Island(nn.Module):
        """Class 0 within a distance that sigma0 keeps to and a larger sigma does not."""

        def forward(self, x: Tensor) -> Tensor:
            score = 4_000 * (x.square().mean(dim=1) - 0.05)
            return torch.stack([-score, score], dim=1)

    model, x, zero = Island().eval(), torch.zeros(1, 4_000), torch.zeros(1, dtype=torch.int64)
    # Probabilities above the clamp say "more noise" until the class is lost, at sigma = sqrt(0.05) = 0.224.
    walked = AscentSearch(initial=0.15, steps=4, step_size=0.01, pilot=0).find(task(model, x, label=zero)).sigma
    kept = (
        AscentSearch(initial=0.15, steps=4, step_size=0.01, pilot=200)
        .find(task(model, x, label=zero, sigma=0.15))
        .sigma
    )
    assert float(walked[0]) > 0.225
    assert float(kept[0]) == pytest.approx(0.15)


def test_projection_of_a_pilot_is_the_radius_of_its_rate() -> None:
    plane = HalfSpace(4)
    job = task(plane, plane.at_distance(torch.tensor([0.3, -0.3])), label=torch.ones(2, dtype=torch.int64), n=5000)
    sigmas = torch.tensor([[0.25, 0.25], [0.5, 0.5]])
    ((projected, abstained), (wider, _)) = projected_radius(job, sigmas, samples=4000).tolist()
    p = float(ndtr(torch.tensor(0.3 / 0.25)))
    ideal = Gaussian().radius(clopper_pearson_lower(p * 5000, 5000, alpha=0.001), sigma=0.25)
    assert projected == pytest.approx(ideal, rel=0.05)
    assert abstained == 0.0
    alone = projected_radius(job, sigmas[1], samples=4000).tolist()
    assert alone[0] == wider  # each sigma sees the same noise, whatever is asked beside it
    with pytest.raises(InvalidInputError, match="fixes_class"):
        projected_radius(task(plane, torch.zeros(1, 4)), torch.tensor([[0.25]]), samples=10)


def test_grid_has_the_papers_points_and_number_of_evaluations() -> None:
    calls: list[int] = []

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(len(x))
            return torch.stack([x.sum(dim=1), -x.sum(dim=1)], dim=1)

    search = GridSearch(initial=0.25, evaluations=200, samples=4)
    assert search.grid == pytest.approx([i * 4 / 200 for i in range(1, 51)])
    assert search.cost() == 200
    job = task(Counting().eval(), torch.ones(4, 3), label=torch.zeros(4, dtype=torch.int64))
    calls.clear()
    sigma = search.find(job).sigma
    assert sum(calls) == 4 * 200  # four inputs fill the rows of every pass
    assert all(min(abs(float(s) - point) for point in search.grid) < 1e-6 for s in sigma)


def test_grid_finds_the_best_point_where_the_answer_is_sure() -> None:
    x = HalfSpace(6).at_distance(torch.full((2,), 50.0))
    found = GridSearch(initial=0.25).find(task(HalfSpace(6, sharpness=50.0), x, label=torch.ones(2, dtype=torch.int64)))
    assert torch.all(found.sigma == 1.0)  # the radius grows with sigma as long as the class is sure


def test_a_search_of_ones_own_takes_one_small_class() -> None:
    class Halved(SigmaSearch):
        initial, fixes_class = 0.5, False

        def find(self, task: SearchTask) -> Choice:
            return Choice(sigma=torch.full((len(task.x),), self.initial / 2, dtype=task.x.dtype))

        def cost(self) -> int:
            return 0

    plane = HalfSpace(4)
    (certificate,) = SmoothedClassifier(plane.eval(), num_classes=2, sigma=Halved()).certify(
        plane.at_distance(torch.tensor([0.3])), n=1000
    )
    assert (certificate.label, certificate.sigma) == (1, 0.25)
    assert Halved().is_per_input


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("fixed", {}, FixedSigma(0.25)),
        ("halving", {}, HalvingSearch(initial=0.25)),
        ("ascent", {"steps": 9, "samples": 2}, AscentSearch(initial=0.25, steps=9, samples=2)),
        ("ascent", {"pilot": "7"}, AscentSearch(initial=0.25, pilot=7)),  # as the command line says it
        ("ascent", {"bounds": (0.2, 0.3)}, AscentSearch(initial=0.25, bounds=(0.2, 0.3))),
        ("ascent-paper", {"steps": 9}, AscentSearch.paper(initial=0.25, steps=9)),
        ("ascent-paper", {"samples": "3"}, AscentSearch.paper(initial=0.25, samples=3)),
        ("grid", {"steps": 9}, GridSearch(initial=0.25, evaluations=18)),
        ("toy:Brighter", {"factor": "3"}, Brighter(initial=0.25, factor=3.0)),
        ("toy:Doubled", {}, Doubled(initial=0.25)),
    ],
)
def test_searches_are_made_by_name(name: str, given: dict[str, Any], expected: SigmaSearch) -> None:
    assert make_search(name, initial=0.25, **given) == expected


def test_every_search_has_a_name() -> None:
    assert set(search_names()) == {"fixed", "halving", "ascent", "ascent-paper", "grid"}
    assert all(make_search(name, initial=0.25).initial == 0.25 for name in search_names())


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("halvign", {}, "halving"),
        ("ascent-papr", {}, "ascent-paper"),
        ("halving", {"candidate": 5}, "candidates"),
        ("halving", {"steps": 5}, "steps=5"),
        ("ascent-paper", {"pilot": 5}, "pilot=5"),
        ("ascent-paper", {"samples": "few"}, "samples"),
        ("ascent", {"steps": "many"}, "steps"),
        ("fixed", {"bounds": (0.1, 0.5)}, "bounds"),
        ("toy:Brighter", {"faktor": 3}, "factor"),
        ("toy:Brightest", {}, "Brightest"),
        ("toy:Wide", {}, "SigmaSearch"),
        ("no_such_module:Search", {}, "no_such_module"),
    ],
)
def test_a_search_that_is_none_is_refused_by_name(name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        make_search(name, initial=0.25, **given)


@pytest.mark.parametrize(
    ("search", "upper", "label"),
    [
        (FixedSigma(0.25), None, "fixed"),
        (HalvingSearch(initial=0.25), 0.5, "halving"),
        (HalvingSearch(initial=0.25, bounds=(0.125, 1.0)), 1.0, "halving within 0.5 to 4 sigma0"),
        (AscentSearch(initial=0.25), 0.5, "bounded ascent"),
        (AscentSearch.paper(initial=0.25), None, "Algorithm 1"),
        (AscentSearch.paper(initial=0.25, samples=8), None, "Algorithm 1, 8 draws"),
        (AscentSearch.paper(initial=0.25, step_size=0.01), None, "Algorithm 1, steps of 0.01"),
        (GridSearch(initial=0.25), 1.0, "grid"),
        (Brighter(initial=0.25), None, "toy:Brighter"),
    ],
)
def test_a_search_tells_its_limit_and_what_it_is(search: SigmaSearch, upper: float | None, label: str) -> None:
    assert (search.upper, search.label()) == (upper, label)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FixedSigma(0.0), r"sigma=0\.0"),
        (lambda: FixedSigma(float("nan")), "sigma=nan"),
        (lambda: AscentSearch(initial=-1.0), r"sigma=-1\.0"),
        (lambda: AscentSearch(initial=0.25, steps=-1), "steps=-1"),
        (lambda: AscentSearch(initial=0.25, samples=0), "samples=0"),
        (lambda: AscentSearch(initial=0.25, bounds=(0.3, 0.5)), r"\[0\.3, 0\.5\]"),
        (lambda: AscentSearch(initial=0.25, bounds=(-1.0, 1.0)), r"\[-1\.0, 1\.0\]"),
        (lambda: AscentSearch(initial=0.25, bounds=(0.0, 1.0)), r"\[0\.0, 1\.0\]"),
        (lambda: AscentSearch(initial=0.25, fixes_class=False), "fixes_class"),
        (lambda: GridSearch(initial=0.25, evaluations=3, samples=4), "samples=4"),
    ],
)
def test_settings_outside_their_domain_are_refused(make: Callable[[], SigmaSearch], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        make()


def test_an_ascent_refuses_a_model_without_gradients() -> None:
    def deaf(x: torch.Tensor) -> torch.Tensor:
        return x.detach().flatten(1)[:, :2]

    g = SmoothedClassifier(deaf, num_classes=2, sigma=AscentSearch(initial=0.25, steps=2))
    with pytest.raises(ModelError, match="HalvingSearch"):
        g.certify(torch.rand(2, 3, 2, 2), n=10)
