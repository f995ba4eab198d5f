import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm
from torch import Tensor

from sigmax import Gaussian, SmoothedClassifier, SmoothingDistribution, Uniform
from sigmax.errors import InvalidInputError
from sigmax.noise import find_noise
from sigmax.streams import Stage, Stream, random_stream
from toy import Wide, half_space

probabilities = st.floats(0.500001, 1 - 1e-9)

CPU = torch.device("cpu")


@given(probabilities, st.floats(0.01, 10))
def test_gaussian_radius_is_sigma_times_the_normal_quantile(p: float, sigma: float) -> None:
    expected = sigma * norm.ppf(p)
    radius = Gaussian().radius(p, sigma=sigma)
    assert radius == pytest.approx(expected, rel=1e-12)
    assert radius <= expected


@given(probabilities, st.floats(0.01, 10))
def test_uniform_radius_is_lambda_times_the_gap(p: float, sigma: float) -> None:
    radius = Uniform().radius(p, sigma=sigma)
    assert radius == pytest.approx(sigma * (2 * p - 1), rel=1e-9, abs=1e-14)
    assert radius <= sigma * (2 * p - 1)


def test_runner_up_bound_gives_the_two_sided_radius() -> None:
    assert Gaussian().radius(0.6, sigma=0.5, p_upper=0.1) == pytest.approx(0.25 * (norm.ppf(0.6) - norm.ppf(0.1)))
    assert Uniform().radius(0.6, sigma=0.5, p_upper=0.1) == pytest.approx(0.25)
    assert Gaussian().radius(0.4, sigma=0.5, p_upper=0.3) > 0  # also below one half


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
@pytest.mark.parametrize(("p", "q"), [(0.5, None), (1.0, None), (0.3, 0.3), (0.4, 0.6), (float("nan"), None)])
def test_radius_is_refused_where_nothing_is_certified(noise: SmoothingDistribution, p: float, q: float | None) -> None:
    with pytest.raises(InvalidInputError, match=f"p_lower={p}"):
        noise.radius(p, sigma=1.0, p_upper=q)


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
@pytest.mark.parametrize("label", [None, [2, 0]])
def test_soft_radius_agrees_with_numpy_and_its_slope_with_finite_differences(
    noise: SmoothingDistribution, label: list[int] | None
) -> None:
    base = torch.tensor([[0.2, 0.1, 0.7], [0.5, 0.3, 0.2]], dtype=torch.float64)
    sigma = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)
    classes = None if label is None else torch.tensor(label)

    def radius(level: Tensor) -> Tensor:
        probs = (base * torch.exp(-level[:, None] * torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64))).double()
        return noise.soft_radius(probs / probs.sum(1, keepdim=True), level, label=classes)

    value = radius(sigma)
    for row, (p, s) in enumerate(zip(_normalised(base, sigma), sigma.tolist(), strict=True)):
        top = int(np.argmax(p)) if label is None else label[row]
        other = np.max(np.delete(p, top))
        expected = s / 2 * (norm.ppf(p[top]) - norm.ppf(other)) if noise.norm == 2 else s * (p[top] - other)
        assert float(value[row].detach()) == pytest.approx(float(expected), rel=1e-9)
    (slope,) = torch.autograd.grad(value.sum(), sigma)
    step = 1e-6
    numeric = (radius(sigma.detach() + step) - radius(sigma.detach() - step)) / (2 * step)
    assert torch.allclose(slope, numeric, rtol=1e-6)


def _normalised(base: Tensor, sigma: Tensor) -> list[np.ndarray]:
    weights = base.numpy() * np.exp(-sigma.detach().numpy()[:, None] * np.array([0.5, 0.1, 0.9]))
    return list(weights / weights.sum(1, keepdims=True))


def test_every_sigma_is_paired_with_its_own_input() -> None:
    x = torch.arange(3.0).view(3, 1) * 100
    sigma = torch.tensor([1e-3, 1.0, 10.0])
    streams = [random_stream(0, i, Stage.SEARCH, CPU) for i in range(3)]
    noisy = Gaussian().perturb(x, sigma, n=500, streams=streams)
    assert noisy.shape == (3, 500, 1)
    assert torch.allclose(noisy.mean(dim=(1, 2)), x[:, 0], atol=1.5)
    assert torch.allclose(noisy.std(dim=1)[:, 0] / sigma, torch.ones(3), rtol=0.15)


@pytest.mark.statistical
@pytest.mark.parametrize(("noise", "law"), [(Gaussian(), "norm"), (Uniform(), "uniform")])
def test_noise_follows_its_law(noise: SmoothingDistribution, law: str) -> None:
    stream = random_stream(0, 0, Stage.SEARCH, CPU)
    sample = noise.draw(stream, 40, (1_000,), dtype=torch.float32).flatten().numpy()
    args = () if law == "norm" else (-1.0, 2.0)
    assert kstest(sample, law, args=args).pvalue > 1e-4
    assert math.isfinite(sample.max())


@pytest.mark.parametrize("noise", [Gaussian(), Uniform(), Wide(3.0)])
def test_only_the_distribution_adds_noise(noise: SmoothingDistribution) -> None:
    """`write` fills a batch with what `add` makes of the same draws."""
    # Fixed: a sum that happens to be near 0 has no five digits.
    x, sigma = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]), 0.3

    def stream() -> Stream:
        return random_stream(0, 1, Stage.SEARCH, CPU)

    eps = noise.draw(stream(), 8, (5,), dtype=torch.float32)
    expected = noise.add(x[None], torch.tensor([sigma]), eps[None])[0]
    for rows in (8, 3):
        out = torch.empty(rows, 5)
        noise.write(out, x, sigma=sigma, stream=stream())
        assert torch.allclose(out, expected[:rows])


def test_noises_are_found_by_name_by_norm_or_by_place() -> None:
    assert find_noise("gaussian") == find_noise("l2") == Gaussian()
    assert find_noise("uniform") == find_noise("l1") == Uniform()
    assert find_noise("toy:Wide") == Wide()
    with pytest.raises(InvalidInputError, match="gaussian"):
        find_noise("gausian")
    with pytest.raises(InvalidInputError, match="toy:half_space"):
        find_noise("toy:half_space")


def test_noise_of_ones_own_is_a_noise_of_its_own() -> None:
    """A memory holds answers under one noise: those of another class, or of other settings, are not for it."""
    noises = (Gaussian(), Wide(), Wide(3.0))
    found = [SmoothedClassifier(half_space(), num_classes=2, noise=noise) for noise in noises]
    assert len({smoothed.fingerprint for smoothed in found}) == 3
    x = torch.full((1, 4), 0.5)
    narrow, wide = (
        SmoothedClassifier(half_space(), num_classes=2, noise=noise, sigma=sigma).certify(x, n=500)[0]
        for noise, sigma in ((Gaussian(), 0.5), (Wide(), 0.25))
    )
    assert narrow.radius == pytest.approx(wide.radius, rel=1e-6)  # 2 * 0.25
