"""Certification of a data set in this process: from a source into a run folder, through the memory."""

import time
from collections.abc import Callable, Sequence

import torch

from sigmax.data import ImageSource
from sigmax.memory import CertificateMemory
from sigmax.records import RunFolder, format_row
from sigmax.sampling import Progress
from sigmax.smoothed import SmoothedClassifier

# Images decoded at a time: bounds the memory that large images take.
_BLOCK = 64


def certify_source(
    smoothed: SmoothedClassifier,
    source: ImageSource,
    indices: Sequence[int],
    run: RunFolder,
    *,
    memory: CertificateMemory | None,
    n0: int,
    n: int,
    alpha: float,
    seed: int,
    on_progress: Progress | None = None,
    on_row: Callable[[str], None] | None = None,
) -> None:
    """Certify these inputs in order, appending to the run what it does not hold yet.

    Each answer is settled by the memory, then recorded. Killed in between, the next run asks the memory
    again, which gives the same answer, and records that.

    Args:
        smoothed: The classifier.
        source: The data set.
        indices: Places in the data set; they also seed the noise.
        run: The folder that holds the table.
        memory: Settles the answers; None for certificates that hold on their own (one sigma for all).
        n0: Samples that select a class.
        n: Samples that estimate its probability.
        alpha: Failure probability of each certificate.
        seed: Seed of all noise.
        on_progress: Called with the number of forward passes done since the last call.
        on_row: Called with each line that was appended.
    """
    left = list(indices)[run.rows :]
    for start in range(0, len(left), _BLOCK):
        block = left[start : start + _BLOCK]
        x = torch.from_numpy(source.images(block))
        points = smoothed.certify_each(x, n0=n0, n=n, alpha=alpha, seed=seed, indices=block, on_progress=on_progress)
        began = time.perf_counter()
        for index, image, point in zip(block, x, points, strict=True):
            settled = memory.settle(image, point) if memory is not None else None
            now = time.perf_counter()
            line = format_row(index, int(source.labels[index]), point, settled, now - began)
            run.append(line)
            began = now
            if on_row is not None:
                on_row(line)
