"""A frozen memory is a fixed classifier: its certificates hold for it, whoever asks what and in which order."""

import math
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import HalfSpace
from sigmax import CertificateMemory, FrozenMemory, HalvingSearch, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory import Entry
from sigmax.memory.balls import Vector
from sigmax.serve import Answerer

certificate = partial(PointCertificate, p_lower=0.9, n=1_000, alpha=0.001)
Ball = tuple[tuple[float, float], int, float]
SIGMA = 0.25

COORDINATES = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 0.1])
POINTS = st.tuples(COORDINATES, COORDINATES)
BALLS = st.lists(
    st.tuples(POINTS, st.integers(0, 2), st.sampled_from([0.0, 0.25, 0.5, 1.0, math.sqrt(2.0)])), max_size=10
)


def smoothed_class(x: Vector, plane: float) -> int:
    """The smoothed classifier of the tests: a half-space, which has the distance to its plane as radius."""
    return int(x[0] > plane)


def at_sigma(x: Vector, plane: float, norm: int) -> PointCertificate:
    radius = max(0.0, abs(float(x[0]) - plane))
    if radius == 0.0:
        return certificate(label=None, radius=0.0, sigma=SIGMA, norm=norm)
    return certificate(label=smoothed_class(x, plane), radius=radius, sigma=SIGMA, norm=norm)


def fixed(x: Vector, entries: list[Entry], plane: float, norm: int) -> int:
    """F by its definition, from all entries and in fractions."""
    for entry in entries:
        gaps = [abs(Fraction(a) - Fraction(b)) for a, b in zip(x.tolist(), entry.x.tolist(), strict=True)]
        distance = sum((gap**norm for gap in gaps), start=Fraction(0))
        if distance == 0 or distance < Fraction(entry.answer.radius) ** norm:
            assert entry.answer.label is not None
            return entry.answer.label
    return smoothed_class(x, plane)


def inner(x: Vector, radius: float, entries: list[Entry], norm: int) -> list[Vector]:
    """Points of the open ball around x: towards every entry and in other directions, close to the border too."""
    directions = [entry.x - x for entry in entries]
    directions += [np.array([math.cos(angle), math.sin(angle)]) for angle in np.linspace(0, 2 * math.pi, 9)]
    units = [d / np.linalg.norm(d, ord=norm) for d in directions if np.linalg.norm(d) > 0]
    centres = [entry.x for entry in entries if np.linalg.norm(entry.x - x, ord=norm) < radius]
    return [x, *centres, *(x + share * radius * unit for unit in units for share in (0.5, 0.99, 1 - 1e-9))]


@pytest.mark.parametrize("norm", [1, 2])
@given(balls=BALLS, questions=st.lists(POINTS, min_size=1, max_size=4), plane=st.sampled_from([0.75, 1.2, -5.0]))
@settings(max_examples=50)
def test_f_is_constant_on_every_certified_ball(
    norm: int, balls: list[Ball], questions: list[tuple[float, float]], plane: float
) -> None:
    with CertificateMemory(norm=norm) as live:
        for x, label, radius in balls:
            live.settle(np.array(x), certificate(label=label, radius=radius, sigma=0.5, norm=norm))
        frozen = live.freeze(sigma=SIGMA)
        entries = list(live.entries())
        for x in np.array(questions):
            point = at_sigma(x, plane, norm)
            given, found = frozen.settle(x, point), frozen.lookup(x)
            assert given == frozen.settle(x, point)
            for answer in (given, found):
                if answer is not None and answer.label is not None:
                    assert answer.label == fixed(x, entries, plane, norm)
                    around = inner(x, answer.radius, entries, norm)
                    assert {fixed(y, entries, plane, norm) for y in around} == {answer.label}
            if given.label is None:
                assert (point.label, given.radius, found) == (None, 0.0, None)
        assert len(list(frozen.entries())) == len(frozen) == len(entries)


def filled(place: Path | None = None) -> CertificateMemory:
    """Class 0 around the origin, and class 1 around (4, 0)."""
    memory = CertificateMemory(norm=2, place=place, fingerprint="network")
    memory.settle(np.array([0.0, 0.0]), certificate(label=0, radius=1.0, sigma=0.5, norm=2))
    memory.settle(np.array([4.0, 0.0]), certificate(label=1, radius=1.0, sigma=0.5, norm=2))
    return memory


@pytest.mark.parametrize(
    ("x", "label", "radius", "expected"),
    [
        (2.0, 0, 0.5, (0, 0.5, "kept")),
        (2.0, 0, 5.0, (0, 1.0, "truncated")),  # at the ball of class 1; that of class 0 does not cut
        (2.0, None, 0.0, (None, 0.0, "abstained")),
        (0.25, 0, 0.1, (0, 0.75, "inherited")),  # the depth is larger
        (0.25, 0, 9.0, (0, 2.75, "truncated")),  # they agree: the larger of both
        (0.25, 1, 0.1, (0, 0.75, "inherited")),  # F is 0 in the ball, whatever sampling says
        (0.25, None, 0.0, (0, 0.75, "inherited")),
        (0.0, 1, 9.0, (0, 1.0, "inherited")),
    ],
)
def test_the_rules(x: float, label: int | None, radius: float, expected: tuple[int | None, float, str]) -> None:
    with filled() as live:
        frozen = live.freeze(sigma=SIGMA)
        answer = frozen.settle(np.array([x, 0.0]), certificate(label=label, radius=radius, sigma=SIGMA, norm=2))
        assert (answer.label, answer.rule) == (expected[0], expected[2])
        assert answer.radius == pytest.approx(expected[1], rel=1e-14)
        assert answer.radius <= expected[1]


