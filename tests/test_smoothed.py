import inspect
import re
import warnings
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sigmax
from oracles import FixedProbabilities, HalfSpace
from sigmax import AscentSearch, Choice, GridSearch, HalvingSearch, SearchTask, SigmaSearch, SmoothedClassifier, Uniform
from sigmax.budget import Budget
from sigmax.errors import InvalidInputError, ModelError
from sigmax.models import build_network
from sigmax.streams import Stage, Stream, random_stream

SEARCHES = [0.25, AscentSearch(initial=0.25, steps=5, pilot=50), AscentSearch.paper(initial=0.25, steps=5, samples=2)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return build_network("digits-cnn", num_classes=10, in_channels=1).eval()


@pytest.mark.parametrize("search", [*SEARCHES, GridSearch(initial=0.25, evaluations=12, samples=2)])
@pytest.mark.parametrize("n", [90, 20_000])
def test_an_answer_does_not_depend_on_the_batch_it_came_in(search: SigmaSearch | float, n: int) -> None:
    x = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    smoothed = SmoothedClassifier(network(), num_classes=10, sigma=search)
    inputs = 20 if n < 1_000 else 4
    together = smoothed.certify(x[:inputs], n=n, indices=range(100, 100 + inputs))
    alone = [smoothed.certify(x[i : i + 1], n=n, indices=[100 + i])[0] for i in range(inputs)]
    assert together == alone
    assert smoothed.predict(x, n=64, indices=range(20)) == smoothed.predict(x[:11], n=64) + smoothed.predict(
        x[11:], n=64, indices=range(11, 20)
    )


def test_certification_follows_cohen_recomputed_in_numpy() -> None:
    model, x, sigma, n0, n, alpha = network(), torch.rand(2, 1, 8, 8), 0.25, 100, 640, 0.001
    certificates = SmoothedClassifier(model, num_classes=10, sigma=sigma).certify(x, n0=n0, n=n, alpha=alpha, seed=5)
    for i in range(2):
        samples = {}
        for stage, size in ((Stage.SELECTION, n0), (Stage.ESTIMATION, n)):
            stream = random_stream(5, i, stage, torch.device("cpu"))
            noisy = x[i] + sigma * stream.normal(size, (1, 8, 8), dtype=torch.float32)
            samples[stage] = model(noisy).argmax(dim=1).numpy()
        top = int(np.bincount(samples[Stage.SELECTION], minlength=10).argmax())
        hits = int((samples[Stage.ESTIMATION] == top).sum())
        # Float noise ends at 6.6 sigma: what it never draws is subtracted.
        bound = sigmax.bounds.clopper_pearson_lower(hits, n, alpha=alpha) - 64 * 2.0**-30
        assert certificates[i].p_lower == bound
        assert certificates[i].label == (top if bound > 0.5 else None)
        assert certificates[i].radius == (pytest.approx(sigma * _quantile(bound)) if bound > 0.5 else 0.0)


def _quantile(p: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(p))


def test_it_abstains_where_no_class_has_a_majority() -> None:
    smoothed = SmoothedClassifier(FixedProbabilities([0.45, 0.45, 0.1]).eval(), num_classes=3, sigma=1.0)
    (certificate,) = smoothed.certify(torch.zeros(1, 1), n=1_000)
    assert (certificate.label, certificate.radius) == (None, 0.0)
    assert smoothed.predict(torch.zeros(1, 1), n=100) == [None]


def test_prediction_keeps_to_the_class_that_a_search_fixes() -> None:
    class Shell(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            score = x.square().mean(dim=1) - 0.09
            return torch.stack([-score, score], dim=1)

    class TooMuch(SigmaSearch):
        initial, fixes_class = 0.2, True

        def find(self, task: SearchTask) -> Choice:
            return Choice(sigma=torch.full((len(task.x),), 1.0))

        def cost(self) -> int:
            return 0

    x = torch.zeros(1, 400)
    assert SmoothedClassifier(Shell().eval(), num_classes=2, sigma=0.2).predict(x) == [0]
    assert SmoothedClassifier(Shell().eval(), num_classes=2, sigma=1.0).predict(x) == [1]
    smoothed = SmoothedClassifier(Shell().eval(), num_classes=2, sigma=TooMuch())
    assert smoothed.predict(x) == [None]
    assert smoothed.certify(x, n=100)[0].label is None


def test_progress_adds_up_to_the_cost_that_is_announced() -> None:
    search = AscentSearch(initial=0.25, steps=3, samples=2, pilot=40)
    done: list[int] = []
    SmoothedClassifier(network(), num_classes=10, sigma=search).certify(
        torch.rand(5, 1, 8, 8), n0=30, n=200, on_progress=done.append
    )
    assert sum(done) == 5 * (30 + 200 + search.cost())


def test_seeds_change_the_noise_and_nothing_else() -> None:
    smoothed, x = SmoothedClassifier(network(), num_classes=10, sigma=0.25), torch.rand(3, 1, 8, 8)
    assert smoothed.certify(x, n=300, seed=1) == smoothed.certify(x, n=300, seed=1)
    assert [c.p_lower for c in smoothed.certify(x, n=300, seed=1)] != [
        c.p_lower for c in smoothed.certify(x, n=300, seed=2)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.full((2, 64), float("nan"))}, "input 0"),
        ({"x": torch.tensor([[0.0] * 64, [float("inf")] * 64])}, "input 1"),
        ({"x": torch.zeros(2, 64, dtype=torch.uint8)}, "uint8"),
        ({"x": torch.zeros(64)}, r"\(64,\)"),
        ({"x": [[0.0]]}, "list"),
        ({"x": torch.zeros(2, 64, dtype=torch.float16)}, "float16"),  # too coarse for noise
        ({"x": torch.zeros(2, 64, dtype=torch.bfloat16)}, "bfloat16"),
        ({"x": torch.zeros(2, 0)}, r"\(2, 0\)"),
        ({"n": 0}, "n=0"),
        ({"n": 100.0}, r"n=100\.0"),
        ({"n0": 0}, "n0=0"),
        ({"alpha": 0.0}, r"alpha=0\.0"),
        ({"alpha": 1.5}, r"alpha=1\.5"),
        ({"indices": [1]}, "1 for 2"),
        ({"indices": [0, -1]}, "index=-1"),
    ],
)
def test_bad_input_is_refused_before_any_sampling(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": torch.zeros(2, 64), "n": 10} | change
    x = arguments.pop("x")
    smoothed = SmoothedClassifier(HalfSpace(64).eval(), num_classes=2, sigma=0.25)
    for method in (smoothed.certify, smoothed.predict):
        with pytest.raises(InvalidInputError, match=message):
            method(x, **arguments)


def test_a_model_that_is_put_into_training_mode_later_is_refused() -> None:
    model = network()
    smoothed = SmoothedClassifier(model, num_classes=10, sigma=0.25)
    model.train()
    with pytest.raises(ModelError, match="DigitsCNN"):
        smoothed.certify(torch.zeros(1, 1, 8, 8), n=10)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 9, 9)])
