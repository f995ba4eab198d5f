"""Networks that are told a noise level: the layers against NumPy, and the plain network as their start."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from sigmax.data import ArraySource
from sigmax.errors import ModelError
from sigmax.models import build_network
from sigmax.models.levels import LevelCode, LevelNorm, nearest_level, told
from sigmax.train import Recipe, SigmaRange, Training
from sigmax.train.training import fresh_network

PLAIN = ["patch-resnet10", "resnet20"]
TAU = torch.tensor([0.06, 0.12, 0.5, 1.0, 0.25])


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def level_norm() -> LevelNorm:
    """A layer in double precision whose weights and statistics are all set to something."""
    layer = LevelNorm(3).double()
    for tensor in (*layer.parameters(), layer.running_mean):
        assert tensor is not None
        nn.init.normal_(tensor)
    return layer


def normalised(layer: LevelNorm, x: Tensor, code: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The layer in NumPy, row by row."""
    weight, bias = layer.film.weight.detach().numpy(), layer.film.bias.detach().numpy()
    rows = []
    for image, numbers in zip(x.numpy(), code.numpy(), strict=True):
        y = (image - mean.numpy()[:, None, None]) / np.sqrt(var.numpy()[:, None, None] + 1e-5)
        y = layer.weight.detach().numpy()[:, None, None] * y + layer.bias.detach().numpy()[:, None, None]
        film = weight @ numbers + bias
        rows.append(y * (1 + film[:3, None, None]) + film[3:, None, None])
    return torch.from_numpy(np.stack(rows))


def test_level_norm_against_numpy() -> None:
    layer = level_norm()
    x, code = torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.randn(5, 64, dtype=torch.float64)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    expected = normalised(layer, x, code, layer.running_mean, layer.running_var)
    torch.testing.assert_close(layer.eval()(x, code).detach(), expected)
    mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(layer.train()(x, code).detach(), normalised(layer, x, code, mean, var))


@pytest.mark.parametrize("is_training", [False, True])
def test_one_code_for_the_batch_is_that_code_for_every_row(is_training: bool) -> None:
    layer = level_norm().train(is_training)
    x, code = torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.randn(1, 64, dtype=torch.float64)
    torch.testing.assert_close(layer(x, code), layer(x, code.expand(5, -1)))


@pytest.mark.parametrize("codes", [1, 5])
def test_level_norm_gradients_against_finite_differences(codes: int) -> None:
    layer = level_norm().eval()
    x, code = torch.randn(5, 3, 2, 2, dtype=torch.float64), torch.randn(codes, 64, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)

    def out(x: Tensor, code: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, code))  # type: ignore[no-any-return]

    inputs = (x, code, *(value.detach() for value in values))
    assert torch.autograd.gradcheck(out, tuple(each.requires_grad_() for each in inputs))


def test_level_code_against_numpy() -> None:
    layer = LevelCode()

    def silu(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return z * expit(z)  # type: ignore[no-any-return]

    first, second = (
        (linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy())
        for linear in (layer.hidden, layer.out)
    )
    for tau, code in zip(TAU.double().numpy(), layer(TAU).detach(), strict=True):
        hidden = silu(first[0] @ [np.log(tau / 0.25)] + first[1])
        np.testing.assert_allclose(code, silu(second[0] @ hidden + second[1]), rtol=1e-4, atol=1e-6)
    # The slope in the level, which the sigma ascent follows, against a finite difference.
    tau, step = TAU.clone().requires_grad_(), 0.01 * TAU
    (slope,) = torch.autograd.grad(layer(tau).sum(), tau)
    difference = (layer(TAU + step) - layer(TAU - step)).detach().sum(dim=1) / (2 * step)
    torch.testing.assert_close(slope, difference, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("arch", PLAIN)
def test_a_noise_aware_network_begins_as_the_plain_one(arch: str, is_training: bool) -> None:
    plain, aware = (
        build_network(name, num_classes=4, in_channels=3).train(is_training) for name in (arch, f"{arch}-aware")
    )
    aware.load_state_dict(plain.state_dict(), strict=False)
    x = torch.rand(5, 3, 16, 16)
    expected = plain(x)
    for tau in (TAU, TAU[:1]):
        torch.testing.assert_close(told(aware, x, tau), expected)


def test_every_row_is_told_its_own_level() -> None:
    network = build_network("patch-resnet10-aware", num_classes=4, in_channels=3).eval()
    for name, parameter in network.named_parameters():
        if "film" in name:
            nn.init.normal_(parameter, std=0.1)
    x = torch.rand(5, 3, 16, 16)
    logits = told(network, x, TAU)
    for row, tau in enumerate(TAU):
        torch.testing.assert_close(told(network, x[row : row + 1], tau[None])[0], logits[row], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(told(network, x, TAU.flip(0)), logits, atol=1e-2)


def test_a_training_of_a_noise_aware_network_may_start_from_a_plain_one() -> None:
    pixels = np.random.default_rng(0).random((32, 3, 16, 16), dtype=np.float32)
    data = ArraySource("made up", pixels, np.arange(32) % 4, "abcd", levels=None)
    recipe = Recipe(arch="resnet20-aware", sigma=0.25, sigma_source=SigmaRange(bounds=(0.06, 1.0)), epochs=1, batch=16)
    plain = fresh_network(Recipe(arch="resnet20", sigma=0.25, seed=1), data).eval()
    training = Training(recipe, data, network=plain)
    x = torch.from_numpy(pixels[:5])
    with torch.no_grad():
        torch.testing.assert_close(told(training.network.eval(), x, TAU), plain(x))
    assert training.start == Training(Recipe(arch="resnet20", sigma=0.25), data, network=plain).start is not None
    list(training)
    with torch.no_grad():
        assert not torch.equal(told(training.network.eval(), x, TAU), told(training.network, x, TAU.flip(0)))
    with pytest.raises(ModelError, match="resnet20"):
        Training(recipe, data, network=fresh_network(Recipe(arch="resnet56", sigma=0.25), data))


def test_levels_are_few_near_and_inside_the_range() -> None:
    tau = torch.from_numpy(np.geomspace(0.01, 5.0, 2_000)).float()
    levels = nearest_level(tau, (0.06, 1.0))
    assert (float(levels.min()), float(levels.max())) == (0.0625, 1.0)
    assert len(set(levels.tolist())) < 40
    inside = (tau > 0.0626) & (tau < 1.0)
    assert ((levels / tau).log2().abs() < 1 / 16 + 1e-5)[inside].all()
    assert torch.equal(nearest_level(levels, (0.06, 1.0)), levels)  # it is its own nearest level
    assert float(nearest_level(torch.tensor(9.0), (0.06, 1.4))) == pytest.approx(1.4)
    for usual in (0.0625, 0.125, 0.25, 0.5, 1.0):
        assert float(nearest_level(torch.tensor(usual), (0.06, 1.4))) == usual
    free = torch.tensor([0.1, 0.3], requires_grad=True)
    (slope,) = torch.autograd.grad(nearest_level(free, (0.06, 1.0)).sum(), free)
    torch.testing.assert_close(slope, torch.ones(2), rtol=0.05, atol=0)
