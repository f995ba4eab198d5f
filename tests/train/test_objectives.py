"""Losses and gradients against independent computations on models small enough to see through."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from scipy.stats import binom, chisquare, norm
from torch import Tensor, nn

from sigmax import Gaussian, Uniform
from sigmax.errors import InvalidInputError
from sigmax.named import named_classes
from sigmax.noise import SmoothingDistribution
from sigmax.streams import Stage, random_stream
from sigmax.train import Batch, Objective, Outcome, make_objective
from sigmax.train.evaluation import evaluating, noisy_logits
from sigmax.train.objectives import Network
from sigmax.train.objectives.catrs import CatRs
from sigmax.train.objectives.smoothadv import SmoothAdv

CLASSES, PIXELS = 3, 4
NAMES = ["catrs", "cohen", "consistency", "macer", "smoothadv"]


def make_batch(
    draws: int, *, examples: int = 5, noise: SmoothingDistribution | None = None, seed: int = 0, epoch: int = 100
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    noise = noise or Gaussian()
    stream = random_stream(seed, 0, Stage.TRAINING, torch.device("cpu"))
    return Batch(
        x=torch.randn(examples, PIXELS, generator=generator, dtype=torch.float64),
        labels=torch.randint(CLASSES, (examples,), generator=generator),
        sigma=torch.rand(examples, generator=generator, dtype=torch.float64) + 0.2,
        eps=noise.draw(stream, examples * draws, (PIXELS,), dtype=torch.float64).view(examples, draws, PIXELS),
        uniform=torch.rand(examples, generator=generator),
        noise=noise,
        epoch=epoch,
    )


def linear(seed: int = 0, scale: float = 1.0) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(PIXELS, CLASSES).double()
    with torch.no_grad():
        layer.weight.mul_(scale)
    return layer


def logits_by_hand(layer: nn.Linear, batch: Batch, x: Tensor | None = None) -> NDArray[np.float64]:
    """Every noisy copy one at a time, (batch, draws, classes)."""
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    at = (batch.x if x is None else x).detach().numpy()
    rows = [
        [weight @ (at[i] + batch.sigma.numpy()[i] * batch.eps.numpy()[i, j]) + bias for j in range(batch.eps.shape[1])]
        for i in range(len(at))
    ]
    return np.array(rows)


def cross_entropy_by_hand(logits: NDArray[np.float64], labels: Tensor) -> float:
    rows = log_softmax(logits, axis=-1)
    return float(-np.mean([[copy[int(label)] for copy in row] for row, label in zip(rows, labels, strict=True)]))


def test_the_package_finds_every_objective() -> None:
    assert sorted(named_classes(Objective)) == NAMES  # type: ignore[type-abstract]


def test_cohen_is_the_cross_entropy_of_noisy_copies() -> None:
    layer, batch = linear(), make_batch(3)
    outcome = make_objective("cohen", {"draws": 3})(layer, batch)
    assert outcome.loss.item() == pytest.approx(cross_entropy_by_hand(logits_by_hand(layer, batch), batch.labels))
    np.testing.assert_allclose(outcome.logits.detach(), logits_by_hand(layer, batch))


def test_consistency_against_numpy() -> None:
    layer, batch = linear(), make_batch(3)
    loss = make_objective("consistency", {"draws": 3, "strength": 7.0, "entropy": 0.3})(layer, batch).loss.item()
    probs = softmax(logits_by_hand(layer, batch), axis=-1)
    mean = probs.mean(axis=1)
    divergence = np.mean([np.sum(m * np.log(m / copy)) for m, row in zip(mean, probs, strict=True) for copy in row])
    entropy = np.mean(-np.sum(mean * np.log(mean), axis=1))
    fit = cross_entropy_by_hand(logits_by_hand(layer, batch), batch.labels)
    assert loss == pytest.approx(fit + 7.0 * divergence + 0.3 * entropy)


def macer_by_hand(
    layer: nn.Linear, batch: Batch, *, strength: float = 12.0, hinge: float = 8.0, sharpness: float = 16.0
) -> float:
    """The formula, input by input; Gaussian noise."""
    logits, total = logits_by_hand(layer, batch), 0.0
    for row, label, sigma in zip(logits, batch.labels.tolist(), batch.sigma.tolist(), strict=True):
        mean = softmax(row, axis=-1).mean(axis=0)
        total -= np.log(mean[label])
        sharp = softmax(sharpness * row, axis=-1).mean(axis=0).clip(1e-6, 1 - 1e-6)
        if mean.argmax() == label and sharp.argmax() == label:
            second, first = np.sort(sharp)[-2:]
            total += strength * sigma / 2 * max(hinge - (norm.ppf(first) - norm.ppf(second)), 0.0)
    return total / len(logits)


@pytest.mark.parametrize("seed", range(6))
def test_macer_against_numpy(seed: int) -> None:
    layer, batch = linear(seed), make_batch(8, seed=seed)
    loss = make_objective("macer", {"draws": 8})(layer, batch).loss.item()
    assert loss == pytest.approx(macer_by_hand(layer, batch), rel=1e-9)


def test_macer_takes_the_hinge_only_where_the_answer_is_right() -> None:
    layer, batch = linear(3), make_batch(8, seed=3)
    answers = softmax(logits_by_hand(layer, batch), axis=-1).mean(axis=1).argmax(axis=1)
    wrong = replace(batch, labels=torch.from_numpy((answers + 1) % CLASSES))
    weak, strong = (make_objective("macer", {"draws": 8, "strength": s})(layer, wrong).loss for s in (0.0, 50.0))
    assert weak.item() == strong.item()


def test_macer_gradient_against_finite_differences() -> None:
    layer, batch = linear(1, scale=0.5), make_batch(8, seed=1)
    make_objective("macer", {"draws": 8})(layer, batch).loss.backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None
    for place in [(0, 0), (1, 2), (2, 3)]:
        slopes = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                layer.weight[place] += step
            slopes.append(macer_by_hand(layer, batch))
            with torch.no_grad():
                layer.weight[place] -= step
        assert layer.weight.grad[place].item() == pytest.approx((slopes[0] - slopes[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_stay_finite_where_the_network_is_certain(name: str, dtype: torch.dtype) -> None:
    objective = make_objective(name)
    layer, batch = linear(2, scale=1e4).to(dtype), make_batch(objective.draws, seed=2)
    loss = objective(layer, replace(batch, **{f: getattr(batch, f).to(dtype) for f in ("x", "sigma", "eps")})).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(layer.weight.grad).all()


def test_macer_under_uniform_noise_widens_the_l1_radius() -> None:
    layer = linear(1)
    batch = as_answered(layer, make_batch(64, noise=Uniform(), seed=1))
    objective = make_objective("macer", {"hinge": 2.0})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)

    def mean_radius() -> float:
        sharp = (16 * batch.logits(layer)).softmax(dim=-1).mean(dim=1).clamp(1e-6, 1 - 1e-6)
        return float(batch.noise.soft_radius(sharp, batch.sigma, label=batch.labels).mean().detach())

    before = mean_radius()
    for _ in range(100):
        optimizer.zero_grad()
        objective(layer, batch).loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert mean_radius() > before + 0.02


class Wavy(nn.Module):
    """A network with curvature and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(PIXELS, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def smoothed_loss(network: nn.Module, batch: Batch, x: Tensor) -> NDArray[np.float64]:
    """-log of the mean probability of the label, each input, in evaluation mode."""
    network.eval()
    with torch.no_grad():
        probs = batch.logits(network, x).softmax(dim=-1).mean(dim=1)
    network.train()
    lost: NDArray[np.float64] = -np.log(probs[torch.arange(len(x)), batch.labels].numpy())
    return lost


def smoothed_answers(network: nn.Module, batch: Batch, x: Tensor) -> Tensor:
    network.eval()
    with torch.no_grad():
        answers = batch.logits(network, x).softmax(dim=-1).mean(dim=1).argmax(dim=1)
    network.train()
    return answers


def as_answered(network: nn.Module, batch: Batch) -> Batch:
    """The same inputs, labelled as the smoothed network answers: there is something to attack."""
    return replace(batch, labels=smoothed_answers(network, batch, batch.x))


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
@pytest.mark.parametrize(("steps", "epsilon"), [(1, 0.25), (2, 0.25), (8, 1.0)])
def test_the_attack_raises_the_smoothed_loss_inside_its_ball(attack: str, steps: int, epsilon: float) -> None:
    torch.manual_seed(0)
    network = Wavy().train()
    batch = as_answered(network, make_batch(4, examples=40))
    objective = make_objective("smoothadv", {"attack": attack, "steps": steps, "epsilon": epsilon, "draws": 4})
    assert isinstance(objective, SmoothAdv)
    found = objective.adversary(network, batch)
    lengths = (found - batch.x).norm(dim=1)
    assert lengths.max() <= epsilon * (1 + 1e-9)
    assert lengths.min() > 0
    gained = smoothed_loss(network, batch, found) - smoothed_loss(network, batch, batch.x)
    assert gained.mean() > 0.02 * epsilon
    assert (gained > 0).mean() > 0.9


def test_ddn_finds_nearer_adversaries_than_pgd() -> None:
    torch.manual_seed(0)
    network = Wavy().train()
    batch = as_answered(network, make_batch(4, examples=40))
    answers = {}
    for attack in ("pgd", "ddn"):
        found = make_objective("smoothadv", {"attack": attack, "steps": 20, "epsilon": 2.0, "draws": 4}).adversary(  # type: ignore[attr-defined]
            network, batch
        )
        is_fooled = smoothed_answers(network, batch, found) != batch.labels
        answers[attack] = (is_fooled, (found - batch.x).norm(dim=1))
    both = answers["pgd"][0] & answers["ddn"][0]
    assert both.sum() > 10
    assert (answers["ddn"][1][both] <= answers["pgd"][1][both]).all()
    assert answers["ddn"][1][both].mean() < 0.8 * answers["pgd"][1][both].mean()


def test_one_attack_step_goes_along_the_gradient_of_the_mean_probability() -> None:
    layer, batch = linear(), make_batch(4)
    objective = SmoothAdv(draws=4, steps=1, epsilon=0.25)
    found = objective.adversary(layer, batch)
    weight = layer.weight.detach().numpy()
    probs = softmax(logits_by_hand(layer, batch), axis=-1)
    for i, label in enumerate(batch.labels.tolist()):
        mean = probs[i, :, label].mean()
        # d(-log mean_j p_j)/dx = -mean_j p_j (w_label - sum_c p_jc w_c) / mean
        slope = -np.mean([p[label] * (weight[label] - p @ weight) for p in probs[i]], axis=0) / mean
        expected = batch.x[i].numpy() + 0.25 * slope / np.linalg.norm(slope)
        np.testing.assert_allclose(found[i].detach(), expected, rtol=1e-9)


@pytest.mark.parametrize(("attack", "confidence"), [("pgd", 20.0), ("pgd", 60.0), ("pgd", -200.0), ("ddn", 60.0)])
def test_the_attack_is_as_long_on_inputs_of_which_the_network_is_sure(attack: str, confidence: float) -> None:
    """In single precision these probabilities are 1 or 0, and the squares of their gradients vanish."""
    layer, batch = linear(), make_batch(4)
    with torch.no_grad():
        layer.bias.zero_()[0] = confidence
    sure = replace(
        batch,
        x=batch.x.float(),
        labels=torch.zeros(5, dtype=torch.int64),
        sigma=batch.sigma.float() / 9,
        eps=batch.eps.float(),
    )
    objective = make_objective("smoothadv", {"attack": attack, "draws": 4})
    assert isinstance(objective, SmoothAdv)
    moved = objective.adversary(layer.float(), sure) - sure.x
    if confidence > 0:
        np.testing.assert_allclose(moved.norm(dim=1), 0.25, rtol=1e-4)
    assert (moved @ layer.weight[0] < 0).all()  # away from the class


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_smoothadv_knows_what_it_costs(attack: str) -> None:
    layer, batch, calls = linear(), make_batch(4), []

    def network(x: Tensor) -> Tensor:
        calls.append(len(x))
        logits: Tensor = layer(x)
        return logits

    objective = make_objective("smoothadv", {"attack": attack, "draws": 4, "steps": 5})
    objective(network, batch)
    assert 3 * sum(calls) / len(batch.x) == objective.passes


def test_smoothadv_trains_on_what_the_attack_found_under_the_same_noise() -> None:
    layer, batch = linear(), make_batch(2)
    objective = SmoothAdv(draws=2)
    found = objective.adversary(layer, batch)
    by_hand = cross_entropy_by_hand(logits_by_hand(layer, batch, found), batch.labels)
    assert objective(layer, batch).loss.item() == pytest.approx(by_hand)


def test_the_attack_grows_during_its_warm_up() -> None:
    layer = linear()
    for epoch, share in [(0, 0.1), (4, 0.5), (9, 1.0), (50, 1.0)]:
        batch = make_batch(1, epoch=epoch)
        lengths = (SmoothAdv().adversary(layer, batch) - batch.x).norm(dim=1)
        np.testing.assert_allclose(lengths.detach(), 0.25 * share, rtol=1e-9)


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_the_attack_leaves_no_trace_in_the_network(attack: str) -> None:
    torch.manual_seed(0)
    network, batch = Wavy().train(), make_batch(2)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    SmoothAdv(draws=2, attack=attack).adversary(network, batch)  # type: ignore[arg-type]
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(module.training for module in network.modules())


def catrs_by_hand(layer: nn.Linear, batch: Batch, objective: CatRs) -> tuple[float, int]:
    """The formula, example by example and copy by copy, with the attack; and how many examples are sure."""
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    copies, total, sure = objective.draws, 0.0, 0
    for i, row in enumerate(logits_by_hand(layer, batch)):
        label, luck = int(batch.labels[i]), float(batch.uniform[i])
        losses = sorted(-log_softmax(copy)[label] for copy in row)
        votes = [int(copy.argmax()) for copy in row]
        chance = votes.count(label) / copies
        kept = max(1, next(k for k in range(copies + 1) if luck < binom.cdf(k, copies, chance)))
        total += sum(losses[:kept]) / copies
        if kept < copies:
            continue
        sure += 1
        target = np.bincount(votes, minlength=CLASSES) / copies
        worst = []
        for eps in batch.eps[i].numpy():
            noisy = batch.x[i].numpy() + float(batch.sigma[i]) * eps
            delta = np.zeros(PIXELS)
            for _ in range(objective.steps):
                slope = weight.T @ (softmax(weight @ (noisy + delta) + bias) - target)  # of the divergence
                delta = delta + 2 * objective.epsilon / objective.steps * slope / np.linalg.norm(slope)
                delta *= min(1.0, objective.epsilon / np.linalg.norm(delta))
            answer = log_softmax(weight @ (noisy + delta) + bias)
            worst.append(sum(t * (np.log(t) - a) for t, a in zip(target, answer, strict=True) if t > 0))
        total += objective.strength * max(worst)
    return total / len(batch.x), sure


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()], ids=["gaussian", "uniform"])
@pytest.mark.parametrize("seed", range(4))
def test_catrs_against_numpy(seed: int, noise: SmoothingDistribution) -> None:
    layer, batch = linear(seed), make_batch(4, examples=30, seed=seed, noise=noise)
    objective = CatRs(strength=1.5, epsilon=0.4, steps=3)
    expected, sure = catrs_by_hand(layer, batch, objective)
    assert 0 < sure < 30  # both parts of the loss are in it
    assert objective(layer, batch).loss.item() == pytest.approx(expected, rel=1e-9)