def test_a_wrong_shape_or_channel_count_names_the_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=re.escape(str(shape))):
        SmoothedClassifier(network(), num_classes=10, sigma=0.25).certify(torch.zeros(1, *shape), n=10)


def test_fingerprint_tells_models_noises_and_outputs_apart() -> None:
    model = network()
    prints = {
        SmoothedClassifier(model, num_classes=10).fingerprint,
        SmoothedClassifier(model, num_classes=10, noise=Uniform()).fingerprint,
        SmoothedClassifier(model, num_classes=10, outputs="probabilities").fingerprint,
        SmoothedClassifier(HalfSpace(2).eval(), num_classes=2).fingerprint,
    }
    assert len(prints) == 4
    # The search is not part of it: all sigmas share one memory.
    assert SmoothedClassifier(model, num_classes=10, sigma=AscentSearch(initial=0.5)).fingerprint in prints


def test_an_accelerator_has_a_fingerprint_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    smoothed = SmoothedClassifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval(), num_classes=2, sigma=0.25)
    before = smoothed.fingerprint
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: smoothed.classifier.device)
    assert smoothed.fingerprint != before


def test_double_precision_inputs_keep_their_precision() -> None:
    plane = HalfSpace(4).double().eval()
    (certificate,) = SmoothedClassifier(plane, num_classes=2, sigma=0.12).certify(
        plane.at_distance(torch.tensor([0.2], dtype=torch.float64)), n=100
    )
    assert certificate.sigma == 0.12


