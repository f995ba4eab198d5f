"""The workers of a Ray cluster that certify one request, as their driver sees them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from sigmax.engine.backlog import Backlog
from sigmax.engine.worker import Place, Report, Surroundings, Worker, this_place
from sigmax.errors import EngineError
from sigmax.runs import CertificationSpec
from sigmax.sampling import Progress

_POLL = 0.5  # seconds after which an interrupt is noticed
_SLOW = 30.0  # seconds without any worker before a note
_PATIENCE = 3600.0  # seconds without any worker before an error
_MOST_LOST = 3  # workers lost in a row, without a certificate in between, beside each of them once
Note = Callable[[str], None]


@dataclass(slots=True, kw_only=True, eq=False)
class _Member:
    handle: Any
    pending: Any  # what comes next from it: its place, or the reports on its block; None: it waits for a block
    place: Place | None = None  # None: it has not loaded the model yet
    task: int | None = None  # the number of its block
    passes: int = 0  # forward passes since its last certificate


@final
class Crew:
    """Workers that load a request once and take blocks from its backlog; lost ones are replaced.

    Args:
        ray: The package, connected.
        spec: The resolved request.
        backlog: Its blocks.
        is_accelerated: Whether a worker needs an accelerator.
        on_note: Told about lost workers, and about nodes that may compute other bits.
    """

    def __init__(
        self, ray: Any, spec: CertificationSpec, backlog: Backlog, *, is_accelerated: bool, on_note: Note
    ) -> None:
        self._ray, self._backlog, self._on_note = ray, backlog, on_note
        self._request, self._surroundings = _anywhere(spec).to_json(), Surroundings.here()
        self._kind = ray.remote(Worker).options(
            num_cpus=1 if is_accelerated else self._surroundings.threads,
            num_gpus=1 if is_accelerated else 0,
            scheduling_strategy="SPREAD",
        )
        self._members: list[_Member] = []
        self._lost = 0  # in a row
        self._alone_since = time.monotonic()
        self._notes: set[str] = set()

    def hire(self, count: int) -> None:
        """Start this many workers; they load the model as soon as the cluster has room for them."""
        for _ in range(count):
            handle = self._kind.remote()
            pending = handle.load.remote(self._request, self._surroundings)
            self._members.append(_Member(handle=handle, pending=pending))

    def work(self, advance: Progress) -> None:
        """Hand out blocks, and take the reports that arrive within half a second."""
        for member in self._members:
            if member.pending is None and (given := self._backlog.hand_out()) is not None:
                member.task, block = given
                member.pending = member.handle.certify.options(num_returns="streaming").remote(block)
        waiting = {member.pending: member for member in self._members if member.pending is not None}
        ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=_POLL)
        for pending in ready:
            self._hear(waiting[pending], advance)
        self._wait_for_workers()
        advance(0)  # which may raise, to stop the work

    def dismiss(self) -> None:
        """End all workers."""
        for member in self._members:
            self._ray.kill(member.handle)
        self._members.clear()

    def _hear(self, member: _Member, advance: Progress) -> None:
        errors = self._ray.exceptions
        try:
            if member.place is None:
                self._welcome(member, self._ray.get(member.pending))
            else:
                self._take(member, self._ray.get(next(member.pending)), advance)
        except StopIteration:  # the block is finished
            member.task = member.pending = None
        except errors.RayTaskError as error:  # raised by the worker, which says where
            raise EngineError(str(error.cause)) from error
        except errors.RayError as error:
            self._lose(member, error, advance)

    def _welcome(self, member: _Member, place: Place) -> None:
        member.place, member.pending = place, None
        here = this_place().processor
        if place.processor != here:
            self._note_once(
                f"node {place.node} computes with {place.processor} and this machine with {here}: "
                "the last bits of an answer may depend on where it was computed"
            )

    def _take(self, member: _Member, report: Report, advance: Progress) -> None:
        assert member.task is not None, "it has a block"
        member.passes += report.passes
        if report.certified:
            self._backlog.take(member.task, report.certified)
            member.passes = self._lost = 0
        advance(report.passes)

    def _lose(self, member: _Member, error: Exception, advance: Progress) -> None:
        """Replace a worker that is gone; what is left of its block is done by another."""
        self._members.remove(member)
        self._ray.kill(member.handle)  # it may only be out of reach
        if member.task is not None:
            self._backlog.give_back(member.task)
            advance(-member.passes)
        where = f"on node {member.place.node}" if member.place else "while it was starting"
        self._lost += 1
        if self._lost > _MOST_LOST + len(self._members):
            raise EngineError(
                f"expected workers that keep running, got {self._lost} lost in a row, the last {where} "
                f"({type(error).__name__}); check the memory of the nodes, lower --batch, and continue with --resume"
            ) from error
        self._on_note(f"lost a worker {where} ({type(error).__name__}); its inputs are certified elsewhere")
        self.hire(1)

    def _wait_for_workers(self) -> None:
        """Note that no worker has started yet, and give up after an hour."""
        now = time.monotonic()
        if any(member.place is not None for member in self._members):
            self._alone_since = now
        elif now - self._alone_since > _PATIENCE:
            raise EngineError(
                f"expected a worker to start within {_PATIENCE:.0f} s, got none; "
                "look for free cores or GPUs with ray status, and continue with --resume"
            )
        elif now - self._alone_since > _SLOW:
            self._note_once("waiting for the first worker; ray status shows whether the cluster has room for one")

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._on_note(text)


def _anywhere(spec: CertificationSpec) -> CertificationSpec:
    """The request for a worker: on the same kind of device, whichever it has, and without the driver's memory."""
    assert spec.found is not None, "the request is resolved"
    device = spec.found.device if spec.found.backend else None
    placed = spec.with_models(lambda model: replace(model, device=device))
    return replace(placed, memory=None, frozen=False, found=replace(spec.found, frozen=None))
