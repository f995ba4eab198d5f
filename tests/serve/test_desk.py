"""The desk: many questions at once, each answered as if it were alone, and none forgotten."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oracles import HalfSpace
from sigmax import CertificateMemory, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.serve import Answer, Answerer
from sigmax.serve.answer import Question
from sigmax.serve.desk import Desk, DeskClosedError, DeskFullError


class Slow(nn.Module):
    """A half-space that takes its time for each batch, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = HalfSpace(4)
        self.seconds = 0.0
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.batches += 1
        answer: Tensor = self.plane(x)
        return answer


def make_answerer(folder: Path, model: nn.Module | None = None) -> Answerer:
    smoothed = SmoothedClassifier(
        model or HalfSpace(4).eval(), num_classes=2, sigma=0.25, batch_size=64, identity="half-space"
    )
    folder.mkdir(exist_ok=True)
    memory = CertificateMemory.open(folder / "memory.db", norm=2, fingerprint=smoothed.fingerprint)
    return Answerer(smoothed, Budget(n0=64, n=1_000, anytime=True), memory)


@contextmanager
def open_desk(folder: Path, model: nn.Module | None = None, *, most: int = 256) -> Iterator[Desk]:
    answerer = make_answerer(folder, model)
    with Desk(answerer, most=most) as desk:
        yield desk
    assert answerer.memory is not None
    answerer.memory.close()


def ask(desk: Desk, *distances: float, n: int = 1_000, deadline: float | None = None) -> list[Future[Answer]]:
    budget = Budget(n0=64, n=n, anytime=True)
    until = None if deadline is None else time.monotonic() + deadline
    return desk.ask(
        [Question(x=x, budget=budget, deadline=until) for x in HalfSpace(4).at_distance(torch.tensor(distances))]
    )


def test_answers_are_certificates_and_those_in_the_memory(tmp_path: Path) -> None:
    distances = torch.linspace(0.2, 3.0, 20).tolist()
    with open_desk(tmp_path) as desk:
        answers = [reply.result(60) for reply in ask(desk, *distances)]
        for distance, answer in zip(distances, answers, strict=True):
            assert answer.label == 1
            assert answer.radius is not None
            assert 0 < answer.radius < distance
        again = [reply.result(60) for reply in ask(desk, *distances)]
        assert [answer.radius for answer in again] == [answer.radius for answer in answers]
        assert all(answer.is_recalled for answer in again)
        assert desk.open == 0
        assert desk.sampled > 0
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        stored = {entry.answer.radius for entry in memory.entries()}
        assert {answer.radius for answer in answers} <= stored
        assert not list(memory.contradictions())


def test_questions_share_batches(tmp_path: Path) -> None:
    alone, shared = Slow().eval(), Slow().eval()
    with open_desk(tmp_path / "a", alone) as desk:
        for distance in (1.0, 2.0, 3.0, 4.0):
            ask(desk, distance, n=70)[0].result(60)
    shared.seconds = 0.01
    with open_desk(tmp_path / "b", shared) as desk:
        for reply in ask(desk, 1.0, 2.0, 3.0, 4.0, n=70):
            reply.result(60)
    assert shared.batches < alone.batches


def test_a_short_question_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    slow = Slow().eval()
    slow.seconds = 0.002
    with open_desk(tmp_path, slow) as desk:
        (long,) = ask(desk, 1.0, n=60_000)
        time.sleep(0.2)
        (short,) = ask(desk, -1.0, n=200)
        assert short.result(60).label == 0
        assert not long.done()
        long.cancel()


def test_a_deadline_and_a_stop_end_with_what_is_proved(tmp_path: Path) -> None:
    slow = Slow().eval()
    slow.seconds = 0.002
    with open_desk(tmp_path, slow) as desk:
        (reply,) = ask(desk, 1.0, n=100_000, deadline=0.5)
        answer = reply.result(60)
        assert answer.label == 1
        assert answer.n is not None
        assert 0 < answer.n < 100_000
        assert answer.radius is not None
        assert 0 < answer.radius < 1.0
        proved = threading.Event()
        question = Question(
            x=HalfSpace(4).at_distance(torch.tensor([-1.0]))[0], budget=Budget(n0=64, n=100_000, anytime=True)
        )
        seen: list[PointCertificate] = []

        def watch(point: PointCertificate) -> None:
            seen.append(point)
            if point.label is not None:
                proved.set()

        question.on_proved = watch
        (stopped,) = desk.ask([question])
        assert proved.wait(60)
        question.is_stopped = True
        given = stopped.result(60)
        assert (given.label, given.radius, given.n) == (0, seen[-1].radius, seen[-1].n)
        assert seen[-1].n < 100_000
        assert ask(desk, -1.0)[0].result(60).radius == given.radius


def test_a_full_desk_says_so_and_takes_all_or_none(tmp_path: Path) -> None:
    slow = Slow().eval()
    slow.seconds = 0.01
    with open_desk(tmp_path, slow, most=3) as desk:
        kept = ask(desk, 1.0, 2.0)
        with pytest.raises(DeskFullError, match="at most 3 open questions") as refused:
            ask(desk, 3.0, 4.0)
        assert refused.value.seconds >= 1
        assert all(reply.result(60).label == 1 for reply in kept)
        assert ask(desk, 3.0)[0].result(60).label == 1


def test_closing_finishes_what_was_taken(tmp_path: Path) -> None:
    slow = Slow().eval()
    slow.seconds = 0.005
    with open_desk(tmp_path, slow) as desk:
        replies = ask(desk, 1.0, 2.0, 3.0)
    assert all(reply.result(0).label == 1 for reply in replies)
    with pytest.raises(DeskClosedError):
        ask(desk, 1.0)


def test_an_error_is_the_answer_to_its_own_question(tmp_path: Path) -> None:
    with open_desk(tmp_path) as desk:
        bad = Question(x=torch.full((4,), torch.nan), budget=Budget(n0=64, n=1_000, anytime=True))
        (failed,) = desk.ask([bad])
        with pytest.raises(ValueError, match="finite"):
            failed.result(60)
        assert ask(desk, 1.0)[0].result(60).label == 1
        bad = Question(x=torch.ones(4), budget=bad.budget, on_proved=lambda _: print(1 / 0))
        (failed,) = desk.ask([bad])
        with pytest.raises(ZeroDivisionError):
            failed.result(60)
        assert ask(desk, 2.0)[0].result(60).label == 1
        assert desk.open == 0


def test_a_cancelled_question_leaves_nothing(tmp_path: Path) -> None:
    slow = Slow().eval()
    slow.seconds = 0.01
    with open_desk(tmp_path, slow) as desk:
        (reply,) = ask(desk, 1.0, n=50_000)
        time.sleep(0.1)
        reply.cancel()
        while desk.open:
            time.sleep(0.01)
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        assert len(memory) == 0
