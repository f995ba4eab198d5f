"""Certified accuracy, ACR, envelopes, intervals and comparisons: by plain recomputation, and by their properties."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_runs import make_table
from sigmax.errors import InvalidInputError
from sigmax.metrics import (
    abstentions,
    accuracy_interval,
    acr_interval,
    average_certified_radius,
    certified_accuracy,
    common_radii,
    compare_tables,
    envelope,
    gain_interval,
    select_rows,
    summarise,
)
from sigmax.rounding import format_nearest
from sigmax.runs import CertificateTable, read_table

RADII = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
FIXED = "cifar10-resnet110-cohen-0.50"
PER_INPUT = "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma"
# Of the documentation of the logs. It prints 0.657 for the ACR of the last one, which is 0.65646.
PUBLISHED = {
    "cifar10-resnet110-cohen-0.12": ".832 .598 .000 .000 .000 .000 .276",
    "cifar10-resnet110-cohen-0.25": ".767 .612 .423 .251 .000 .000 .424",
    "cifar10-resnet110-cohen-0.50": ".657 .549 .428 .325 .220 .083 .525",
    "cifar10-resnet110-cohen-1.00": ".472 .409 .338 .277 .221 .133 .511",
    "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma": ".685 .635 .540 .433 .310 .106 .656",
}


Row = tuple[int, int, float]  # label, answer, radius


def table(rows: list[Row], *, name: str = "made up", first: int = 0) -> CertificateTable:
    label, predict, radius = zip(*rows, strict=True) if rows else ((), (), ())
    return make_table(label, predict, radius, name=name, idx=range(first, first + len(rows)), sigma=0.25)


def plain_counted(path: Path) -> dict[int, tuple[bool, float]]:
    """idx -> whether it is correct, and its radius: nothing of the library."""
    with path.open() as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {int(row["idx"]): (row["label"] == row["predict"], float(row["radius"])) for row in rows}


def plain_two_sided(gained: int, lost: int) -> float:
    """P(a fair coin falls at least as unevenly), in exact integers."""
    n, extreme = gained + lost, max(gained, lost)
    return min(1.0, float(2 * sum(math.comb(n, k) for k in range(extreme, n + 1)) / 2**n)) if n else 1.0


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs_give_the_published_table(published_logs: Path, name: str) -> None:
    summary = summarise(name, read_table(published_logs / f"{name}.tsv"), RADII)
    printed = [format_nearest(value).removeprefix("0") for value in (*summary.accuracy, summary.acr)]
    assert " ".join(printed) == PUBLISHED[name]


def test_every_published_log_agrees_with_a_plain_recomputation(published_logs: Path) -> None:
    for path in published_logs.glob("*.tsv"):
        with path.open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        right = [float(row["radius"]) for row in rows if row["label"] == row["predict"]]
        read = read_table(path)
        assert len(read) == len(rows)
        assert average_certified_radius(read) == pytest.approx(sum(right) / len(rows), rel=1e-12)
        assert abstentions(read) == sum(row["predict"] == "-1" for row in rows) / len(rows)
        shares = [sum(radius >= r for radius in right) / len(rows) for r in RADII]
        assert certified_accuracy(read, np.array(RADII)).tolist() == shares


rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 2), st.sampled_from([0.0, 0.25, 0.3, 1.0, 1.7])),
    min_size=1,
    max_size=25,
)


@given(rows)
def test_certified_accuracy_falls_and_its_area_is_the_acr(content: list[Row]) -> None:
    made = table(content)
    grid = np.linspace(0, 2, 4001)
    curve = certified_accuracy(made, grid)
    assert (np.diff(curve) <= 0).all()
    assert np.trapezoid(curve, grid) == pytest.approx(average_certified_radius(made), abs=1e-3)


def test_an_empty_table_has_nothing_to_say() -> None:
    empty = table([])
    summary = summarise("empty", empty, common_radii([empty]))
    assert (summary.inputs, summary.accuracy, summary.acr, summary.abstained) == (0, (0.0,), 0.0, 0.0)


def test_radii_go_up_to_the_largest_certified() -> None:
    assert common_radii([table([(1, 1, 0.6)]), table([(1, 1, 0.2)])]) == (0.0, 0.25, 0.5)


def test_the_envelope_of_the_published_logs_is_a_plain_maximum(published_logs: Path) -> None:
    names = [f"cifar10-resnet110-cohen-{sigma}" for sigma in ("0.12", "0.25", "0.50", "1.00")]
    plain = []
    for name in names:
        counted = np.array(list(plain_counted(published_logs / f"{name}.tsv").values()))
        plain.append([np.sum((counted[:, 0] == 1) & (counted[:, 1] >= r)) / len(counted) for r in RADII])
    accuracy, best = envelope([read_table(published_logs / f"{name}.tsv") for name in names], RADII)
    assert accuracy.tolist() == np.max(plain, axis=0).tolist()
    assert best.tolist() == np.argmax(plain, axis=0).tolist()
    assert best.tolist() == [0, 1, 2, 2, 3, 3]  # the larger sigma, the farther out it is the best


def test_the_published_pair_is_compared_input_by_input(published_logs: Path) -> None:
    ours, theirs = (plain_counted(published_logs / f"{name}.tsv") for name in (PER_INPUT, FIXED))
    assert ours.keys() == theirs.keys()
    gains = [ours[i][0] * ours[i][1] - theirs[i][0] * theirs[i][1] for i in ours]
    gained, lost = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    per_input, fixed = (read_table(published_logs / f"{name}.tsv") for name in (PER_INPUT, FIXED))
    found = compare_tables(per_input, fixed)
    assert (found.inputs, found.left_out, found.gained, found.lost) == (10_000, 0, gained, lost)
    assert found.equal == 10_000 - gained - lost
    assert found.mean_gain == pytest.approx(sum(gains) / 10_000, rel=1e-9)
    acrs = average_certified_radius(per_input), average_certified_radius(fixed)
    assert (found.mean, found.baseline_mean) == pytest.approx(acrs, rel=1e-12)
    assert found.p_value == pytest.approx(plain_two_sided(gained, lost), rel=1e-6)
    for radius in RADII:
        at = compare_tables(per_input, fixed, radius=radius)
        one = [ours[i][0] and ours[i][1] >= radius for i in ours]
        other = [theirs[i][0] and theirs[i][1] >= radius for i in ours]
        only = sum(a and not b for a, b in zip(one, other, strict=True))
        other_only = sum(b and not a for a, b in zip(one, other, strict=True))
        assert (at.gained, at.lost) == (only, other_only)
        assert (at.mean, at.baseline_mean) == (sum(one) / 10_000, sum(other) / 10_000)
        assert at.mean_gain == pytest.approx((sum(one) - sum(other)) / 10_000)
        assert at.p_value == pytest.approx(plain_two_sided(only, other_only), rel=1e-6)


@given(st.lists(rows, min_size=1, max_size=4))
def test_an_envelope_is_no_lower_than_any_run_and_reached_by_the_one_it_names(
    content: list[list[Row]],
) -> None:
    tables = [table(part) for part in content]
    accuracy, best = envelope(tables, RADII)
    curves = [certified_accuracy(made, RADII) for made in tables]
    assert all((accuracy >= curve).all() for curve in curves)
    assert all(curves[place][i] == accuracy[i] for i, place in enumerate(best))


@given(rows, st.sampled_from(RADII), st.sampled_from([0.5, 0.9, 0.99]))
@settings(max_examples=30)
def test_intervals_contain_the_estimate_and_widen_with_confidence(
    content: list[Row], radius: float, confidence: float
) -> None:
    made = table(content)
    low, high = accuracy_interval(made, radius, confidence=confidence)
    assert 0 <= low <= certified_accuracy(made, radius) <= high <= 1
    wider = accuracy_interval(made, radius, confidence=(1 + confidence) / 2)
    assert wider[0] <= low <= high <= wider[1]
    acr = acr_interval(made, confidence=confidence)
    assert acr == acr_interval(made, confidence=confidence)
    assert 0 <= acr[0] <= acr[1] <= made.radius.max()
    if confidence > 0.9:
        assert acr[0] - 1e-12 <= average_certified_radius(made) <= acr[1] + 1e-12


def test_the_bootstrap_is_as_wide_as_the_normal_theory() -> None:
    draw = np.random.default_rng(1)
    made = table([(1, 1, float(r)) for r in draw.exponential(size=2_000)])
    low, high = acr_interval(made)
    assert high - low == pytest.approx(2 * 1.96 * made.radius.std() / math.sqrt(2_000), rel=0.1)


@pytest.mark.statistical
def test_the_accuracy_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw, misses = np.random.default_rng(0), 0
    for hits in draw.binomial(60, 0.7, size=400):
        made = table([(1, 1 if i < hits else 0, 0.5) for i in range(60)])
        low, high = accuracy_interval(made, 0.25, confidence=0.9)
        misses += not low <= 0.7 <= high
    assert misses <= 62  # exceeded for one seed in a thousand where each misses with probability 0.1


@given(rows, st.integers(0, 2**32 - 1))
def test_a_comparison_is_symmetric(content: list[Row], seed: int) -> None:
    one = table(content)
    draw = np.random.default_rng(seed)
    other = replace(one, radius=draw.permutation(one.radius), predict=draw.permutation(one.predict))
    for radius in (None, *RADII):
        there, back = compare_tables(one, other, radius=radius), compare_tables(other, one, radius=radius)
        assert (there.gained, there.lost, there.equal, there.mean) == (
            *(back.lost, back.gained, back.equal, back.baseline_mean),
        )
        assert there.mean_gain == pytest.approx(-back.mean_gain)
        assert there.p_value == pytest.approx(back.p_value)
        assert 0 < there.p_value <= 1


def test_only_common_inputs_are_compared_and_the_rest_is_counted() -> None:
    one = table([(1, 1, 0.5), (2, 2, 0.7), (0, 0, 0.1)])
    other = table([(0, 0, 0.3), (2, 2, 0.4)], first=2)
    found = compare_tables(one, other)
    assert (found.inputs, found.left_out, found.lost) == (1, 3, 1)
    assert found.mean_gain == pytest.approx(-0.2)
    shuffled = select_rows(one, np.array([2, 0, 1]))
    assert compare_tables(shuffled, one).equal == 3


def test_the_mean_gain_has_an_interval_of_its_own() -> None:
    """Many small losses and a few large gains: the sign test and the mean say different things."""
    one, own = table([(1, 1, 0.5)] * 40), table([(1, 1, 0.49)] * 30 + [(1, 1, 1.5)] * 10)
    found = compare_tables(own, one)
    gains = np.array([-0.01] * 30 + [1.0] * 10)
    means = np.random.default_rng(1).choice(gains, size=(20_000, 40)).mean(axis=1)
    low, high = gain_interval(own, one)
    assert (found.gained, found.lost) == (10, 30)
    assert found.mean_gain == pytest.approx(gains.mean())
    assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.0253)  # one input
    assert low > 0


def test_runs_that_cannot_be_compared_are_refused() -> None:
    one = table([(1, 1, 0.5)], name="one")
    for other, said in [
        (table([(1, 1, 0.5)], first=9, name="far"), "far"),
        (table([(2, 1, 0.5)], name="odd"), "odd"),
        (replace(one, norm=1), "l1"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            compare_tables(one, other)
    with pytest.raises(InvalidInputError):
        acr_interval(table([]))
    with pytest.raises(InvalidInputError):
        envelope([], RADII)


def test_acr_without_the_inputs_at_the_bound() -> None:
    made = replace(table([(1, 1, 0.2), (1, 1, 0.9), (1, 0, 0.3)]), sigma=np.array([0.1, np.float32(0.24), 0.239]))
    summary = summarise("made", made, [0.0], upper=0.24)
    assert summary.at_bound == 1  # float32 falls short of 0.24
    assert summary.acr_inside == pytest.approx(0.1)
    assert summary.acr == pytest.approx(1.1 / 3)
    assert summarise("made", made, [0.0]).acr_inside is None
    everywhere = summarise("made", made, [0.0], upper=0.1)
    assert (everywhere.at_bound, everywhere.acr_inside) == (3, None)  # a mean of nothing is not 0
