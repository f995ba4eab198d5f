"""Certification of a data set in this process: from a source into a run folder, through the memory."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sigmax.budget import Budget
from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.memory import CertificateMemory, Ledger
from sigmax.models import BaseClassifier
from sigmax.probe import fastest_batch
from sigmax.records import (
    ABSTAIN,
    CONFIG,
    MEMORY,
    NOTES,
    CertificateTable,
    RunFolder,
    format_row,
    read_config,
    read_table,
)
from sigmax.sampling import Progress
from sigmax.smoothed import SmoothedClassifier

# Shows work under way: (what, how much in all) -> a context that is told what was done since.
Tracker = Callable[[str, int], AbstractContextManager[Progress]]

# Images decoded at a time: bounds the memory that large images take.
_BLOCK = 64


def certify_source(
    smoothed: SmoothedClassifier,
    source: ImageSource,
    indices: Sequence[int],
    out: Path,
    *,
    budget: Budget,
    track: Tracker,
    memory: Path | None = None,
    resume: bool = False,
    notes: dict[str, str] | None = None,
) -> CertificateTable:
    """Certify these inputs in order into the run folder `out`; return the whole table.

    Per-input sigma is always settled by a memory: without one its certificates could contradict each
    other. One sigma for all is settled only where a memory is given.

    Args:
        smoothed: The classifier.
        source: The data set.
        indices: Places in the data set; they also seed the noise.
        out: The run folder.
        budget: How each input is sampled.
        track: Shows progress, in forward passes of one sample.
        memory: A memory file to share; by default per-input runs keep their own in the folder.
        resume: Continue a run that was begun with the same settings.
        notes: What else to write into the configuration, for people.
    """
    config: dict[str, Any] = {
        "data": source.digest(),
        "search": smoothed.search.settings(),
        "noise": smoothed.noise.name,
        "n0": budget.n0,
        "n": budget.n,
        "alpha": budget.alpha,
        "tolerance": budget.tolerance,
        "radii": list(budget.radii),
        "runner_up": budget.runner_up,
        "n_wrong": budget.n_wrong,
        "seed": budget.seed,
        "batch": smoothed.batch_size,
        "device": smoothed.classifier.device.type,  # other kinds of device draw other noise
        "fingerprint": smoothed.fingerprint,
        "memory": str(memory) if memory else None,
        NOTES: notes or {},
    }
    refused = [index for index, times in Counter(indices).items() if times > 1 or not 0 <= index < len(source)]
    if refused:
        raise InvalidInputError(f"expected each index once, from 0 to {len(source) - 1}, got {refused[0]}")
    source.check_images(indices)  # a broken one must not stop the run hours later
    has_own_memory = memory is None and smoothed.search.is_per_input
    with ExitStack() as stack:
        # A memory that is refused must not leave a run folder behind, so it comes first.
        settler = stack.enter_context(_open_memory(memory, smoothed)) if memory else None
        on_begin = partial(_clear_memory, out / MEMORY) if has_own_memory else None
        run = stack.enter_context(RunFolder(out, config, resume=resume, on_begin=on_begin))
        done = run.check_rows(indices)
        if has_own_memory:
            settler = stack.enter_context(_open_memory(out / MEMORY, smoothed))
        if settler is not None and done:
            _check_answers(settler, source, run)
        left = max(0, len(indices) - done)
        work = left * (budget.n0 + budget.n + smoothed.search.cost())
        advance = stack.enter_context(track(f"certifying {left} inputs", work))
        _append_rows(smoothed, source, indices, done, run, settler, budget, advance)
    return read_table(out)


def batch_of(out: Path, classifier: BaseClassifier, shape: tuple[int, ...]) -> int:
    """The batch that the run in this folder was begun with; for a new one the fastest, found by a probe.

    A run that is continued keeps its batch: a probe may find another one today.
    """
    if (out / CONFIG).exists() and (begun := read_config(out).get("batch")):
        return int(begun)
    return fastest_batch(classifier, shape)


def _open_memory(path: Path, smoothed: SmoothedClassifier) -> CertificateMemory:
    return CertificateMemory.open(path, norm=smoothed.noise.norm, fingerprint=smoothed.fingerprint)


def _clear_memory(path: Path) -> None:
    """Remove the empty memory of a run that failed before its first row; refuse one that holds answers."""
    if not path.exists():
        return
    if not Ledger.is_blank(path):
        with CertificateMemory.existing(path) as memory:
            if len(memory):
                raise RecordError(
                    f"expected no answers yet where a run begins, got {len(memory)} in {path}; "
                    "choose another folder, or move it away and continue with it by --memory"
                )
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _check_answers(memory: CertificateMemory, source: ImageSource, run: RunFolder) -> None:
    """Refuse a memory that does not hold the answers recorded so far: what follows could contradict them."""
    table = read_table(run.path)
    rows = np.flatnonzero(table.predict != ABSTAIN).tolist()
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        x = source.images(table.idx[block].tolist())
        for row, answer in zip(block, memory.lookup_many(x), strict=True):
            recorded = int(table.predict[row]), float(table.radius[row])
            if answer is None or (answer.label, answer.radius) != recorded:
                got = "none" if answer is None else f"class {answer.label}, radius {answer.radius}"
                raise RecordError(
                    f"expected a memory with the answer to input {table.idx[row]} that {run.table} has, class "
                    f"{recorded[0]}, radius {recorded[1]}, got {got}; continue with the memory it was begun with"
                )


def _append_rows(
    smoothed: SmoothedClassifier,
    source: ImageSource,
    indices: Sequence[int],
    done: int,
    run: RunFolder,
    memory: CertificateMemory | None,
    budget: Budget,
    advance: Progress,
) -> None:
    """Certify, settle, record: killed in between, the next run asks the memory again and gets the same answer.

    A resumed run takes the same blocks as one that was never interrupted, because the last bits of a
    network may depend on the place of an input in its batch.
    """
    for start in range(done // _BLOCK * _BLOCK, len(indices), _BLOCK):
        block, skip = indices[start : start + _BLOCK], max(0, done - start)
        if skip >= len(block):
            continue
        x = torch.from_numpy(source.images(block))
        truth = source.labels[block].tolist()
        points = smoothed.certify_each(x, budget, indices=block, truth=truth, skip=skip, on_progress=advance)
        began = time.perf_counter()
        for index, image, point in zip(block[skip:], x[skip:], points, strict=True):
            settled = memory.settle(image, point) if memory is not None else None
            now = time.perf_counter()
            run.append(format_row(index, int(source.labels[index]), point, settled, now - began))
            began = now
