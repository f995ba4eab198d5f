"""Ctrl-C at any moment: the memory is then as its ledger is, and goes on."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import sigmax.memory.sqlite
from servers import Postgres
from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.memory import CertificateMemory
from sigmax.memory.balls import Vector

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)
both = pytest.mark.parametrize("is_durable", [False, True], ids=["in process", "file"])

LEDGER = sigmax.memory.sqlite.__file__
PACKAGE = str(Path(LEDGER).parent)
Interrupt = Callable[[int], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def interrupted(moment: int, *, files: tuple[str, ...], unit: str = "line") -> Iterator[None]:
    """Raise KeyboardInterrupt before the moment-th line or opcode that runs in files whose paths begin like this.

    A signal handler runs between two instructions, at a random moment. A trace function runs at the moment that the
    test chooses.
    """
    left = moment

    def trace(frame: FrameType, event: str, _argument: Any) -> Callable[..., Any] | None:
        nonlocal left
        if not frame.f_code.co_filename.startswith(files):
            return None
        frame.f_trace_opcodes = unit == "opcode"
        if event == unit:
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


line_of_the_package = partial(interrupted, files=(PACKAGE,))
opcode_of_the_ledger = partial(interrupted, files=(LEDGER,), unit="opcode")
opcode_of_a_context = partial(interrupted, files=(LEDGER, contextlib.__file__), unit="opcode")


def step(i: int) -> tuple[Vector, PointCertificate]:
    """Crowded inputs, so that all rules and searches take part."""
    rng = np.random.default_rng(i)
    x = rng.integers(0, 24, 2) / 4 + np.array([0.0, i * 1e-6])
    return x, certificate(label=int(rng.integers(3)), radius=float(rng.choice([0.0, 0.3, 0.6])))


def is_interrupted(memory: CertificateMemory, i: int, interrupt: contextlib.AbstractContextManager[None]) -> bool:
    """Settle step i, interrupted or not; then ask again, while the traceback of the interrupt is still held."""
    x, point = step(i)
    before = {entry.id: entry.answer for entry in memory.entries()}
    held: BaseException | None = None
    try:
        with interrupt:
            memory.settle(x, point)
    except KeyboardInterrupt as interrupt:
        held = interrupt
    stored = {entry.id: entry.answer for entry in memory.entries()}
    assert len(stored) - len(before) in (0, 1)
    assert {key: stored[key] for key in before} == before
    again = memory.settle(x, certificate(label=9, radius=9.0) if len(stored) > len(before) else point)
    answers: list[SettledCertificate] = [entry.answer for entry in memory.entries()]
    assert again in answers
    assert len(memory) == len(answers) == len(before) + 1
    return held is not None


def check_all_moments(memory: CertificateMemory, interrupt: Interrupt, moments: Iterable[int]) -> int:
    """Interrupt at each moment until one is past the end of settling; how many there were."""
    for i, moment in enumerate(moments):
        if not is_interrupted(memory, i, interrupt(moment)):
            break
    assert list(memory.contradictions()) == []
    return i


@both
@pytest.mark.parametrize(
    ("interrupt", "stride"), [(line_of_the_package, 1), (opcode_of_a_context, 3)], ids=["lines", "opcodes"]
)
def test_interrupted_at_any_moment(tmp_path: Path, is_durable: bool, interrupt: Interrupt, stride: int) -> None:
    place = tmp_path / "memory.db" if is_durable else None
    with CertificateMemory(norm=2, place=place) as memory:
        assert check_all_moments(memory, interrupt, range(1, 100_000, stride)) > 100
        if place is None:
            return
        # A lock or a snapshot left behind would get in the way of another process.
        with CertificateMemory.open(place, norm=2) as other:
            other.settle(np.array([50.0, 50.0]), certificate(label=1, radius=1.0))
            answers = [entry.answer for entry in memory.entries()]
            assert [entry.answer for entry in other.entries()] == answers


def test_interrupted_on_a_server(postgres: Postgres) -> None:
    place = postgres.database()
    with CertificateMemory.open(place, norm=2) as memory, CertificateMemory.open(place, norm=2) as other:
        assert check_all_moments(memory, line_of_the_package, range(1, 100_000, 7)) > 15
        # A lock left behind would get in the way of another process.
        other.settle(np.array([50.0, 50.0]), certificate(label=1, radius=1.0))
        assert [entry.answer for entry in other.entries()] == [entry.answer for entry in memory.entries()]


def test_answers_right_after_an_interrupt_in_process() -> None:
    """Nothing but the next question comes after the interrupt: it must find out by itself that one was."""
    with CertificateMemory(norm=2) as memory:
        for i in range(10_000):
            x, point = step(i)
            before, is_over = len(memory), False
            try:
                with line_of_the_package(i + 1):
                    memory.lookup(x)
                    memory.settle(x, point)
                    is_over = True
            except KeyboardInterrupt:
                pass
            found = memory.lookup(x)
            has_stored = len(list(memory.entries())) > before
            answer = memory.settle(x, point)
            assert found == answer or not has_stored
            assert memory.lookup(x) == answer
            assert len(memory) == before + 1 == len(list(memory.entries()))
            if is_over:
                break
        assert i > 100
        assert list(memory.contradictions()) == []


def test_a_block_interrupted_at_any_line_is_stored_as_a_whole_or_not_at_all() -> None:
    with CertificateMemory(norm=2) as memory:
        for i in range(10_000):
            inputs, points = zip(*(step(5 * i + k) for k in range(5)), strict=True)
            before, is_over = len(memory), False
            try:
                with line_of_the_package(1 + 7 * i):
                    memory.settle_many(np.stack(inputs), points)
                    is_over = True
            except KeyboardInterrupt:
                pass
            assert len(list(memory.entries())) - before in (0, 5)
            answers = memory.settle_many(np.stack(inputs), points)
            assert answers == memory.lookup_many(np.stack(inputs))
            assert len(memory) == before + 5
            if is_over:
                break
        assert i > 50
        assert list(memory.contradictions()) == []


def test_interrupted_with_another_writer(tmp_path: Path) -> None:
    """While the traceback of an interrupt is held, another process writes; the next answer heeds it."""
    file = tmp_path / "memory.db"
    with CertificateMemory.open(file, norm=2) as memory, CertificateMemory.open(file, norm=2) as other:
        for i in range(10_000):
            x, beside = np.array([3.0 * i, 0.0]), np.array([3.0 * i + 0.5, 0.0])
            other.settle(np.array([3.0 * i, 99.0]), certificate(label=1, radius=1.0))  # a row to read when interrupted
            held: BaseException | None = None
            try:
                with opcode_of_the_ledger(1 + i):
                    memory.settle(x, certificate(label=0, radius=2.0))
            except KeyboardInterrupt as interrupt:
                held = interrupt
            given = other.settle(beside, certificate(label=1, radius=1.0))
            assert memory.settle(x, certificate(label=0, radius=2.0)).label == given.label
            if held is None:
                break
        assert i > 50
        assert list(memory.contradictions()) == []
