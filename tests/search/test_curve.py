"""The curve through hits at several sigmas: near the truth, sure of what it can be sure of, never diverging."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from sigmax import Gaussian, Uniform
from sigmax.bounds import clopper_pearson_lower
from sigmax.noise import SmoothingDistribution
from sigmax.search import curve
from sigmax.search.curve import ExpectedRadii, fit_probits

SIGMAS = np.geomspace(0.0625, 0.5, 13)
GRID = np.geomspace(0.0625, 0.5, 49)


def test_the_curve_of_a_half_space_is_found_from_few_samples_at_each_sigma() -> None:
    """Where the truth is z = distance / sigma, 48 samples at each of 13 sigmas tell it to about 0.2 around z = 1.5."""
    rng = np.random.default_rng(0)
    distances = rng.uniform(0.1, 0.5, (200, 1))
    draws = np.full((200, 13), 48)
    mean, deviation = fit_probits(rng.binomial(draws, norm.cdf(distances / SIGMAS)), draws, SIGMAS, GRID)
    truth = distances / GRID
    is_seen = (truth > 0.5) & (truth < 2.5)
    errors = (mean - truth)[is_seen]
    assert np.sqrt((errors**2).mean()) < 0.25
    assert np.abs(errors / deviation[is_seen]).mean() < 1.2  # it knows how sure it is


def test_neighbours_correct_luck() -> None:
    """All hits at a sigma between full and few hits: alone it says p = 0.99, the curve says less."""
    hits, draws = np.full((1, 13), 48), np.full((1, 13), 48)
    hits[0, 9:] = [30, 10, 1, 0]
    mean, _ = fit_probits(hits, draws, SIGMAS, SIGMAS)
    assert mean[0, 8] < norm.ppf(48.5 / 49)
    assert mean[0, 4] > mean[0, 8]


shares = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0]))
counts = st.lists(st.tuples(st.integers(0, 100_000), shares), min_size=13, max_size=13)


@given(seen=counts)
@example(seen=[(100_000, float(i < 6)) for i in range(13)])  # a step,
@example(seen=[(100_000, float(i != 5)) for i in range(13)])  # a hole
@example(seen=[(100_000, float(i == 6)) for i in range(13)])  # and an island: whole steps of Newton's overshoot
def test_newton_has_converged_whatever_was_seen(seen: list[tuple[int, float]]) -> None:
    draws = np.array([[m for m, _ in seen]])
    hits = np.array([[round(m * share) for m, share in seen]])
    found = fit_probits(hits, draws, SIGMAS, GRID)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve, "_NEWTON", 300)
        patch.setattr(curve, "_STILL", 0.0)
        longer = fit_probits(hits, draws, SIGMAS, GRID)
    for one, other in zip(found, longer, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
def test_expected_radii_are_those_of_the_distribution(noise: SmoothingDistribution) -> None:
    def certified(z: float) -> float:
        p = clopper_pearson_lower(float(norm.cdf(z)) * 10_000, 10_000, alpha=0.001)
        return noise.radius(p, sigma=0.25) if p > 0.5 else 0.0

    radii = ExpectedRadii(noise, [0.25], n=10_000, alpha=0.001)
    for mean, deviation in [(2.0, 0.0), (1.0, 0.3), (2.5, 0.5), (-1.0, 0.1)]:
        found = radii(*(np.array([[value]]) for value in (mean, deviation)))
        truth = certified(mean)
        if deviation:
            truth = quad(lambda z: certified(z) * norm.pdf(z, mean, deviation), mean - 6 * deviation, 6.0)[0]  # noqa: B023
        assert found[0, 0] == pytest.approx(truth, abs=1e-3)


def test_what_was_never_drawn_says_nothing() -> None:
    nothing: NDArray[np.int64] = np.zeros((1, 13), dtype=np.int64)
    mean, deviation = fit_probits(nothing, nothing, SIGMAS, GRID)
    np.testing.assert_allclose(mean, 2.0, atol=1e-5)
    np.testing.assert_allclose(deviation, np.sqrt(5.0), atol=1e-5)
