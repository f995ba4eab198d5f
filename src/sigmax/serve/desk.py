"""The desk: takes questions from many threads, answers known ones at once, and samples all others in shared batches.

One thread looks questions up, another samples. Inputs join and leave the shared batches at any time, so that a long
question does not hold up a short one.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self, final

import torch

from sigmax.errors import SigmaxError
from sigmax.jobs import UnderWay
from sigmax.serve.answer import Answer, Answerer, Question

_LOOKUPS = 256  # questions looked up together
_LONGEST_WAIT = 60  # seconds that anybody is told to wait
_WEIGHT = 0.2  # of the newest round in the running pace


class DeskFullError(SigmaxError):
    """The desk has as many open questions as it takes."""

    def __init__(self, waiting: int, most: int, seconds: int) -> None:
        super().__init__(f"expected at most {most} open questions, got {waiting}; ask again in {seconds} s")
        self.seconds = seconds


class DeskClosedError(SigmaxError):
    """The desk finishes what it has and takes nothing new."""


@dataclass(slots=True, eq=False)
class _Case:
    """A question at the desk."""

    question: Question
    reply: Future[Answer] = field(default_factory=Future)
    one: UnderWay | None = None  # None: not begun

    @property
    def drawn(self) -> int:
        return self.one.drawn if self.one else 0


@final
class Desk:
    """Answers questions in the order that serves most of them soon.

    Args:
        answerer: Looks up, certifies and settles. It must have a memory.
        most: Open questions at most; more are refused with `DeskFullError`.
    """

    def __init__(self, answerer: Answerer, *, most: int = 256) -> None:
        self.answerer = answerer
        self.most = most
        self.sampled = 0  # forward passes so far
        self.open = 0  # questions without an answer
        self._pace = 0.0  # forward passes per second
        self._lock = threading.Lock()
        # One for each thread, so that a question wakes only the thread that it needs.
        self._is_asked, self._is_unknown = threading.Condition(self._lock), threading.Condition(self._lock)
        self.is_closing = False  # whether nothing new is taken
        self._unseen: deque[_Case] = deque()
        self._unknown: deque[_Case] = deque()  # not in the memory
        self._active: list[_Case] = []
        self._lookups = threading.Thread(target=self._look_up_all, name="lookups")
        self._sampling = threading.Thread(target=self._sample_all, name="sampling")
        self._lookups.start()
        self._sampling.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, questions: Sequence[Question]) -> list[Future[Answer]]:
        """Take all of these questions or none; each gets a future reply."""
        cases = [_Case(question) for question in questions]
        with self._lock:
            if self.is_closing:
                raise DeskClosedError(
                    "expected a service that takes questions, got one that shuts down; ask another replica"
                )
            if self.open + len(cases) > self.most:
                raise DeskFullError(self.open + len(cases), self.most, self._seconds_left())
            self.open += len(cases)
            self._unseen.extend(cases)
            self._is_asked.notify()
        return [case.reply for case in cases]

    def close(self) -> None:
        """Answer what was taken, then end."""
        with self._lock:
            self.is_closing = True
            self._is_asked.notify()
        self._lookups.join()
        with self._lock:
            self._is_unknown.notify()
        self._sampling.join()

    def _seconds_left(self) -> int:
        """How long the open questions will take at the present pace."""
        left = sum(case.question.budget.n - case.drawn for case in (*self._active, *self._unknown))
        return max(1, min(_LONGEST_WAIT, math.ceil(left / self._pace))) if self._pace else 1

    def _look_up_all(self) -> None:
        while True:
            with self._lock:
                self._is_asked.wait_for(lambda: self._unseen or self.is_closing)
                if not self._unseen:
                    return
                alpha = self._unseen[0].question.budget.alpha
                cases: list[_Case] = []
                while self._unseen and len(cases) < _LOOKUPS and self._unseen[0].question.budget.alpha == alpha:
                    cases.append(self._unseen.popleft())
            try:
                found = self.answerer.recall(torch.stack([case.question.x for case in cases]), alpha=alpha)
            except Exception as error:  # whatever it is, it is the answer to these questions alone
                self._fail(cases, error)
                continue
            unknown = [case for case, answer in zip(cases, found, strict=True) if answer is None]
            for case, answer in zip(cases, found, strict=True):
                if answer is not None:
                    self._reply(case, answer)
            if unknown:
                with self._lock:
                    self._unknown.extend(unknown)
                    self._is_unknown.notify()

    def _sample_all(self) -> None:
        turn = 0
        while True:
            with self._lock:
                self._is_unknown.wait_for(lambda: self._unknown or self._active or not self._lookups.is_alive())
                if not (self._unknown or self._active):  # and nothing can come any more
                    return
                new = self._next_group()
            if new:
                self._begin(new)
            if self._active:
                self._sample(turn)
                turn += 1
            self._settle()

    def _next_group(self) -> list[_Case]:
        """The next questions with one budget, as many as fill a batch while class and noise are chosen."""
        new: list[_Case] = []
        while self._unknown:
            question = self._unknown[0].question
            first = new[0].question if new else question
            if question.budget != first.budget or len(new) >= self._group(question):
                break
            new.append(self._unknown.popleft())
        self._active += new
        return new

    def _group(self, question: Question) -> int:
        smoothed, budget = self.answerer.smoothed, question.budget
        return max(1, smoothed.sampler.rows(question.x[None]) // (smoothed.cost(budget) - budget.n))

    def _begin(self, new: list[_Case]) -> None:
        begun = [case for case in new if not case.question.is_over()]  # else it waited too long
        if not begun:
            return
        try:
            for case, one in zip(begun, self.answerer.begin([case.question for case in begun]), strict=True):
                case.one = one
        except Exception as error:
            self._leave(begun)
            self._fail(begun, error)
            return
        self._show(begun)

    def _sample(self, turn: int) -> None:
        """One round of about one batch, in turn for the questions with the fewest samples and for the oldest."""
        smoothed = self.answerer.smoothed
        cases = [case for case in self._active if case.one is not None and not case.question.is_over()]
        if turn % 2 == 0:
            cases.sort(key=lambda case: case.drawn)
        chosen: list[_Case] = []
        room = smoothed.sampler.rows(cases[0].question.x[None]) if cases else 0
        for case in cases:
            if room > 0 and case.one is not None:
                chosen.append(case)
                room -= case.one.due - case.one.drawn
        if not chosen:
            return
        began, before = time.monotonic(), self.sampled
        try:
            smoothed.sampler.sample([case.one for case in chosen if case.one is not None], on_progress=self._count)
        except Exception as error:
            self._leave(chosen)
            self._fail(chosen, error)
            return
        pace = (self.sampled - before) / max(1e-6, time.monotonic() - began)
        self._pace = pace if not self._pace else (1 - _WEIGHT) * self._pace + _WEIGHT * pace
        self._show(chosen)

    def _show(self, cases: list[_Case]) -> None:
        """Tell all watchers what has been proved; an error of a watcher ends its own question."""
        for case in cases:
            try:
                if case.one is not None:
                    case.question.show(case.one)
            except Exception as error:
                self._leave([case])
                self._fail([case], error)

    def _count(self, passes: int) -> None:
        self.sampled += passes

    def _settle(self) -> None:
        """Settle questions that are finished or out of time, in one transaction; cancelled ones are dropped."""
        cancelled = [case for case in self._active if case.reply.cancelled()]
        self._leave(cancelled)
        with self._lock:
            self.open -= len(cancelled)
        done: list[_Case] = []
        points = []
        for case in self._active:
            if case.one is None:
                done.append(case)
                points.append(self.answerer.unproved(case.question))
                continue
            if case.question.is_over():
                case.one.stop()
            if case.one.point is not None:
                done.append(case)
                points.append(case.one.point)
        if not done:
            return
        self._leave(done)
        try:
            answers = self.answerer.settle(torch.stack([case.question.x for case in done]), points)
        except Exception as error:
            self._fail(done, error)
            return
        for case, answer in zip(done, answers, strict=True):
            self._reply(case, answer)

    def _leave(self, cases: list[_Case]) -> None:
        with self._lock:
            self._active = [case for case in self._active if case not in cases]

    def _reply(self, case: _Case, answer: Answer) -> None:
        with self._lock:
            self.open -= 1
        if case.reply.set_running_or_notify_cancel():
            case.reply.set_result(answer)

    def _fail(self, cases: list[_Case], error: Exception) -> None:
        with self._lock:
            self.open -= len(cases)
        for case in cases:
            if case.reply.set_running_or_notify_cancel():
                case.reply.set_exception(error)
