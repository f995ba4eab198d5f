"""The driver: blocks out, point certificates in, settled and recorded in the order of the inputs."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sigmax.data import ImageSource
from sigmax.engine import preflight
from sigmax.engine.local import block_size, certify_block
from sigmax.engine.prepare import Prepared, prepare
from sigmax.errors import RecordError
from sigmax.memory import CertificateMemory, FrozenMemory, Memory
from sigmax.models import LoadedModel
from sigmax.runs import (
    ABSTAIN,
    CONFIG,
    MEMORY,
    CertificateTable,
    CertificationSpec,
    RunFolder,
    format_row,
    read_spec,
    read_table,
)
from sigmax.sampling import Progress

# Shows work under way: (what, how much in all) -> a context that is told what was done since.
Tracker = Callable[[str, int], AbstractContextManager[Progress]]

_BLOCK = 64  # answers compared with the memory at a time


def certify(
    spec: CertificationSpec,
    out: Path,
    *,
    track: Tracker,
    resume: bool = False,
    loaded: LoadedModel | None = None,
    download: bool = False,
    on_note: Callable[[str], None] | None = None,
) -> CertificateTable:
    """Execute a request into the run folder `out`; return the whole table.

    Per-input sigma is always settled by a memory: without one its certificates could contradict each
    other. One sigma for all is settled only where the request names a memory. A frozen memory stores nothing; its
    digest is part of the record. `track` shows progress, in forward passes of one sample. For `loaded`, `download` and
    `on_note` see `prepare`.
    """
    if spec.batch is None and (out / CONFIG).exists():
        spec = replace(spec, batch=read_spec(out / CONFIG).batch)  # a probe may find another one today
    work = prepare(spec, loaded=loaded, download=download, on_note=on_note)
    spec, smoothed, source = work.spec, work.smoothed, work.source
    few = preflight.check(work)  # a broken image must not stop the run hours later
    has_own_memory = spec.memory is None and spec.is_per_input
    with ExitStack() as stack:
        # A memory that is refused must not leave a run folder behind, so it comes first.
        memory: Memory | None = stack.enter_context(_open_memory(spec.memory, work)) if spec.memory else None
        on_begin = partial(_clear_memory, out / MEMORY) if has_own_memory else None
        run = stack.enter_context(RunFolder(out, spec, resume=resume, on_begin=on_begin))
        done = run.check_rows(work.indices)
        if has_own_memory:
            memory = stack.enter_context(_open_memory(out / MEMORY, work))
        if isinstance(memory, CertificateMemory) and done:
            _check_answers(memory, source, run, alpha=spec.budget.alpha)
        left = max(0, len(work.indices) - done)
        if left and on_note is not None:
            preflight.announce(work, few, left, on_note)
        cost = left * (spec.budget.n0 + spec.budget.n + smoothed.search.cost())
        advance = stack.enter_context(track(f"certifying {left} inputs", cost))
        _append_rows(work, run, memory, done, advance)
    return read_table(out)


def _append_rows(work: Prepared, run: RunFolder, memory: Memory | None, done: int, advance: Progress) -> None:
    """Certify, settle, record: killed in between, the next run asks the memory again and gets the same answer."""
    indices, size = work.indices, block_size(work)
    for start in range(done // size * size, len(indices), size):
        block, begin = indices[start : start + size], max(0, done - start)
        if begin >= len(block):
            continue
        began = time.perf_counter()
        points = certify_block(work, block, begin=begin, on_progress=advance)
        for index, point in zip(block[begin:], points, strict=True):
            settled = None
            if memory is not None:
                settled = memory.settle(torch.from_numpy(work.source.images([index])[0]), point)
            now = time.perf_counter()
            run.append(format_row(index, int(work.source.labels[index]), point, settled, now - began))
            began = now


def _open_memory(place: str | Path, work: Prepared) -> Memory:
    kind = FrozenMemory if work.spec.frozen else CertificateMemory
    return kind.open(place, norm=work.smoothed.noise.norm, fingerprint=work.smoothed.fingerprint)


def _clear_memory(path: Path) -> None:
    """Remove the empty memory of a run that failed before its first row; refuse one that holds answers."""
    if kept := CertificateMemory.discard_empty(path):
        raise RecordError(
            f"expected no answers yet where a run begins, got {kept} in {path}; "
            "choose another folder, or move it away and continue with it by --memory"
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
                    f"expected a memory with the answer to input {table.idx[row]} that {run.table} has, class "
                    f"{recorded[0]}, radius {recorded[1]}, got {got}; continue with the memory it was begun with"
                )