def test_public_names_are_lazy_but_all_there() -> None:
    with warnings.catch_warnings():
        assert all(getattr(sigmax, name) is not None for name in sigmax.__all__)
    assert "certify" in dir(sigmax.SmoothedClassifier)
    with pytest.raises(AttributeError, match="nothing"):
        _ = sigmax.nothing


def test_a_job_may_be_chosen_whole_and_estimated_in_parts() -> None:
    x = torch.rand(40, 10)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 10)).eval()
    smoothed = SmoothedClassifier(model, num_classes=10, sigma=AscentSearch(initial=0.25, steps=5, pilot=20))
    job = smoothed.job(x, Budget(n=2_000), indices=range(100, 140))
    decision = smoothed.choose(job)
    parts = list(smoothed.sampler.estimate_parts(job))
    assert len(parts) > 1
    apart = {part.start: smoothed.sampler.estimate(job[part], decision[part]) for part in reversed(parts)}
    assert [point for start in sorted(apart) for point in apart[start]] == smoothed.certify_job(job)
    assert smoothed.certify_job(job) == smoothed.certify(x, n=2_000, indices=range(100, 140))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_search_works_where_gradients_are_off(context: Any) -> None:
    smoothed = SmoothedClassifier(network(), num_classes=10, sigma=AscentSearch(initial=0.25, steps=3, pilot=10))
    x = torch.rand(2, 1, 8, 8)
    expected = smoothed.certify(x, n=50)
    with context():
        assert smoothed.certify(x, n=50) == expected
        assert smoothed.certify(x.clone(), n=50) == expected


def test_a_model_that_keeps_tensors_between_calls_can_be_searched() -> None:
    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(64, 3))
            self.grid: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.grid is None:
                self.grid = torch.linspace(0, 1, 64)
            return (x * self.grid) @ self.weight

    search = AscentSearch(initial=0.25, steps=3, pilot=10)
    (certificate,) = SmoothedClassifier(Grid().eval(), num_classes=3, sigma=search).certify(torch.rand(1, 64), n=50)
    assert certificate.n == 50


def test_indices_may_be_numpy_integers_and_inputs_may_be_none() -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=0.25)
    assert smoothed.certify(torch.zeros(2, 4), n=10, indices=list(np.arange(2))) == smoothed.certify(
        torch.zeros(2, 4), n=10
    )
    assert smoothed.certify(torch.zeros(0, 4), n=10) == []
    assert smoothed.predict(torch.zeros(0, 4), n=10) == []


