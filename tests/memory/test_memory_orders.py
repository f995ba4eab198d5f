"""Orders and explanations: how much answers depend on what was asked before, and on which entries."""

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory import CertificateMemory, permute
from sigmax.memory.balls import Vector

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001)


def crowd(count: int, norm: int, seed: int) -> tuple[Vector, list[PointCertificate]]:
    """Inputs on a coarse grid, of which some repeat, and balls overlap, contain each other and touch."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 5, (count, 2)) / 2
    labels: NDArray[np.int64] = rng.integers(0, 4, count)
    radii = rng.choice([0.0, 0.3, 0.5, 1.0, 1.6], count)
    made = [(None, 0.0) if label == 3 else (label, radius) for label, radius in zip(labels, radii, strict=True)]
    return x, [certificate(label=label, radius=radius, norm=norm) for label, radius in made]


@pytest.mark.parametrize("norm", [1, 2])
def test_orders_are_those_of_real_memories(norm: int) -> None:
    x, points = crowd(30, norm, seed=norm)
    found = permute(x, points, orders=40, seed=5)
    # The same orders through a real memory each; here all inputs are near others.
    rng = np.random.default_rng(5)
    orders = [list(range(30)), *(rng.permutation(list(range(30))).tolist() for _ in range(40))]
    given = []
    for order in orders:
        with CertificateMemory(norm=norm) as memory:
            answers = {i: memory.settle(x[i], points[i]) for i in order}
        given.append([(answers[i].label, answers[i].radius) for i in range(30)])
    usual = np.array(given[0], dtype=float)
    others = np.array(given[1:], dtype=float)
    labels = ~((others[..., 0] == usual[:, 0]) | (np.isnan(others[..., 0]) & np.isnan(usual[:, 0])))
    radii = others[..., 1] != usual[:, 1]
    assert found.near == 30
    assert (found.labels, found.radii) == (labels.any(axis=0).sum(), radii.any(axis=0).sum())
    assert found.answers == (labels | radii).any(axis=0).sum() > 5
    assert found.largest == np.abs(others[..., 1] - usual[:, 1]).max()


def test_balls_that_meet_no_other_never_differ() -> None:
    x = np.arange(500.0)[:, None] * np.ones(64)
    points = [certificate(label=i % 3, radius=3.9, norm=2) for i in range(500)]
    found = permute(x, points, orders=1_000)
    assert (found.inputs, found.orders, found.near, found.answers, found.largest) == (500, 1_000, 0, 0, 0.0)
    points[7] = certificate(label=1, radius=4.2, norm=2)  # reaches both neighbours, which have other labels
    found = permute(x, points, orders=200)
    assert (found.near, found.labels, found.radii) == (3, 0, 3)
    with pytest.raises(InvalidInputError, match="orders=0"):
        permute(x, points, orders=0)


def test_an_answer_is_explained_by_the_entries_before_it() -> None:
    with CertificateMemory(norm=2) as memory:
        at = [np.array([position, 0.0]) for position in (0.0, 4.0, 2.5, 0.5, 9.0)]
        memory.settle(at[0], certificate(label=0, radius=1.0, norm=2))
        memory.settle(at[1], certificate(label=1, radius=0.5, norm=2))
        cut = memory.settle(at[2], certificate(label=0, radius=5.0, norm=2))  # by entry 2, not by 1, which agrees
        memory.settle(at[3], certificate(label=1, radius=5.0, norm=2))  # inside entry 1, and near entry 3
        explained = memory.explain(at[2])
        assert (explained.entry, explained.answer) == (3, cut)
        (influence,) = explained.influences
        assert (influence.id, influence.effect, influence.is_decisive) == (2, "cuts", True)
        assert influence.limit == cut.radius
        inherited = memory.explain(at[3])
        assert inherited.answer is not None
        assert [(i.id, i.effect) for i in inherited.influences if i.is_decisive] == [(1, "contains")]
        new = memory.explain(np.array([0.25, 0.0]))
        assert new.entry is None
        assert [i.id for i in new.influences] == [1, 4]
        assert new.answer == memory.lookup(np.array([0.25, 0.0]))
        nothing = memory.explain(at[4])
        assert (nothing.answer, nothing.entry, nothing.influences) == (None, None, ())
        assert len(memory) == 5
