"""Any sequence of insertions, against the rules written out in plain Python with exact fractions."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sigmax.memory.memory as base
from crowds import Coordinates, Step, crowds
from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.memory import CertificateMemory

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001)

# What our radii may lose by rounding down, in examples whose distances are below 10.
ROUNDING = Fraction(1, 10**13)


@dataclass(frozen=True)
class Stored:
    x: Coordinates
    label: int
    radius: Fraction
    answer: SettledCertificate


def power(x: Coordinates, y: Coordinates, norm: int) -> Fraction:
    """The distance in l1, its square in l2: exact."""
    return sum((abs(Fraction(a) - Fraction(b)) ** norm for a, b in zip(x, y, strict=True)), start=Fraction(0))


def distance(x: Coordinates, y: Coordinates, norm: int) -> Fraction:
    """The distance, in l2 rounded down by less than 2**-200."""
    exact = power(x, y, norm)
    if norm == 1:
        return exact
    shift = 2**200
    return Fraction(math.isqrt(exact.numerator * exact.denominator * shift**2), exact.denominator * shift)


def holds(entry: Stored, x: Coordinates, norm: int) -> bool:
    """Whether x lies in the entry's open ball or is its centre."""
    return x == entry.x or power(x, entry.x, norm) < entry.radius**norm


def share_a_point(a: Stored, b: Stored, norm: int) -> bool:
    return a.x == b.x or power(a.x, b.x, norm) < (a.radius + b.radius) ** norm


@dataclass(frozen=True)
class Expected:
    label: int | None
    radius: Fraction
    rules: frozenset[str]  # several where exact arithmetic has a tie that rounding may break


def expect(step: Step, entries: list[Stored], norm: int) -> Expected:
    """The rules of the design, by brute force over all entries; the input is not one of them."""
    x, label, reach = step[0], step[1], Fraction(step[2])
    homes = [entry for entry in entries if holds(entry, x, norm)]
    assert len({home.label for home in homes}) <= 1
    depth = max((home.radius - distance(x, home.x, norm) for home in homes), default=None)
    if label is None and depth is None:
        return Expected(None, Fraction(0), frozenset({"abstained"}))
    if depth is not None and label != homes[0].label:
        inside = depth if label is None else min(reach, depth)
        return Expected(homes[0].label, inside, frozenset({"inherited"}))
    rooms = [distance(x, other.x, norm) - other.radius for other in entries if other.label != label]
    room = min(rooms, default=reach + 1)
    cut = min(reach, room)
    rules = {"kept" if room >= reach else "truncated"}
    if abs(room - reach) <= ROUNDING:
        rules = {"kept", "truncated"}
    if depth is not None and depth > cut - ROUNDING:
        rules = {"inherited"} if depth > cut + ROUNDING else rules | {"inherited"}
    return Expected(label, max(cut, depth or Fraction(0)), frozenset(rules))


@pytest.mark.parametrize("norm", [1, 2])
@given(steps=crowds())
@settings(max_examples=150)
def test_every_answer_follows_the_rules_and_none_contradicts_another(norm: int, steps: list[Step]) -> None:
    entries: list[Stored] = []
    with CertificateMemory(norm=norm) as memory:
        for step in steps:
            x, label, radius = step
            answer = memory.settle(np.array(x), certificate(label=label, radius=radius, norm=norm))
            known = next((entry for entry in entries if entry.x == x), None)
            if known is not None:
                assert answer == known.answer
                continue
            expected = expect(step, entries, norm)
            assert answer.label == expected.label
            assert answer.rule in expected.rules
            assert 0 <= max(expected.radius, Fraction(0)) - Fraction(answer.radius) <= ROUNDING
            if answer.label is not None:
                entries.append(Stored(x, answer.label, Fraction(answer.radius), answer))
        assert [entry.answer for entry in memory.entries()] == [entry.answer for entry in entries]
        assert list(memory.contradictions()) == []
    for i, a in enumerate(entries):
        assert not any(a.label != b.label and share_a_point(a, b, norm) for b in entries[:i])


ALPHAS = (0.0001, 0.001, 0.4)


@pytest.mark.parametrize("norm", [1, 2])
@given(steps=crowds(), alphas=st.lists(st.sampled_from(ALPHAS), min_size=14, max_size=14), looks=st.integers(0, 2**14))
@settings(max_examples=150)
def test_an_answer_never_changes_and_is_as_strong_as_asked(
    norm: int, steps: list[Step], alphas: list[float], looks: int
) -> None:
    """Settled or looked up, before and after the answers to others."""
    given_to: dict[tuple[Coordinates, float], SettledCertificate] = {}
    with CertificateMemory(norm=norm) as memory:
        for i, ((x, label, radius), alpha) in enumerate(zip(steps, alphas, strict=False)):
            point = certificate(label=label, radius=radius, norm=norm, alpha=alpha)
            answer = memory.lookup(np.array(x), alpha=alpha) if looks >> i & 1 else memory.settle(np.array(x), point)
            if answer is not None and answer.label is not None:
                assert answer.alpha <= alpha
                assert given_to.setdefault((x, alpha), answer) == answer
            for (known, asked), before in given_to.items():
                assert memory.lookup(np.array(known), alpha=asked) == before
                assert memory.settle(np.array(known), replace(point, alpha=asked)) == before
        entries = list(memory.entries())
        for entry in entries:
            proved = entry if entry.answer.origin is None else entries[entry.answer.origin - 1]
            assert entry.answer.proof == proved.answer.point
            gap = distance(tuple(entry.x), tuple(proved.x), norm)
            assert Fraction(entry.answer.radius) + gap <= Fraction(entry.answer.proof.radius)
        assert list(memory.contradictions()) == []


@pytest.mark.parametrize("norm", [1, 2])
@given(steps=crowds(), cuts=st.lists(st.integers(0, 14), max_size=3), block=st.sampled_from([1, 2, 5, 256]))
@settings(max_examples=100)
def test_settling_in_blocks_is_settling_one_after_another(
    norm: int, steps: list[Step], cuts: list[int], block: int
) -> None:
    inputs = np.array([x for x, _, _ in steps])
    points = [certificate(label=label, radius=radius, norm=norm) for _, label, radius in steps]
    with (
        pytest.MonkeyPatch.context() as patch,
        CertificateMemory(norm=norm) as memory,
        CertificateMemory(norm=norm) as other,
    ):
        patch.setattr(base, "_BLOCK", block)
        expected = [memory.settle(x, point) for x, point in zip(inputs, points, strict=True)]
        places = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
        answers = []
        for start, end in pairwise(places):
            answers += other.settle_many(inputs[start:end], points[start:end])
        assert answers == expected
        assert [entry.answer for entry in other.entries()] == [entry.answer for entry in memory.entries()]
        assert other.lookup_many(inputs) == [memory.lookup(x) for x in inputs]
        assert list(other.contradictions()) == []
