"""The paper's tables as data: complete, falling with the radius, and in agreement with what its text quotes."""

import itertools
from collections import Counter

import pytest
from scipy.stats import norm

from sigmax.paper.published import PublishedCurve, published_curves, published_settings

# Data set, norm and curve.
CURVES = [
    (data, norm, curve)
    for data, norm in itertools.product(("cifar10", "imagenet"), (2, 1))
    for curve in published_curves(data, norm)
]


def best(data: str, method: str) -> PublishedCurve:
    (found,) = [c for c in published_curves(data, 2) if c.sigma is None and c.method == method]
    return found


def test_every_row_of_every_table_is_there() -> None:
    counts = Counter((data, c.method, c.samples) for data, _, c in CURVES if c.sigma is not None)
    assert counts == {
        ("cifar10", "cohen", 1): 3,
        ("cifar10", "cohen-ds", 1): 27,
        ("cifar10", "cohen-ds2", 1): 45,
        ("cifar10", "smoothadv", 1): 3,
        ("cifar10", "smoothadv-ds", 1): 27,
        ("cifar10", "smoothadv-ds2", 1): 27,
        ("cifar10", "macer", 1): 3,
        ("cifar10", "macer-ds", 8): 27,
        ("cifar10", "macer-ds2", 1): 30,
        ("cifar10", "macer-ds2", 8): 30,
        ("imagenet", "cohen", 1): 3,
        ("imagenet", "cohen-ds", 1): 12,
        ("imagenet", "cohen-ds2", 1): 12,
        ("imagenet", "smoothadv", 1): 3,
        ("imagenet", "smoothadv-ds", 1): 12,
        ("imagenet", "smoothadv-ds2", 1): 12,
    }
    assert sum(c.sigma is None for _, _, c in CURVES) == 15 + 4


def test_accuracy_falls_with_the_radius() -> None:
    for _, p, curve in CURVES:
        radii = sorted(curve.accuracy)
        assert radii[0] == 0.0
        assert len(radii) == (7 if p == 1 else 11)
        values = [curve.accuracy[r] for r in radii]
        assert values == sorted(values, reverse=True)
        assert 0 <= values[-1] <= values[0] <= 100


@pytest.mark.parametrize("data", ["cifar10", "imagenet"])
def test_the_settings_name_the_sigmas_of_the_tables(data: str) -> None:
    listed = {curve.sigma for curve in published_curves(data, 2)} - {None}
    assert listed == set(published_settings(data).sigmas["l2"])


@pytest.mark.parametrize(
    ("data", "better", "worse", "radius", "points"),
    [
        ("cifar10", "cohen-ds2", "cohen-ds", 0.5, 2.6),
        ("cifar10", "cohen-ds2", "cohen-ds", 0.75, 0.9),
        ("imagenet", "cohen-ds2", "cohen-ds", 0.5, 4.8),
        ("imagenet", "cohen-ds2", "cohen-ds", 0.75, 1.8),
        ("cifar10", "smoothadv-ds", "smoothadv", 0.5, 5.4),
        ("imagenet", "smoothadv-ds", "smoothadv", 0.5, 2.8),
        ("cifar10", "smoothadv-ds2", "smoothadv-ds", 0.5, 0.7),
        ("imagenet", "smoothadv-ds2", "smoothadv-ds", 0.5, 1.4),
        ("cifar10", "smoothadv-ds2", "smoothadv", 0.5, 6.1),
        ("imagenet", "smoothadv-ds2", "smoothadv", 0.5, 4.2),
        ("cifar10", "macer-ds", "macer", 0.25, 7.4),
        ("cifar10", "macer-ds", "macer", 0.5, 8.7),
    ],
)
def test_differences_that_the_text_quotes(data: str, better: str, worse: str, radius: float, points: float) -> None:
    found = best(data, better).accuracy[radius] - best(data, worse).accuracy[radius]
    assert found == pytest.approx(points, abs=0.051)


@pytest.mark.parametrize(
    ("data", "better", "worse", "acr"),
    [
        ("cifar10", "cohen-ds2", "cohen", 0.173),
        ("cifar10", "smoothadv-ds", "smoothadv", 0.118),
        ("imagenet", "smoothadv-ds", "smoothadv", 0.158),
        ("cifar10", "smoothadv-ds2", "smoothadv-ds", 0.013),
        ("imagenet", "smoothadv-ds2", "smoothadv-ds", 0.069),
        ("cifar10", "macer-ds", "macer", 0.139),
    ],
)
def test_acr_differences_that_the_text_quotes(data: str, better: str, worse: str, acr: float) -> None:
    one, other = best(data, better).acr, best(data, worse).acr
    assert one is not None
    assert other is not None
    assert one - other == pytest.approx(acr, abs=1e-9)


@pytest.mark.parametrize("data", ["cifar10", "imagenet"])
@pytest.mark.parametrize("method", ["cohen", "cohen-ds", "smoothadv", "smoothadv-ds"])
def test_the_best_tables_are_the_maximum_of_the_appendix(data: str, method: str) -> None:
    all_of_it = [c for c in published_curves(data, 2) if c.sigma is not None and c.method == method]
    for radius, accuracy in best(data, method).accuracy.items():
        assert max(c.accuracy[radius] for c in all_of_it) == pytest.approx(accuracy, abs=0.0501)


def test_one_table_has_radii_far_beyond_what_the_step_size_reaches() -> None:
    """n = 100,000 certifies up to 3.81 sigma, and K steps drift by K * 1e-4 * Phi^-1(0.98): see docs/results.md."""
    beyond: dict[bool, list[float]] = {True: [], False: []}
    for data, _, curve in CURVES:
        if curve.sigma is None or not curve.steps:
            continue
        reach = (curve.sigma + curve.steps * 1e-4 * norm.ppf(0.98)) * norm.ppf(0.001**1e-5)
        largest = max(radius for radius, percent in curve.accuracy.items() if percent > 0)
        beyond[(data, curve.method) == ("cifar10", "cohen-ds")].append(largest - reach)
    assert len(beyond[False]) == 234
    assert max(beyond[False]) == pytest.approx(0.26, abs=0.005)
    assert max(beyond[True]) == pytest.approx(1.31, abs=0.005)
    assert sum(excess > 0.27 for excess in beyond[True]) == 22
