"""Certificates that stop early: the failure frequency counts all looks, and nothing is lost but samples."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm
from torch import Tensor

from oracles import FixedProbabilities, HalfSpace
from sigmax import Gaussian, SmoothedClassifier, Uniform
from sigmax.bounds import clopper_pearson_lower, evidence_above
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.estimation import Anytime, AtRadii, Claim, Counts, Estimate, PlannedLooks, certificate

ALPHA = 0.02
CLAIM = Claim(label=0, sigma=0.5, noise=Gaussian(), alpha=ALPHA)


def simulate(estimate: Estimate, p: list[float], random: np.random.Generator) -> PointCertificate:
    """Draw from classes with these probabilities until the estimate is done."""
    counts, n = np.zeros(len(p), dtype=int), 0
    while True:
        more = estimate.next_look(n) - n
        assert more > 0
        counts, n = counts + random.multinomial(more, p), n + more
        answer = estimate.look(Counts(n=n, hits=int(counts[0]), rival=int(counts[1:].max())))
        if answer is not None:
            return answer


def true_radius(p: list[float], *, runner_up: bool = False) -> float:
    rival = max(p[1:]) if runner_up else 1 - p[0]
    return max(0.0, 0.25 * float(norm.ppf(p[0]) - norm.ppf(rival)))


@pytest.mark.statistical
@pytest.mark.parametrize("p", [[0.5, 0.5], [0.6, 0.2, 0.2], [0.9, 0.1], [0.97, 0.02, 0.01]])
@pytest.mark.parametrize("kind", ["looks", "runner-up", "at"])
def test_all_looks_together_fail_at_most_alpha(kind: str, p: list[float]) -> None:
    repeats, random = 2_000, np.random.default_rng(0)
    failures = 0
    truth = true_radius(p, runner_up=kind == "runner-up")
    for _ in range(repeats):
        estimate: Estimate
        if kind == "at":
            # Radii closely above the truth are where a false proof is most likely.
            radii = tuple(truth + 0.5 * step for step in (-0.2, 0.0, 0.001, 0.01, 0.1) if truth + 0.5 * step >= 0)
            estimate = AtRadii(CLAIM, radii=radii, n=4_000)
        else:
            estimate = PlannedLooks(CLAIM, n=20_000, tolerance=0.05, runner_up=kind == "runner-up")
        answer = simulate(estimate, p, random)
        failures += answer.label is not None and (answer.radius > truth or max(p) != p[0] or p[0] == p[1])
    # A correct estimation fails here for at most one seed in a million.
    assert failures <= binom.ppf(1 - 1e-6, repeats, ALPHA)


def test_looks_stop_early_where_nothing_is_to_be_gained() -> None:
    random = np.random.default_rng(0)

    def used(p: list[float], tolerance: float) -> list[PointCertificate]:
        looks = [PlannedLooks(CLAIM, n=100_000, tolerance=tolerance) for _ in range(20)]
        return [simulate(estimate, p, random) for estimate in looks]

    assert max(c.n for c in used([0.3, 0.7], 0.01)) == 1_024  # it can only abstain
    assert min(c.n for c in used([1.0, 0.0], 0.01)) == 100_000  # each sample makes it larger
    loose, strict = used([0.9, 0.1], 0.1), used([0.9, 0.1], 0.01)
    assert np.mean([c.n for c in loose]) < 12_000 < np.mean([c.n for c in strict]) <= 100_000
    full = 0.5 * norm.ppf(clopper_pearson_lower(90_000, 100_000, alpha=ALPHA))
    assert np.mean([c.radius for c in loose]) > 0.9 * full
    assert np.mean([c.radius for c in strict]) > 0.985 * full


def test_the_last_look_has_most_of_alpha() -> None:
    looks = PlannedLooks(CLAIM, n=100_000, tolerance=0.01)
    assert sum(looks.alphas.values()) == pytest.approx(ALPHA)
    assert looks.alphas[100_000] > 0.9 * ALPHA
    last = looks.look(Counts(n=100_000, hits=100_000, rival=0))
    one = PlannedLooks(CLAIM, n=100_000).look(Counts(n=100_000, hits=100_000, rival=0))
    assert last is not None
    assert one is not None
    assert last.radius > 0.998 * one.radius


@given(st.integers(1, 3_000), st.data(), st.floats(0.05, 0.9), st.floats(1e-3, 0.09))
def test_evidence_falls_as_the_claim_grows(n: int, data: st.DataObject, p0: float, step: float) -> None:
    """A proof for a larger radius is one for every smaller one: why `AtRadii` needs no correction."""
    k = data.draw(st.integers(0, n))
    larger = evidence_above(k, n, p0 + step)
    assert larger <= evidence_above(k, n, p0) + 1e-9 or larger < log(2)


def test_questions_are_answered_with_few_samples() -> None:
    random = np.random.default_rng(0)
    p = float(norm.cdf(0.6 / 0.5))  # the radius is 0.6
    answers = [
        simulate(AtRadii(CLAIM, radii=(0.25, 0.5, 0.75, 1.0), n=100_000), [p, 1 - p], random) for _ in range(200)
    ]
    assert {c.radius for c in answers} == {0.5}
    assert np.mean([c.n for c in answers]) < 1_500
    hopeless = [simulate(AtRadii(CLAIM, radii=(0.25,), n=100_000), [0.3, 0.7], random) for _ in range(200)]
    assert {c.label for c in hopeless} == {None}
    assert np.mean([c.n for c in hopeless]) < 300
    assert all(answer.p_lower == 0.0 for answer in hopeless if answer.label is None)  # nothing was proved


def test_a_question_on_the_edge_ends_when_the_samples_left_could_not_prove_it() -> None:
    p = float(norm.cdf(0.5 / 0.5))
    answer = simulate(AtRadii(CLAIM, radii=(0.5,), n=3_000), [p, 1 - p], np.random.default_rng(0))
    assert (answer.radius, answer.label) == (0.0, 0)
    assert 2_000 < answer.n <= 3_000


def test_a_radius_that_all_samples_could_not_prove_costs_none() -> None:
    random = np.random.default_rng(0)
    alone, beside = (
        simulate(AtRadii(CLAIM, radii=radii, n=10_000), [1.0, 0.0], random) for radii in ((0.25,), (0.25, 2.0))
    )
    assert (beside.radius, beside.n) == (alone.radius, alone.n)
    assert alone.radius == 0.25
    assert alone.n < 64


@given(st.integers(0, 2_000), st.integers(1, 2_000), st.floats(0.5, 0.999))
def test_no_hit_is_worth_more_than_a_run_of_hits(n: int, left: int, p0: float) -> None:
    """What a run of hits to the end cannot prove, nothing can: why a question may end early."""
    rng = np.random.default_rng(n)
    hits = int(rng.integers(0, n + 1))
    path = rng.random(left) < 0.9
    best = max(
        evidence_above(hits + int(path[:i].sum()), n + i, p0) for i in np.linspace(1, left, 20, dtype=int).tolist()
    )
    bound = max(evidence_above(hits, n, p0), evidence_above(hits + left, n + left, p0))
    assert best <= bound + 1e-6 or best < log(2)


def test_runner_up_bound_against_the_formula() -> None:
    counts = Counts(n=1_000, hits=600, rival=150)
    found = certificate(CLAIM, counts, alpha=0.001, runner_up=True)
    lower = beta.ppf(0.00095, 600, 401)
    upper = beta.ppf(1 - 0.00005, 151, 850)
    assert found.radius == pytest.approx(0.25 * (norm.ppf(lower) - norm.ppf(upper)), abs=1e-9)
    assert found.radius > 1.5 * certificate(CLAIM, counts, alpha=0.001, runner_up=False).radius


@given(st.integers(100, 5_000), st.data())
def test_runner_up_bound_never_loses_more_than_its_share(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(n // 2, n))
    rival = data.draw(st.integers(0, n - hits))
    with_bound = certificate(CLAIM, Counts(n=n, hits=hits, rival=rival), alpha=0.001, runner_up=True)
    without = certificate(CLAIM, Counts(n=n, hits=hits, rival=rival), alpha=0.001, runner_up=False)
    assert with_bound.radius >= without.radius - 0.004 * CLAIM.sigma


def test_runner_up_certifies_below_one_half() -> None:
    counts = Counts(n=10_000, hits=4_500, rival=1_500)
    assert certificate(CLAIM, counts, alpha=0.001, runner_up=False).label is None
    assert certificate(CLAIM, counts, alpha=0.001, runner_up=True).label == 0


@pytest.mark.parametrize("noise", [Gaussian(), Uniform()])
@pytest.mark.parametrize("radius", [0.0, 0.1, 0.3])
def test_the_probability_of_a_radius_inverts_it(noise: Gaussian | Uniform, radius: float) -> None:
    p = noise.probability(radius, sigma=0.5)
    assert p >= 0.5
    if radius:
        assert noise.radius(p, sigma=0.5) == pytest.approx(radius, abs=1e-12)
        assert noise.radius(min(p + 1e-12, 1 - 1e-16), sigma=0.5) >= radius - 1e-15
    assert Uniform().probability(0.6, sigma=0.5) == 1.0


def half_space(**more: object) -> tuple[SmoothedClassifier, torch.Tensor]:
    model = HalfSpace(48).eval()
    return SmoothedClassifier(model, num_classes=2, sigma=0.5, **more), model.at_distance(  # type: ignore[arg-type]
        torch.tensor([0.1, 0.3, 0.6, 0.9, 2.5])
    )


def test_certify_at_answers_a_half_space() -> None:
    g, x = half_space()
    answers = g.certify_at(x, [0.25, 0.5, 0.75], n=20_000)
    assert [c.radius for c in answers] == [0.0, 0.25, 0.5, 0.75, 0.75]
    assert all(c.label == 1 for c in answers)
    assert answers[-1].n < 1_000


def test_tolerance_keeps_the_answers_and_uses_fewer_samples() -> None:
    g, x = half_space()
    full, early = g.certify(x, n=60_000), g.certify(x, n=60_000, tolerance=0.05)
    for a, b in zip(full, early, strict=True):
        assert b.label == a.label
        assert 0.9 * a.radius <= b.radius <= 1.02 * a.radius
    assert sum(c.n for c in early) < 0.6 * sum(c.n for c in full)


@pytest.mark.parametrize("more", [{"tolerance": 0.05}, {"radii": (0.25, 0.5)}, {"runner_up": True}, {"n_wrong": 500}])
def test_an_early_answer_does_not_depend_on_its_neighbours(more: dict[str, object]) -> None:
    g, x = half_space(batch_size=256)
    budget = Budget(n=8_000, **more)  # type: ignore[arg-type]
    truth = [1, 0, 0, 1, 0]
    job = g.job(x, budget, truth=truth)
    together = g.certify_job(job)
    assert [g.certify_job(job[i : i + 1])[0] for i in range(len(x))] == together


@pytest.mark.parametrize("more", [{}, {"tolerance": 0.05}, {"radii": (0.25, 0.5)}])
def test_wrong_classes_get_fewer_samples_and_right_ones_the_same_answer(more: dict[str, object]) -> None:
    g, x = half_space(batch_size=256)
    full = g.certify_job(g.job(x, Budget(n=8_000, **more)))  # type: ignore[arg-type]
    done: list[int] = []
    budget = Budget(n=8_000, n_wrong=1_000, **more)  # type: ignore[arg-type]
    found = g.certify_job(g.job(x, budget, truth=[1, 0, 0, 1, 1], on_progress=done.append))
    assert [found[i] for i in (0, 3, 4)] == [full[i] for i in (0, 3, 4)]
    assert all(found[i].n <= 1_000 and found[i].label == 1 for i in (1, 2))
    assert sum(done) == len(x) * 8_100
    assert g.certify_job(g.job(x, budget)) == full  # nothing is known to be wrong


def test_impossible_numbers_for_wrong_classes_are_refused() -> None:
    for n_wrong in (0, 8_001):
        with pytest.raises(InvalidInputError, match=f"n_wrong={n_wrong}"):
            Budget(n=8_000, n_wrong=n_wrong)
    g, x = half_space()
    with pytest.raises(InvalidInputError, match="1 for 5"):
        g.job(x, Budget(), truth=[1])


def test_progress_adds_up_where_inputs_stop_early() -> None:
    g, x = half_space()
    done: list[int] = []
    g.certify(x, n=20_000, tolerance=0.05, on_progress=done.append)
    assert sum(done) == len(x) * 20_100


def test_runner_up_through_the_whole_certification() -> None:
    model = FixedProbabilities([0.6, 0.1, 0.1, 0.1, 0.1]).eval()
    g = SmoothedClassifier(model, num_classes=5, sigma=1.0)
    plain, wider = (g.certify(torch.zeros(1, 4), n=20_000, runner_up=r)[0] for r in (False, True))
    assert plain.radius == pytest.approx(norm.ppf(0.6), abs=0.06)
    assert wider.radius == pytest.approx((norm.ppf(0.6) - norm.ppf(0.1)) / 2, abs=0.06)


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_impossible_tolerances_are_refused(tolerance: float) -> None:
    g, x = half_space()
    with pytest.raises(InvalidInputError, match=f"tolerance={tolerance}"):
        g.certify(x, tolerance=tolerance)


def test_radii_that_are_no_radii_are_refused() -> None:
    g, x = half_space()
    for radii in ([], [-0.1], [float("inf")]):
        with pytest.raises(InvalidInputError, match="radii"):
            g.certify_at(x, radii)


@pytest.mark.parametrize("more", [{"tolerance": 0.05}, {"radii": (0.25, 0.5)}])
def test_an_input_that_is_alone_does_not_pay_for_empty_batches(more: dict[str, object]) -> None:
    rows: list[int] = []

    def model(x: Tensor) -> Tensor:
        rows.append(len(x))
        return torch.stack([-x[:, 0], x[:, 0]], dim=1)

    g = SmoothedClassifier(model, num_classes=2, sigma=0.5, batch_size=512)
    for distance in (0.05, 0.2, 0.3, 0.6, 1.0):
        x = torch.zeros(1, 300)
        x[0, 0] = distance
        job = g.job(x, Budget(n=20_000, **more))  # type: ignore[arg-type]
        rows.clear()  # of what was asked before any sampling
        (found,) = g.certify_job(job)
        assert sum(rows) <= 512 + found.n + 2 * 512  # selection, what it looked at, and the ends of two batches


def test_an_alpha_whose_shares_no_bound_could_tell_from_0_is_refused_before_any_sampling() -> None:
    assert Budget(alpha=1e-30).alpha == 1e-30
    with pytest.raises(InvalidInputError, match="alpha=1e-200"):
        Budget(alpha=1e-200, tolerance=0.01)


@pytest.mark.statistical
@pytest.mark.parametrize("p", [[0.5, 0.5], [0.9, 0.1]])
def test_whenever_an_anytime_estimate_stops_it_fails_at_most_alpha(p: list[float]) -> None:
    """The worst to stop at is the look that proves most: not even there may it fail too often."""
    repeats, random, failures = 150, np.random.default_rng(0), 0
    for _ in range(repeats):
        estimate, hits, n, point = Anytime(CLAIM, n=2_000), 0, 0, None
        radii = []
        while point is None:
            more = estimate.next_look(n) - n
            hits, n = hits + int(random.binomial(more, p[0])), n + more
            point = estimate.look(Counts(n=n, hits=hits, rival=n - hits))
            radii.append(-1.0 if estimate.proved().label is None else estimate.proved().radius)
        assert radii == sorted(radii)  # what is proved stays proved
        failures += max(radii) > true_radius(p) or (p[0] == p[1] and max(radii) >= 0)
    assert failures <= binom.ppf(1 - 1e-6, repeats, ALPHA)


def test_who_does_not_stop_an_anytime_estimate_loses_next_to_nothing() -> None:
    claim = Claim(label=0, sigma=0.5, noise=Gaussian(), alpha=0.001)
    for n in (100, 1_000, 100_000):
        for hits in (n, n * 95 // 100):
            plain, anytime = PlannedLooks(claim, n=n), Anytime(claim, n=n)
            counts = Counts(n=n, hits=hits, rival=n - hits)
            usual, found = plain.look(counts), anytime.look(counts)
            assert usual is not None
            assert found is not None
            assert usual.radius - 0.01 * claim.sigma <= found.radius <= usual.radius


def test_an_estimate_that_is_stopped_says_what_it_has_proved() -> None:
    for estimate in (
        PlannedLooks(CLAIM, n=5_000, tolerance=1e-6),
        AtRadii(CLAIM, radii=(0.1, 0.85), n=5_000),
        Anytime(CLAIM, n=5_000),
    ):
        assert (estimate.proved().label, estimate.proved().radius, estimate.proved().n) == (None, 0.0, 0)
        n = estimate.next_look(0)
        while n < 1_024:
            n = estimate.next_look(n)
        assert estimate.look(Counts(n=n, hits=n - 50, rival=50)) is None
        assert estimate.proved().label == 0
        assert 0.1 <= estimate.proved().radius < 0.5 * norm.ppf((n - 50) / n)