@pytest.mark.parametrize(
    "search",
    [
        *SEARCHES[1:],
        GridSearch(initial=0.25, evaluations=12, samples=2),
        HalvingSearch(initial=0.25, pilot=16),
    ],
)
def test_what_certifies_a_sigma_is_drawn_once_and_by_nobody_else(
    search: SigmaSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choosing sigma or class with the noise that certifies them would void the bound."""
    opened: list[tuple[str, int, Stage]] = []

    def recorded(seed: int, index: int, stage: Stage, device: torch.device) -> Stream:
        is_search = any(frame.function == "find" for frame in inspect.stack())
        opened.append(("search" if is_search else "certify", index, stage))
        return random_stream(seed, index, stage, device)

    monkeypatch.setattr("sigmax.sampler.random_stream", recorded)
    SmoothedClassifier(network(), num_classes=10, sigma=search).certify(torch.rand(3, 1, 8, 8), n=100)
    for index in range(3):
        assert [who for who, i, stage in opened if (i, stage) == (index, Stage.ESTIMATION)] == ["certify"]
        assert [who for who, i, stage in opened if (i, stage) == (index, Stage.SELECTION)] == ["certify"]
    assert {stage for who, _, stage in opened if who == "search"} <= {Stage.SEARCH, Stage.PILOT}


class DoublePrecision(SigmaSearch):
    """A search of the user's own that forgets the dtype, or the shape."""

    initial, fixes_class = 0.7, False

    def __init__(self, count: int) -> None:
        self.count = count

    def find(self, task: SearchTask) -> Choice:
        return Choice(sigma=torch.full((self.count,), 0.7, dtype=torch.float64))

    def cost(self) -> int:
        return 0


def test_a_certificate_speaks_of_the_sigma_that_scaled_the_noise() -> None:
    x = torch.rand(2, 1, 8, 8)
    for found in SmoothedClassifier(network(), num_classes=10, sigma=DoublePrecision(2)).certify(x, n=10):
        assert found.sigma == float(np.float32(0.7))
    with pytest.raises(InvalidInputError, match=r"\(1,\) for 2"):
        SmoothedClassifier(network(), num_classes=10, sigma=DoublePrecision(1)).certify(x, n=10)


def test_a_search_that_returns_no_choice_is_refused() -> None:
    class Bare(DoublePrecision):
        def find(self, task: SearchTask) -> Choice:
            return super().find(task).sigma  # type: ignore[return-value]

    with pytest.raises(InvalidInputError, match="Choice"):
        SmoothedClassifier(network(), num_classes=10, sigma=Bare(2)).certify(torch.rand(2, 1, 8, 8), n=10)


def test_a_network_that_goes_on_training_between_two_certificates_is_refused() -> None:
    model = network()
    g = SmoothedClassifier(model, num_classes=10, sigma=0.25)
    job = g.job(torch.rand(2, 1, 8, 8), Budget(n=10))
    decision = g.choose(job)
    model.train()
    with pytest.raises(ModelError, match="DigitsCNN"):
        g.choose(job)
    with pytest.raises(ModelError, match="DigitsCNN"):
        g.sampler.estimate(job, decision)


def test_numbers_of_numpy_count_as_numbers() -> None:
    g, x = SmoothedClassifier(network(), num_classes=10, sigma=0.25), torch.rand(1, 1, 8, 8)
    n, n0 = np.int64(100), np.int32(10)
    assert g.certify(x, n=n, n0=n0) == g.certify(x, n=100, n0=10)  # type: ignore[arg-type]
    assert g.certify(x, n=n, tolerance=0.1) == g.certify(x, n=100, tolerance=0.1)  # type: ignore[arg-type]
    assert g.predict(x, n=n) == g.predict(x, n=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", ["a", None, torch.tensor([0.1, 0.2])])
def test_what_is_no_number_is_no_sigma(sigma: object) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(repr(sigma))):
        SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=sigma)  # type: ignore[arg-type]


@pytest.mark.parametrize("sigma", [np.float32(0.25), torch.tensor(0.25), 1])
def test_a_number_of_any_library_is_a_sigma(sigma: float) -> None:
    assert SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=sigma).search.initial == float(sigma)


class Recorder(nn.Module):
    """A network that is told a noise level; it keeps its inputs and what it was told."""

    takes_level = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        self.seen.append((x.detach().clone(), tau.detach().clone()))
        score = x.flatten(1).mean(dim=1)
        return torch.stack([-score, score], dim=1)


class Told(SigmaSearch):
    """Sigma grows from input to input; what the network is told is another number, if any."""

    initial, fixes_class = 0.1, False

    def __init__(self, tau: float | None) -> None:
        self.tau = tau

    def find(self, task: SearchTask) -> Choice:
        sigma = torch.tensor([0.1 * (1 + index) for index in task.indices])
        return Choice(sigma=sigma, tau=None if self.tau is None else self.tau * sigma.double())

    def cost(self) -> int:
        return 0


