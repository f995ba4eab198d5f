from math import comb, exp, log

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import beta, binom, binomtest

from sigmax.bounds import (
    anytime_lower,
    check_alpha,
    clopper_pearson_lower,
    clopper_pearson_upper,
    evidence_above,
    leads,
    top_class_p_value,
)
from sigmax.errors import InvalidInputError


@pytest.mark.parametrize(
    ("k", "n", "expected"),
    [
        (990, 1_000, 0.976036187),
        (1_000, 1_000, 0.993116048),
        (99_000, 100_000, 0.988989340),
        (100_000, 100_000, 0.999930925),
        (0, 1_000, 0.0),
    ],
)
def test_lower_bound_at_known_counts(k: int, n: int, expected: float) -> None:
    assert clopper_pearson_lower(k, n, alpha=1e-3) == pytest.approx(expected, abs=5e-10)


@given(st.integers(1, 400), st.data())
def test_lower_bound_inverts_the_exact_binomial_tail(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    alpha = data.draw(st.sampled_from([1e-4, 1e-3, 0.05]))
    p = clopper_pearson_lower(k, n, alpha=alpha)
    tail = sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
    assert tail == pytest.approx(alpha, rel=1e-8)


@pytest.mark.statistical
@pytest.mark.parametrize("p", [0.51, 0.8, 0.98])
def test_lower_bound_exceeds_truth_at_most_alpha(p: float) -> None:
    alpha, trials, repeats = 0.01, 500, 5_000
    counts = np.random.default_rng(0).binomial(trials, p, size=repeats)
    misses = sum(clopper_pearson_lower(int(k), trials, alpha=alpha) > p for k in counts)
    # A correct bound fails here for at most one seed in a million.
    assert misses <= binom.ppf(1 - 1e-6, repeats, alpha)


def test_upper_bound_at_known_counts() -> None:
    assert clopper_pearson_upper(10, 1_000, alpha=1e-3) == pytest.approx(float(beta.ppf(1 - 1e-3, 11, 990)), abs=1e-12)
    assert clopper_pearson_upper(7, 7, alpha=1e-3) == 1.0


def test_evidence_gives_the_known_anytime_lower_bound() -> None:
    root = brentq(lambda p0: evidence_above(990, 1_000, p0) - log(1e3), 0.9, 0.99)
    assert root == pytest.approx(0.971248263, abs=5e-10)


@given(st.integers(0, 40), st.data(), st.floats(0.05, 0.95))
def test_evidence_is_the_likelihood_averaged_over_the_alternatives(n: int, data: st.DataObject, p0: float) -> None:
    k = data.draw(st.integers(0, n))
    prior = beta(0.5, 0.5)

    def averaged(p: float) -> float:
        return float((p / p0) ** k * ((1 - p) / (1 - p0)) ** (n - k) * prior.pdf(p))

    weight = float(prior.sf(p0))
    expected = quad(averaged, p0, 1.0, limit=200)[0] / weight
    assert exp(evidence_above(k, n, p0)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.statistical
@pytest.mark.parametrize("p0", [0.5, 0.9, 0.977])
def test_evidence_for_what_is_false_is_rare_at_all_times_together(p0: float) -> None:
    """At the boundary p = p0, looking after every sample."""
    alpha, length, repeats = 0.05, 400, 1_000
    hits = np.random.default_rng(0).random((repeats, length)) < p0
    counts = hits.cumsum(axis=1)
    crossed = sum(any(evidence_above(int(k), n + 1, p0) >= log(1 / alpha) for n, k in enumerate(row)) for row in counts)
    assert crossed <= binom.ppf(1 - 1e-6, repeats, alpha)


@given(st.integers(0, 300), st.integers(0, 300))
def test_p_value_of_the_top_class_is_the_two_sided_binomial_test(a: int, b: int) -> None:
    top, runner_up = max(a, b), min(a, b)
    expected = 1.0 if top == 0 else binomtest(top, top + runner_up, 0.5).pvalue
    assert top_class_p_value(top, runner_up) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("k", "n", "p0"), [(16, 20, 0.5), (270, 300, 0.9), (293, 300, 0.977), (991, 1_000, 0.977)])
def test_evidence_is_rounded_down(k: int, n: int, p0: float) -> None:
    with mpmath.workdps(40):
        half, q = mpmath.mpf(1) / 2, mpmath.mpf(p0)
        tail, prior = (
            mpmath.betainc(a, b, q, 1, regularized=True) for a, b in ((half + k, half + n - k), (half, half))
        )
        whole = mpmath.log(mpmath.beta(half + k, half + n - k) / mpmath.beta(half, half) * tail / prior)
        truth = whole - k * mpmath.log(q) - (n - k) * mpmath.log(1 - q)
        assert truth - 1e-9 < evidence_above(k, n, p0) < truth


@pytest.mark.statistical
@pytest.mark.parametrize("defect", [0.0, 1e-11, 1e-3, 1e-2])
def test_a_class_that_leads_only_by_the_defect_is_rarely_taken_for_the_leader(defect: float) -> None:
    n, alpha, repeats = 1_000, 0.02, 20_000
    tops = np.random.default_rng(0).binomial(n, 0.5 + defect, size=repeats)
    said = {top: leads(top, n - top, n=n, alpha=alpha, defect=defect) for top in set(tops.tolist())}
    misses = sum(said[top] for top in tops.tolist())
    assert misses <= binom.ppf(1 - 1e-6, repeats, alpha)
    assert leads(600, 400, n=n, alpha=alpha, defect=defect)
    if defect <= 1e-11:
        assert all(answer == (top_class_p_value(top, n - top) <= alpha) for top, answer in said.items())


@pytest.mark.parametrize(("k", "n", "alpha"), [(5, 4, 0.1), (-1, 4, 0.1), (0, 0, 0.1), (1, 2, 0.0), (1, 2, 1.0)])
def test_impossible_counts_and_levels_are_refused(k: int, n: int, alpha: float) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        clopper_pearson_lower(k, n, alpha=alpha)


def test_a_failure_probability_whose_shares_would_be_zero_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least 1e-300, got alpha=5e-324"):
        check_alpha(5e-324)


def test_anytime_bound_at_known_counts() -> None:
    assert anytime_lower(990, 1_000, alpha=1e-3) == pytest.approx(0.971248263, abs=5e-9)
    assert anytime_lower(0, 1_000, alpha=1e-3) == 0.0
    assert anytime_lower(0, 0, alpha=1e-3) == 0.0
    assert 0.99 < anytime_lower(1_000, 1_000, alpha=1e-3) < clopper_pearson_lower(1_000, 1_000, alpha=1e-3)


@given(st.integers(1, 2_000), st.data())
def test_there_is_evidence_against_all_below_the_anytime_bound(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    alpha = data.draw(st.sampled_from([1e-6, 1e-3, 0.05, 0.5]))
    bound = anytime_lower(k, n, alpha=alpha)
    assert bound < k / n
    for share in (1.0, 0.99, 0.5, 0.01):
        if bound * share > 0.0:
            assert evidence_above(k, n, bound * share) >= -log(alpha)


@pytest.mark.statistical
@pytest.mark.parametrize("p", [0.6, 0.97])
def test_the_anytime_bound_ever_exceeds_the_truth_at_most_alpha(p: float) -> None:
    alpha, repeats, looks = 0.05, 200, np.unique(np.geomspace(1, 3_000, 25).astype(int))
    hits = (np.random.default_rng(0).random((repeats, 3_000)) < p).cumsum(axis=1)
    misses = sum(any(anytime_lower(int(row[n - 1]), int(n), alpha=alpha) > p for n in looks) for row in hits)
    # A correct bound fails here for at most one seed in a million.
    assert misses <= binom.ppf(1 - 1e-6, repeats, alpha)
