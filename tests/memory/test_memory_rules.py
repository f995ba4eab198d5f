"""The rules of the memory, one small example each.

All examples lie on the first axis of the plane, where l1 and l2 distances agree.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.memory import CertificateMemory
from sigmax.memory.balls import Vector

certificate = partial(PointCertificate, p_lower=0.9, n=1_000, alpha=0.001)
CAT, DOG = 0, 1


def at(position: float) -> Vector:
    return np.array([position, 0.0])


@pytest.fixture(params=[1, 2], ids=["l1", "l2"])
def memory(request: pytest.FixtureRequest) -> Iterator[CertificateMemory]:
    with CertificateMemory(norm=request.param) as memory:
        yield memory


def point(memory: CertificateMemory, label: int | None, radius: float, sigma: float = 0.25) -> PointCertificate:
    return certificate(label=label, radius=radius, sigma=sigma, norm=memory.norm)


def test_far_from_all_others_a_certificate_is_kept(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.settle(at(5.0), point(memory, DOG, 1.0, sigma=0.5))
    assert (answer.label, answer.radius, answer.sigma, answer.rule) == (DOG, 1.0, 0.5, "kept")
    assert answer.point == point(memory, DOG, 1.0, sigma=0.5)


def test_numbers_of_numpy_and_torch_are_settled_as_any_others(memory: CertificateMemory) -> None:
    """Labels come from argmax."""
    labels: tuple[Any, ...] = (np.int64(DOG), torch.tensor(DOG))
    numbers: dict[str, Any] = {"radius": np.float32(0.5), "sigma": torch.tensor(0.25)}
    for i, label in enumerate(labels):
        made = certificate(label=label, norm=memory.norm, **numbers)
        assert made == point(memory, DOG, 0.5)
        assert memory.settle(at(5.0 * i), made).label == DOG


def test_a_ball_is_truncated_at_a_ball_with_another_label(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.settle(at(3.0), point(memory, DOG, 2.5))
    assert (answer.label, answer.rule) == (DOG, "truncated")
    assert 2.0 * (1.0 - 1e-14) < answer.radius < 2.0
    assert answer.point == point(memory, DOG, 2.5)


def test_a_ball_is_truncated_at_the_nearest_of_several(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    memory.settle(at(10.0), point(memory, CAT, 0.5))
    answer = memory.settle(at(4.0), point(memory, DOG, 9.0))
    assert answer.radius == pytest.approx(3.0, rel=1e-14)


def test_balls_with_the_same_label_overlap(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.settle(at(1.5), point(memory, CAT, 1.0))
    assert (answer.label, answer.radius, answer.rule) == (CAT, 1.0, "kept")


def test_inside_a_ball_with_the_same_label_the_larger_radius_holds(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 4.0, sigma=0.5))
    inherited = memory.settle(at(1.0), point(memory, CAT, 2.0, sigma=0.25))
    assert (inherited.label, inherited.sigma, inherited.rule) == (CAT, 0.5, "inherited")
    assert 3.0 * (1.0 - 1e-14) < inherited.radius < 3.0
    kept = memory.settle(at(3.5), point(memory, CAT, 2.0, sigma=0.25))
    assert (kept.label, kept.radius, kept.sigma, kept.rule) == (CAT, 2.0, 0.25, "kept")


def test_inside_a_ball_with_the_same_label_other_labels_still_cut(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 2.0))
    memory.settle(at(3.0), point(memory, DOG, 0.5))
    answer = memory.settle(at(1.5), point(memory, CAT, 5.0))
    assert (answer.label, answer.rule) == (CAT, "truncated")
    assert answer.radius == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize(("radius", "expected"), [(0.5, 0.5), (9.0, 3.0)])
def test_inside_a_ball_with_another_label_its_label_stands(
    memory: CertificateMemory, radius: float, expected: float
) -> None:
    memory.settle(at(0.0), point(memory, CAT, 4.0, sigma=0.5))
    answer = memory.settle(at(1.0), point(memory, DOG, radius))
    assert (answer.label, answer.sigma, answer.rule) == (CAT, 0.5, "inherited")
    assert expected * (1.0 - 1e-14) < answer.radius <= expected
    assert answer.point == point(memory, DOG, radius)


def test_inside_a_ball_an_abstention_inherits(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 4.0, sigma=0.5))
    answer = memory.settle(at(1.0), point(memory, None, 0.0))
    assert (answer.label, answer.sigma, answer.rule) == (CAT, 0.5, "inherited")
    assert 3.0 * (1.0 - 1e-14) < answer.radius < 3.0
    assert len(memory) == 2


def test_of_several_balls_the_deepest_is_inherited(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 2.0, sigma=0.1))
    memory.settle(at(3.0), point(memory, CAT, 2.5, sigma=0.2))
    answer = memory.settle(at(1.5), point(memory, DOG, 9.0))
    assert (answer.label, answer.sigma) == (CAT, 0.2)
    assert answer.radius == pytest.approx(1.0, rel=1e-14)


def test_outside_all_balls_an_abstention_is_not_stored(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.settle(at(5.0), point(memory, None, 0.0))
    assert (answer.label, answer.radius, answer.rule) == (None, 0.0, "abstained")
    assert len(memory) == 1
    assert memory.lookup(at(5.0)) is None


def test_the_border_of_a_ball_is_outside(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.settle(at(1.0), point(memory, DOG, 0.5))
    assert (answer.label, answer.radius, answer.rule) == (DOG, 0.0, "truncated")


def test_a_radius_of_zero_is_stored_and_stands(memory: CertificateMemory) -> None:
    answer = memory.settle(at(0.0), point(memory, CAT, 0.0))
    assert (answer.label, answer.radius, answer.rule) == (CAT, 0.0, "kept")
    assert memory.settle(at(0.0), point(memory, DOG, 3.0)) == answer
    beside = memory.settle(at(2.0), point(memory, DOG, 3.0))
    assert (beside.label, beside.rule) == (DOG, "truncated")
    assert 2.0 * (1.0 - 1e-14) < beside.radius < 2.0
    assert len(memory) == 2


@pytest.mark.parametrize("again", [(DOG, 9.0), (CAT, 0.1), (None, 0.0)])
def test_the_same_input_gets_the_same_answer(memory: CertificateMemory, again: tuple[int | None, float]) -> None:
    first = memory.settle(at(0.0), point(memory, CAT, 1.0))
    memory.settle(at(3.0), point(memory, DOG, 1.0))
    assert memory.settle(at(0.0), point(memory, *again, sigma=0.7)) == first
    assert len(memory) == 2


def test_an_input_is_the_same_in_any_precision_and_container(memory: CertificateMemory) -> None:
    first = memory.settle(torch.tensor([0.5, -0.0], dtype=torch.float16), point(memory, CAT, 1.0))
    for same in (
        np.array([0.5, 0.0], dtype=np.float32),
        np.array([0.5, 0.0], dtype=">f8"),
        torch.tensor([0.5, 0.0], dtype=torch.bfloat16),
        torch.tensor([0.5, 0.0], dtype=torch.float64, requires_grad=True),
    ):
        assert memory.settle(same, point(memory, DOG, 2.0)) == first


def test_lookup_answers_without_sampling(memory: CertificateMemory) -> None:
    stored = memory.settle(at(0.0), point(memory, CAT, 4.0, sigma=0.5))
    assert memory.lookup(at(0.0)) == stored
    inside = memory.lookup(at(1.0))
    assert inside is not None
    assert (inside.label, inside.sigma, inside.point, inside.rule) == (CAT, 0.5, None, "inherited")
    assert 3.0 * (1.0 - 1e-14) < inside.radius < 3.0
    assert memory.lookup(at(4.0)) is None
    assert memory.recall_many(np.stack([at(0.0), at(1.0), at(2.0)])) == [stored, inside, None]
    assert len(memory) == 2


@pytest.mark.parametrize("claim", [(DOG, 0.1), (CAT, 9.0), (None, 0.0)])
def test_a_looked_up_answer_is_binding(memory: CertificateMemory, claim: tuple[int | None, float]) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    answer = memory.lookup(at(0.5))
    assert answer is not None
    memory.settle(at(0.4), point(memory, CAT, 5.0))  # a deeper ball comes too late
    assert memory.settle(at(0.5), point(memory, *claim)) == answer
    assert memory.lookup(at(0.5)) == answer


def test_an_answer_names_the_certificate_behind_it(memory: CertificateMemory) -> None:
    first = replace(point(memory, CAT, 4.0, sigma=0.5), p_lower=0.99, n=77, alpha=0.0001)
    memory.settle(at(9.0), point(memory, CAT, 1.0))
    memory.settle(at(0.0), first)
    inherited = memory.settle(at(1.0), point(memory, DOG, 9.0))
    again = memory.settle(at(1.5), point(memory, None, 0.0))  # deepest in the first ball, or in the one inside it
    for answer in (inherited, again, memory.lookup(at(-1.0))):
        assert answer is not None
        assert (answer.proof, answer.origin, answer.alpha) == (first, 2, 0.0001)
    assert [entry.answer.proof for entry in memory.entries()][1:] == [first] * 4


def weak(memory: CertificateMemory, label: int | None, radius: float) -> PointCertificate:
    return replace(point(memory, label, radius), alpha=0.4)


@pytest.mark.parametrize("position", [0.0, 1.0])
def test_a_weaker_ball_lends_no_radius(memory: CertificateMemory, position: float) -> None:
    """Also to its own centre, which gets a stronger answer with the same label."""
    memory.settle(at(0.0), weak(memory, CAT, 4.0))
    assert memory.lookup(at(position), alpha=0.001) is None
    own = point(memory, CAT, 0.5)
    answer = memory.settle(at(position), own)
    assert (answer.label, answer.radius, answer.alpha, answer.rule) == (CAT, 0.5, 0.001, "kept")
    assert memory.lookup(at(position), alpha=0.001) == answer == memory.settle(at(position), own)
    assert memory.lookup(at(0.0)) == memory.settle(at(0.0), weak(memory, DOG, 9.0))
    assert memory.settle(at(0.0), weak(memory, DOG, 9.0)).radius == 4.0


@pytest.mark.parametrize("claim", [(DOG, 0.5), (None, 0.0)])
def test_a_weaker_ball_is_not_contradicted(memory: CertificateMemory, claim: tuple[int | None, float]) -> None:
    memory.settle(at(0.0), weak(memory, CAT, 4.0))
    refused = memory.settle(at(1.0), point(memory, *claim))
    assert (refused.label, refused.radius, refused.rule) == (None, 0.0, "refused")
    assert len(memory) == 1
    cut = memory.settle(at(5.0), point(memory, DOG, 3.0))
    assert (cut.label, cut.rule, cut.alpha) == (DOG, "truncated", 0.001)
    assert cut.radius == pytest.approx(1.0, rel=1e-14)


def test_a_stronger_ball_answers_a_weaker_demand(memory: CertificateMemory) -> None:
    memory.settle(at(0.0), point(memory, CAT, 4.0))
    memory.settle(at(0.5), weak(memory, CAT, 9.0))
    answer = memory.settle(at(1.0), weak(memory, DOG, 9.0))
    assert (answer.label, answer.rule, answer.alpha) == (CAT, "inherited", 0.4)  # the deeper, which is enough
    strong = memory.settle(at(1.0), point(memory, DOG, 9.0))
    assert (strong.label, strong.rule, strong.alpha) == (CAT, "inherited", 0.001)
    assert strong.radius == pytest.approx(3.0, rel=1e-14)


def test_a_batch_needs_a_certificate_for_each_input(memory: CertificateMemory) -> None:
    with pytest.raises(InvalidInputError, match="got 1 for 2"):
        memory.settle_many(np.zeros((2, 2)), [point(memory, CAT, 1.0)])
    assert memory.settle_many(np.zeros((0, 2)), []) == []
    assert memory.lookup_many(np.zeros((0, 2))) == []
    assert len(memory) == 0


def test_a_batch_with_a_bad_input_is_refused_as_a_whole(memory: CertificateMemory) -> None:
    with pytest.raises(InvalidInputError, match="nan"):
        memory.settle_many(torch.tensor([[0.0, 0.0], [math.nan, 0.0]]), [point(memory, CAT, 1.0)] * 2)
    assert len(memory) == 0


def test_an_empty_memory_holds_no_answer(memory: CertificateMemory) -> None:
    assert memory.lookup(at(0.0)) is None
    assert len(memory) == 0
    assert list(memory.entries()) == []
    assert list(memory.contradictions()) == []


def test_entries_come_in_order_while_the_memory_is_used(memory: CertificateMemory) -> None:
    given = [memory.settle(at(float(i)), point(memory, i % 3, 0.3)) for i in range(300)]
    for i, entry in enumerate(memory.entries()):
        assert (entry.id, entry.x.tolist(), entry.answer) == (i + 1, [float(i), 0.0], given[i])
        assert memory.lookup(entry.x) == entry.answer
    assert len(memory) == 300


def test_distances_differ_between_the_norms() -> None:
    x, y = np.array([0.0, 0.0]), np.array([3.0, 4.0])
    radii = {}
    for norm in (1, 2):
        with CertificateMemory(norm=norm) as memory:
            memory.settle(x, point(memory, CAT, 1.0))
            radii[norm] = memory.settle(y, point(memory, DOG, 100.0)).radius
    assert radii == pytest.approx({1: 6.0, 2: 4.0}, rel=1e-14)


def test_a_certificate_in_another_norm_is_refused(memory: CertificateMemory) -> None:
    other = 3 - memory.norm
    with pytest.raises(InvalidInputError, match=f"norm={other}"):
        memory.settle(at(0.0), replace(point(memory, CAT, 1.0), norm=other))


@pytest.mark.parametrize("norm", [0, 3])
def test_a_memory_has_norm_1_or_2(norm: int) -> None:
    with pytest.raises(InvalidInputError, match=f"norm={norm}"):
        CertificateMemory(norm=norm)


@pytest.mark.parametrize("radius", [math.nan, math.inf, -0.1])
def test_a_radius_that_claims_no_ball_is_refused(memory: CertificateMemory, radius: float) -> None:
    with pytest.raises(InvalidInputError, match=f"radius={radius}"):
        memory.settle(at(0.0), point(memory, CAT, radius))
    assert len(memory) == 0


@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 2), (2, 2)])
def test_an_input_of_another_shape_is_refused(memory: CertificateMemory, shape: tuple[int, ...]) -> None:
    memory.settle(at(0.0), point(memory, CAT, 1.0))
    x = np.zeros(shape)
    for use in (memory.lookup, lambda x: memory.settle(x, point(memory, CAT, 1.0))):
        with pytest.raises(InvalidInputError, match=r"\(2,\)"):
            use(x)
    assert len(memory) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_input_that_is_not_finite_is_refused(memory: CertificateMemory, bad: float) -> None:
    for use in (memory.lookup, lambda x: memory.settle(x, point(memory, CAT, 1.0))):
        with pytest.raises(InvalidInputError, match=f"got {bad}"):
            use(at(bad))
    assert len(memory) == 0


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(2, dtype=np.int64),
        np.zeros(2, dtype=np.longdouble),
        np.zeros(2, dtype=np.complex128),
        np.array(0.5),
        np.zeros(0),
    ],
    ids=["integers", "longdouble", "complex", "scalar", "empty"],
)
def test_what_is_no_input_is_refused(memory: CertificateMemory, x: Vector) -> None:
    with pytest.raises(InvalidInputError, match=str(x.dtype)):
        memory.settle(x, point(memory, CAT, 1.0))
    assert len(memory) == 0


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e-45, 1e18, 1e30, 1e200, 1e307])
def test_answers_hold_at_any_scale(memory: CertificateMemory, scale: float) -> None:
    first = memory.settle(at(scale), point(memory, CAT, scale / 4))
    assert memory.settle(at(scale), point(memory, DOG, scale)) == first
    between = memory.settle(at(1.125 * scale), point(memory, DOG, scale))
    assert (between.label, between.rule) == (CAT, "inherited")
    beside = memory.settle(at(3.0 * scale), point(memory, DOG, 5.0 * scale))
    assert (beside.label, beside.rule) == (DOG, "truncated")
    assert 0.0 <= beside.radius <= 1.75 * scale
    opposite = memory.settle(at(-scale), point(memory, DOG, 3.0 * scale))
    assert (opposite.label, opposite.rule) == (DOG, "truncated")
    assert list(memory.contradictions()) == []