def test_catrs_gradient_against_finite_differences() -> None:
    """Without attack steps the loss is a smooth function of the weights: no attack moves with them."""
    layer, batch = linear(1), make_batch(4, examples=30, seed=1)
    objective = CatRs(steps=0)
    objective(layer, batch).loss.backward()  # type: ignore[no-untyped-call]
    assert layer.weight.grad is not None
    for place in [(0, 0), (1, 2), (2, 3)]:
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                layer.weight[place] += step
            values.append(catrs_by_hand(layer, batch, objective)[0])
            with torch.no_grad():
                layer.weight[place] -= step
        assert layer.weight.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("correct", range(5))
def test_catrs_keeps_a_binomial_number_of_copies(correct: int) -> None:
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    kept = CatRs().kept(torch.full((20_000,), correct), uniform)
    chances = binom.pmf(range(5), 4, correct / 4)
    chances[1] += chances[0]  # at least one copy is kept
    found = np.bincount(kept.numpy(), minlength=5)
    possible = [k for k in range(1, 5) if chances[k] > 0]
    assert found[possible].sum() == 20_000
    if len(possible) > 1:
        assert chisquare(found[possible], 20_000 * chances[possible]).pvalue > 1e-6


def test_the_catrs_attack_raises_the_divergence_inside_its_ball_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    network = Wavy().train()
    batch = make_batch(4, examples=40)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    noisy = batch.noise.add(batch.x, batch.sigma, batch.eps)
    target = torch.eye(CLASSES, dtype=torch.float64)[batch.labels].unsqueeze(1).expand(-1, 4, -1)
    with evaluating(network) as fixed:
        found = CatRs(epsilon=0.5).attack(fixed, noisy, batch.sigma, target)
        losses = [-(noisy_logits(fixed, x, batch.sigma).log_softmax(-1) * target).sum(-1) for x in (noisy, found)]
    assert (found - noisy).flatten(2).norm(dim=2).max() <= 0.5 * (1 + 1e-9)
    assert (losses[1] > losses[0]).double().mean() > 0.95
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_catrs_costs_at_most_what_it_says() -> None:
    layer, batch, passes = linear(), make_batch(4), []

    def network(x: Tensor) -> Tensor:
        passes.append(len(x) * (3 if torch.is_grad_enabled() else 1))
        logits: Tensor = layer(x)
        return logits

    objective = CatRs()
    objective(network, replace(as_answered(layer, batch), uniform=torch.full((5,), 0.999)))
    assert sum(passes) / len(batch.x) <= objective.passes
    sure = replace(batch, sigma=batch.sigma / 1e3)
    passes.clear()
    objective(network, as_answered(layer, sure))
    assert sum(passes) / len(batch.x) == objective.passes