def test_it_repeats_the_answers_of_the_live_memory_and_stores_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 12, (80, 2)) / 4
    with CertificateMemory.open(tmp_path / "memory.db", norm=2) as live:
        given = [live.settle(x, certificate(label=int(rng.integers(3)), radius=0.4, sigma=0.5, norm=2)) for x in inputs]
        digest = live.freeze(sigma=SIGMA).digest
    with FrozenMemory.open(tmp_path / "memory.db", norm=2) as frozen:
        assert (frozen.digest, frozen.sigma) == (digest, SIGMA)
        assert [frozen.lookup(x, alpha=1e-9) for x in inputs] == given
        entries = len(frozen)
        beside = inputs + 0.01
        assert frozen.lookup_many(beside) == frozen.lookup_many(beside[::-1])[::-1]
        assert len(list(frozen.entries())) == entries
        assert list(frozen.contradictions()) == []


def test_appending_is_refused_also_where_it_was_open_before(tmp_path: Path) -> None:
    file = tmp_path / "memory.db"
    new = certificate(label=1, radius=0.5, sigma=0.5, norm=2)
    with filled(file) as first, filled(file) as second:
        first.freeze(sigma=SIGMA)
        for live in (first, second, filled(file)):
            with pytest.raises(MemoryRefusedError, match=r"frozen .*--frozen.*memory copy"):
                live.settle(np.array([9.0, 0.0]), new)
            assert live.lookup(np.array([4.0, 0.0])) is not None
            assert len(live) == 2


def test_the_digest_names_entries_and_sigma(tmp_path: Path) -> None:
    digests = []
    for i, (sigma, more) in enumerate([(0.25, 0), (0.25, 0), (0.5, 0), (0.25, 1)]):
        with filled(tmp_path / f"{i}.db") as live:
            for k in range(more):
                live.settle(np.array([9.0, k]), certificate(label=1, radius=0.1, sigma=0.5, norm=2))
            digests.append(live.freeze(sigma=sigma).digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    with filled(tmp_path / "0.db") as live:
        assert live.freeze(sigma=0.25).digest == digests[0]
        with pytest.raises(MemoryRefusedError, match=r"sigma=0\.5, got sigma=0\.25"):
            live.freeze(sigma=0.5)


@pytest.mark.parametrize("change", ["digest = 'other'", "sigma = 0.3", "entries = 3"])
def test_a_changed_frozen_memory_is_found(tmp_path: Path, change: str) -> None:
    with filled(tmp_path / "memory.db") as live:
        live.freeze(sigma=SIGMA)
    with closing(sqlite3.connect(tmp_path / "memory.db")) as connection, connection:
        connection.execute(f"UPDATE frozen SET {change}")
    with pytest.raises(MemoryRefusedError, match=r"digest|got 2 entries"), ExitStack() as stack:
        list(stack.enter_context(FrozenMemory.existing(tmp_path / "memory.db")).contradictions())


def test_what_is_not_of_the_fixed_classifier_is_refused(tmp_path: Path) -> None:
    point = certificate(label=1, radius=0.5, sigma=float(np.float32(0.12)), norm=2)
    with filled(tmp_path / "memory.db") as live:
        with pytest.raises(MemoryRefusedError, match="sigmax memory freeze"):
            FrozenMemory.existing(tmp_path / "memory.db")
        frozen = live.freeze(sigma=0.12)
        assert frozen.settle(np.array([2.0, 0.0]), point).label == 1
        for other in (replace(point, sigma=0.25), replace(point, tau=0.2), replace(point, expert=1)):
            with pytest.raises(InvalidInputError, match=r"sigma=0\.12"):
                frozen.settle(np.array([2.0, 0.0]), other)
    with pytest.raises(MemoryRefusedError, match="other"):
        FrozenMemory.open(tmp_path / "memory.db", norm=2, fingerprint="other")
    with pytest.raises(MemoryRefusedError, match="nothing is stored"):
        FrozenMemory.open(tmp_path / "missing.db", norm=2)
    assert not (tmp_path / "missing.db").exists()


def test_an_answerer_takes_it_and_names_the_digest(tmp_path: Path) -> None:
    space = HalfSpace(4).eval()
    one = SmoothedClassifier(space, num_classes=2, sigma=SIGMA, batch_size=64)
    per_input = SmoothedClassifier(space, num_classes=2, sigma=HalvingSearch(initial=SIGMA), batch_size=64)
    stored, inside, outside = HalfSpace(4).at_distance(torch.tensor([0.5, 0.45, -0.4]))
    budget = Budget(n=500)
    with CertificateMemory.open(tmp_path / "memory.db", norm=2, fingerprint=one.fingerprint) as live:
        first = Answerer(per_input, budget, live).answer(stored)
        assert first.digest is None
        frozen = live.freeze(sigma=SIGMA)
        with pytest.raises(InvalidInputError, match=r"sigma=0\.25"):
            Answerer(per_input, budget, frozen)
        answerer = Answerer(one, budget, frozen)
        again = answerer.answer(stored)
        assert again == replace(first, is_recalled=True, digest=frozen.digest)
        near, far = answerer.answer(inside), answerer.answer(outside)
        assert (near.label, near.rule, near.is_recalled, near.digest) == (1, "inherited", True, frozen.digest)
        assert (far.label, far.is_recalled, far.digest) == (0, False, frozen.digest)
        assert answerer.answer(outside) == far  # sampled again, with the same noise, and not stored
        assert len(frozen) == 1
