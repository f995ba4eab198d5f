"""Answering single inputs: the same question gets the same answer, and no two answers contradict each other."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oracles import HalfSpace
from sigmax import CertificateMemory, HalvingSearch, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.serve import Answerer
from sigmax.serve.answer import Question


@pytest.fixture
def smoothed() -> SmoothedClassifier:
    return SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=HalvingSearch(initial=0.25), batch_size=64)


def open_memory(path: Path, smoothed: SmoothedClassifier) -> CertificateMemory:
    return CertificateMemory.open(path, norm=2, fingerprint=smoothed.fingerprint)


def test_a_question_asked_twice_is_recalled_without_sampling(tmp_path: Path, smoothed: SmoothedClassifier) -> None:
    x = HalfSpace(4).at_distance(torch.tensor([0.5]))[0]
    done: list[int] = []
    with open_memory(tmp_path / "memory.db", smoothed) as memory:
        answerer = Answerer(smoothed, Budget(n=500), memory)
        first = answerer.answer(x, on_progress=done.append)
        assert (first.label, first.rule, first.is_recalled) == (1, "kept", False)
        assert 0 < first.radius < 0.6
        assert sum(done) > 500
        done.clear()
        again = answerer.answer(x, on_progress=done.append)
        assert (again, done) == (replace(first, is_recalled=True), [])
    with open_memory(tmp_path / "memory.db", smoothed) as memory:  # also in another process, with another seed
        assert Answerer(smoothed, Budget(n=500, seed=9), memory).answer(x) == again


def test_an_input_inside_a_ball_inherits_its_label(tmp_path: Path, smoothed: SmoothedClassifier) -> None:
    near, inside = HalfSpace(4).at_distance(torch.tensor([0.5, 0.45]))
    with open_memory(tmp_path / "memory.db", smoothed) as memory:
        answerer = Answerer(smoothed, Budget(n=500), memory)
        first, second = answerer.answer(near), answerer.answer(inside)
    assert second.radius == pytest.approx(first.radius - 0.05, abs=1e-6)
    assert (second.label, second.rule, second.is_recalled) == (1, "inherited", True)


def test_an_answer_depends_on_no_other_question(tmp_path: Path, smoothed: SmoothedClassifier) -> None:
    """An input names its own noise: neither its place nor what came before it matters."""
    a, b = HalfSpace(4).at_distance(torch.tensor([0.3, 3.0]))
    found = []
    for name, order in (("ab", (a, b)), ("ba", (b, a))):
        with open_memory(tmp_path / name, smoothed) as memory:
            answerer = Answerer(smoothed, Budget(n=500), memory)
            answers = [answerer.answer(x) for x in order]
            found.append(answers if name == "ab" else answers[::-1])
    assert found[0] == found[1]


def test_without_a_memory_the_answer_is_a_point_certificate(smoothed: SmoothedClassifier) -> None:
    near, edge = HalfSpace(4).at_distance(torch.tensor([0.5, 0.0]))
    answerer = Answerer(smoothed, Budget(n=500))
    answer = answerer.answer(near)
    assert (answer.label, answer.rule, answer.is_recalled) == (1, None, False)
    assert 0 < answer.radius < 0.6  # a half-space is certified up to its distance
    assert answer.sigma > 0
    assert answerer.answer(near) == answer
    assert answerer.answer(edge).label is None


def test_the_whole_budget_counts(tmp_path: Path) -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=0.25, batch_size=64)
    x = HalfSpace(4).at_distance(torch.tensor([0.3]))[0]
    with open_memory(tmp_path / "memory.db", smoothed) as memory:
        answer = Answerer(smoothed, Budget(n=50_000, radii=(0.1, 0.2, 0.4)), memory).answer(x)
    assert answer.radius == 0.2


def test_what_is_proved_grows_and_a_deadline_ends_it(tmp_path: Path) -> None:
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=0.25, batch_size=64)
    x, other = HalfSpace(4).at_distance(torch.tensor([0.5, 1.5]))
    seen: list[PointCertificate] = []
    with open_memory(tmp_path / "memory.db", smoothed) as memory:
        answerer = Answerer(smoothed, Budget(n=20_000, anytime=True), memory)
        answer = answerer.answer(x, on_proved=seen.append)
        assert (answer.n, answer.radius) == (20_000, seen[-1].radius)
        assert 0.45 < seen[-1].radius < 0.5
        assert [point.radius for point in seen] == sorted(point.radius for point in seen)
        assert len({point.radius for point in seen}) > 10
        early = answerer.answer(other, seconds=0.0, on_proved=seen.append)
        assert (early.label, early.rule, early.n) == (None, "abstained", 0)
        assert memory.lookup(other) is None  # an abstention claims nothing


def test_fresh_questions_have_fresh_noise(smoothed: SmoothedClassifier) -> None:
    x = HalfSpace(4).at_distance(torch.tensor([0.1]))[0]
    answerer = Answerer(smoothed, Budget(n=500, anytime=True))
    keys = set()
    for _ in range(3):
        (one, other) = answerer.begin([Question(x=x, budget=answerer.budget)] * 2)
        keys |= {tuple(each.stream.words(1, 4)[0].tolist()) for each in (one, other)}
    assert len(keys) == 6