@pytest.mark.parametrize("tau", [None, 0.3])
def test_a_noise_aware_network_is_told_the_level_of_each_row(tau: float | None) -> None:
    model = Recorder().eval()
    x = 1_000.0 * torch.arange(1, 4).view(3, 1).expand(3, 300)  # so far apart that a noisy row tells whose it is
    smoothed = SmoothedClassifier(model, num_classes=2, sigma=Told(tau), batch_size=64)
    smoothed.job(x, Budget())  # asks twice, before any sampling
    model.seen.clear()
    points = smoothed.certify(x, n=150)
    expected = {i: point.sigma * (tau or 1.0) for i, point in enumerate(points, start=1)}
    assert [point.tau for point in points] == [pytest.approx(level) for level in expected.values()]
    rows = [row for batch, levels in model.seen for row in zip(batch, levels.tolist(), strict=True)]
    told = {(round(float(row.mean()) / 1_000), level) for row, level in rows if row.std() > 0}  # not of padding
    assert sorted(told) == [(i, pytest.approx(level)) for i, level in expected.items()]
    # A certificate speaks of the number that the network was told, not of one that is rounded otherwise.
    assert {level for _, level in told} == {point.tau for point in points}
    model.seen.clear()
    smoothed.predict(x, n=100)
    assert {level for batch, levels in model.seen for level in levels[batch.std(dim=1) > 0].tolist()} == {
        point.tau for point in points
    }


def test_other_networks_are_told_nothing() -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=Told(0.5))
    assert [point.tau for point in smoothed.certify(torch.zeros(2, 4), n=10)] == [None, None]


@pytest.mark.parametrize("arch", ["resnet20-aware", "patch-resnet10-aware"])
def test_a_noise_aware_network_is_certified_like_any_other(arch: str) -> None:
    torch.manual_seed(0)
    x, model = torch.rand(2, 3, 32, 32), build_network(arch, num_classes=10, in_channels=3).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "film" in name:  # they start at 0, where all levels are alike
                parameter.normal_(std=0.3)
    assert not torch.equal(*(model(x[:1], torch.tensor([tau])) for tau in (0.25, 0.5)))
    for search in (
        HalvingSearch(initial=0.25, candidates=3, samples=8, rounds=1, pilot=8),
        AscentSearch(initial=0.25, steps=2, step_size=0.01, pilot=8),
    ):
        smoothed = SmoothedClassifier(model, num_classes=10, sigma=search, batch_size=32)
        together = smoothed.certify(x, n=32, n0=16)
        assert [point.tau for point in together] == [point.sigma for point in together]
        assert smoothed.certify(x[1:], n=32, n0=16, indices=[1]) == together[1:]


def test_a_choice_of_a_network_that_is_not_there_is_refused() -> None:
    @final
    class Second(SigmaSearch):
        initial = 0.25
        fixes_class = False

        def find(self, task: SearchTask) -> Choice:
            return Choice(sigma=task.constant(0.25), expert=torch.ones(len(task.x), dtype=torch.int64))

        def cost(self) -> int:
            return 0

    g = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=Second())
    with pytest.raises(InvalidInputError, match="expert"):
        g.certify(torch.rand(2, 4), n=10)


class Careless(nn.Module):
    """In eval mode, and yet no fixed function of each input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.kind == "twice":
            x = nn.functional.dropout(x, training=True)
        elif self.kind == "beside":
            x = x - x.mean(dim=0)
        return x.flatten(1)[:, :2]


@pytest.mark.parametrize("kind", ["twice", "beside"])
@pytest.mark.parametrize("inputs", [1, 3, 100])
def test_a_model_that_is_no_function_of_its_input_is_refused_before_any_sampling(kind: str, inputs: int) -> None:
    model = Careless(kind).eval()
    smoothed = SmoothedClassifier(model, num_classes=2, sigma=0.25, batch_size=16, identity=kind)
    x = torch.rand(inputs, 4)
    for ask in (smoothed.certify, smoothed.predict):
        with pytest.raises(ModelError, match=kind):
            ask(x, n=100)
    with pytest.raises(ModelError, match=kind):
        smoothed.certify_at(x, [0.1])
    assert model.calls == 3 * 4


def test_a_model_is_asked_twice_once_for_each_shape_of_batches() -> None:
    model = Careless("").eval()
    smoothed = SmoothedClassifier(model, num_classes=2, sigma=0.25, batch_size=64)
    for size in (4, 4, 6, 4):
        smoothed.job(torch.rand(2, size), Budget())
    assert model.calls == 2 * 4
    assert smoothed.job(torch.rand(0, 9), Budget()).indices == ()
