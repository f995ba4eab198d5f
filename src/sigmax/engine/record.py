"""The record of a run under way: certificates are settled and recorded in the order of the inputs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
import torch

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.memory import CertificateMemory, FrozenMemory, Memory
from sigmax.runs import ABSTAIN, MEMORY, CertificationSpec, RunFolder, format_row, read_table
from sigmax.runs.points import Certified

_BLOCK = 64  # answers compared with the memory at a time


@final
class Record:
    """A run folder with its memory, if it has one, open for the next certificate."""

    def __init__(self, source: ImageSource, run: RunFolder, memory: Memory | None, done: int) -> None:
        self.done = done  # inputs recorded before
        self._source, self._run, self._memory = source, run, memory

    def take(self, certified: Certified) -> None:
        """Settle and record: killed in between, the next run asks the memory again and gets the same answer."""
        index, settled = certified.index, None
        if self._memory is not None:
            settled = self._memory.settle(torch.from_numpy(self._source.images([index])[0]), certified.point)
        truth = int(self._source.labels[index])
        self._run.append(format_row(index, truth, certified.point, settled, certified.seconds))


@contextmanager
def open_record(
    spec: CertificationSpec, source: ImageSource, indices: Sequence[int], out: Path, *, resume: bool
) -> Iterator[Record]:
    """Begin or continue the record of a resolved request on these inputs.

    If a search chooses sigma per input, a memory always settles the answers. Answers with one sigma are settled only if
    the request names a memory, and routed answers never. A shard records point certificates only. With `family_alpha`,
    a shared memory is refused, because its answers rely on certificates outside the table.
    """
    if spec.family_alpha is not None and spec.memory is not None and not spec.frozen:
        raise InvalidInputError(
            f"expected no shared memory with family_alpha={spec.family_alpha:g}, because its answers rely on "
            f"certificates outside the table, got memory={spec.memory}; leave out --memory, or give --alpha instead"
        )
    has_own_memory = spec.memory is None and spec.needs_memory and spec.shard is None
    with ExitStack() as stack:
        # A memory that is refused must not leave a run folder behind, so it comes first.
        memory: Memory | None = stack.enter_context(_open_memory(spec.memory, spec)) if spec.memory else None
        on_begin = partial(_clear_memory, out / MEMORY) if has_own_memory else None
        run = stack.enter_context(RunFolder(out, spec, resume=resume, on_begin=on_begin))
        done = run.check_rows(indices)
        if has_own_memory:
            memory = stack.enter_context(_open_memory(out / MEMORY, spec))
        if isinstance(memory, CertificateMemory) and done:
            _check_answers(memory, source, run, alpha=spec.budget.alpha)
        yield Record(source, run, memory, done)


def _open_memory(place: str | Path, spec: CertificationSpec) -> Memory:
    assert spec.found is not None, "the request is resolved"
    kind = FrozenMemory if spec.frozen else CertificateMemory
    memory = kind.open(place, norm=spec.noise.norm, fingerprint=spec.found.fingerprint)
    if isinstance(memory, FrozenMemory):
        memory.check_search(spec.search)
    return memory


def _clear_memory(path: Path) -> None:
    """Remove the empty memory of a run that failed before its first row; refuse one that holds answers."""
    if kept := CertificateMemory.discard_empty(path):
        raise RecordError(
            f"expected an empty memory for a new run, got entries={kept} in {path}; "
            "choose another folder, or move this file away and give it by --memory"
        )


def _check_answers(memory: CertificateMemory, source: ImageSource, run: RunFolder, *, alpha: float) -> None:
    """Refuse a memory that does not hold the answers recorded so far: what follows could contradict them."""
    table = read_table(run.path)
    rows = np.flatnonzero(table.predict != ABSTAIN).tolist()
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        x = source.images(table.idx[block].tolist())
        for row, answer in zip(block, memory.recall_many(x, alpha=alpha), strict=True):
            recorded = int(table.predict[row]), float(table.radius[row])
            if answer is None or (answer.label, answer.radius) != recorded:
                got = "none" if answer is None else f"class {answer.label}, radius {answer.radius}"
                raise RecordError(
                    f"expected a memory with the answers of {run.table}, for input {table.idx[row]} class "
                    f"{recorded[0]}, radius {recorded[1]}, got {got}; continue with the memory of this run"
                )
