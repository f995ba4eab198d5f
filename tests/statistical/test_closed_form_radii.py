"""The promise of a certificate, tested as a frequency against radii known in closed form."""

import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom

from oracles import AxisThreshold, FixedProbabilities, HalfSpace
from sigmax import (
    AscentSearch,
    FixedSigma,
    Gaussian,
    GridSearch,
    HalvingSearch,
    PointCertificate,
    SigmaSearch,
    SmoothedClassifier,
    Uniform,
)
from sigmax.bounds import clopper_pearson_lower

ALPHA, N = 0.01, 2_000


def misses_allowed(repeats: int) -> float:
    """A correct certificate exceeds this for at most one seed in a million."""
    return float(binom.ppf(1 - 1e-6, repeats, ALPHA))


@pytest.mark.statistical
@pytest.mark.parametrize("ratio", [0.25, 1.0, 2.0])
def test_half_space_in_3072_dimensions(ratio: float) -> None:
    sigma, repeats, plane = 0.25, 150, HalfSpace(3_072).eval()
    distance = ratio * sigma
    x = plane.at_distance(torch.full((repeats,), distance))
    certificates = SmoothedClassifier(plane, num_classes=2, sigma=sigma).certify(x, n=N, alpha=ALPHA)
    assert sum(c.radius > distance for c in certificates) <= misses_allowed(repeats)
    assert all(c.label in (1, None) for c in certificates)
    # The best possible for this n: the bound at the mean count.
    best = Gaussian().radius(clopper_pearson_lower(ndtr(ratio) * N, N, alpha=ALPHA), sigma=sigma)
    assert sum(c.radius for c in certificates) / repeats >= 0.97 * best


@pytest.mark.statistical
@pytest.mark.parametrize("ratio", [0.2, 0.6, 0.95])
def test_axis_threshold_in_3072_dimensions_under_uniform_noise(ratio: float) -> None:
    half_width, repeats = 0.5, 150
    distance = ratio * half_width
    x = torch.zeros(repeats, 3_072)
    x[:, 0] = distance
    smoothed = SmoothedClassifier(AxisThreshold().eval(), num_classes=2, noise=Uniform(), sigma=half_width)
    certificates = smoothed.certify(x, n=N, alpha=ALPHA)
    assert {c.norm for c in certificates} == {1}
    assert sum(c.radius > distance for c in certificates) <= misses_allowed(repeats)
    best = Uniform().radius(clopper_pearson_lower((1 + ratio) / 2 * N, N, alpha=ALPHA), sigma=half_width)
    assert sum(c.radius for c in certificates) / repeats >= 0.97 * best


@pytest.mark.statistical
@pytest.mark.parametrize(
    "search",
    [
        AscentSearch(initial=0.25, steps=40, step_size=0.01, pilot=100),
        AscentSearch.paper(initial=0.25, steps=40),
        HalvingSearch(initial=0.25),
        GridSearch(initial=0.25, evaluations=80, samples=4),
        FixedSigma(0.25),
    ],
)
def test_per_input_sigma_on_a_half_space_keeps_the_promise(search: SigmaSearch) -> None:
    repeats, plane = 400, HalfSpace(32, sharpness=20.0).eval()
    distance = torch.linspace(0.05, 0.8, repeats)
    certificates = SmoothedClassifier(plane, num_classes=2, sigma=search).certify(
        plane.at_distance(distance), n=N, alpha=ALPHA
    )
    misses = sum(c.radius > float(d) for c, d in zip(certificates, distance, strict=True))
    assert misses <= misses_allowed(repeats)
    if isinstance(search, AscentSearch | HalvingSearch):  # the grid has few sigmas, and judges them by softmax
        assert len({c.sigma for c in certificates}) > repeats / 10
        assert sum(c.radius for c in certificates) / float(distance.sum()) > 0.85


@pytest.mark.statistical
def test_probability_bound_fails_at_most_alpha_through_the_whole_of_certify() -> None:
    truth, repeats, n = [0.25, 0.6, 0.15], 1_500, 200
    smoothed = SmoothedClassifier(FixedProbabilities(truth).eval(), num_classes=3, sigma=1.0)
    certificates = smoothed.certify(torch.zeros(repeats, 1), n=n, n0=20, alpha=ALPHA)
    answered = [c for c in certificates if c.label is not None]
    assert sum(c.p_lower > truth[c.label] for c in answered if c.label is not None) <= misses_allowed(repeats)
    assert len(answered) > repeats / 3


@pytest.mark.statistical
def test_prediction_is_wrong_at_most_alpha() -> None:
    repeats = 1_500
    smoothed = SmoothedClassifier(FixedProbabilities([0.44, 0.36, 0.2]).eval(), num_classes=3, sigma=1.0)
    answers = smoothed.predict(torch.zeros(repeats, 1), n=500, alpha=ALPHA)
    assert sum(answer not in (0, None) for answer in answers) <= misses_allowed(repeats)
    assert sum(answer == 0 for answer in answers) > repeats / 4


def test_certificates_of_equal_probability_name_their_settings() -> None:
    (certificate,) = SmoothedClassifier(FixedProbabilities([1.0, 0.0]).eval(), num_classes=2, sigma=0.5).certify(
        torch.zeros(1, 1), n=1_000, alpha=0.001
    )
    assert certificate.p_lower == pytest.approx(0.001 ** (1 / 1_000) - 2.0**-30, abs=1e-12)
    assert certificate == PointCertificate(
        label=0,
        radius=Gaussian().radius(certificate.p_lower, sigma=0.5),
        sigma=0.5,
        p_lower=certificate.p_lower,
        n=1_000,
        alpha=0.001,
        norm=2,
    )