@pytest.mark.parametrize("attack", ["pgd", "ddn", "catrs"])
def test_a_relative_radius_is_in_units_of_each_sigma(attack: str) -> None:
    """At one sigma for all it is the attack of epsilon times sigma; else each example gets its own ball."""
    torch.manual_seed(0)
    network, batch = Wavy().train(), make_batch(4, examples=8)

    def found(epsilon: float, sigma: Tensor, *, relative: bool) -> Tensor:
        """How far each example, or each of its copies, was moved."""
        part = replace(batch, sigma=sigma)
        if attack != "catrs":
            objective = SmoothAdv(draws=4, steps=3, attack=attack, epsilon=epsilon, relative=relative)  # type: ignore[arg-type]
            return objective.adversary(network, part) - batch.x
        noisy = batch.noise.add(batch.x, sigma, batch.eps)
        target = torch.eye(CLASSES, dtype=torch.float64)[batch.labels].unsqueeze(1).expand(-1, 4, -1)
        with evaluating(network) as fixed:
            return CatRs(epsilon=epsilon, relative=relative).attack(fixed, noisy, sigma, target) - noisy

    same = torch.full_like(batch.sigma, 0.5)
    torch.testing.assert_close(found(0.6, same, relative=True), found(0.3, same, relative=False))
    lengths = found(0.6, batch.sigma, relative=True).reshape(8, -1, PIXELS).norm(dim=2)
    assert (lengths <= 0.6 * batch.sigma.unsqueeze(1) * (1 + 1e-9)).all()
    assert lengths.std() > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_its_own_sigma(name: str) -> None:
    """Changing sigma of one example changes the logits of that one alone."""
    layer = linear()
    objective = make_objective(name)
    batch = make_batch(objective.draws)
    sigma = batch.sigma.clone()
    sigma[2] *= 2
    other = replace(batch, sigma=sigma)
    same = objective(layer, batch).logits == objective(layer, other).logits
    assert [bool(row.all()) for row in same] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("cohem", {}, "cohem"),
        ("macer", {"lamda": "3"}, "lamda"),
        ("macer", {"draws": "many"}, "draws"),
        ("macer", {"draws": 2.5}, "draws"),
        ("macer", {"hinge": "far"}, "hinge"),
        ("cohen", {"draws": "0"}, "draws"),
        ("smoothadv", {"attack": "fgsm"}, "attack"),
        ("smoothadv", {"steps": 0}, "steps"),
        ("macer", {"hinge": "nan"}, "hinge"),
        ("nowhere.at.all:Loss", {}, "nowhere"),
        ("sigmax.train:Batch", {}, "sigmax.train:Batch"),
        ("sigmax.train:Objective", {}, "sigmax.train:Objective"),
    ],
)
def test_what_cannot_be_is_refused(method: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        make_objective(method, options)


def test_options_may_be_texts() -> None:
    assert make_objective("smoothadv", {"epsilon": "0.5", "steps": "3"}) == SmoothAdv(epsilon=0.5, steps=3)
    assert make_objective("sigmax.train.objectives.cohen:Cohen") == make_objective("cohen")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Switched(Objective):
    """An objective of someone's own, with an option that has no default."""

    name = "switched"
    draws: int = 1
    is_on: bool
    pace: Literal["slow", "fast"] = "slow"

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        raise NotImplementedError


def test_options_of_ones_own_are_read_by_their_types() -> None:
    spec = f"{__name__}:Switched"
    for text, value in {"true": True, "False": False}.items():
        assert make_objective(spec, {"is_on": text}) == Switched(is_on=value)
    for options in ({"is_on": "no"}, {}):
        with pytest.raises(InvalidInputError, match="is_on"):
            make_objective(spec, options)
