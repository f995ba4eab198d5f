"""The engine of this process: blocks of inputs, one after another."""

from collections.abc import Iterator, Sequence

import torch

from sigmax.certificate import PointCertificate
from sigmax.engine.prepare import Prepared
from sigmax.jobs import Job
from sigmax.sampling import Progress

# Images decoded at a time: bounds the memory that large images take.
_MOST = 64


def block_size(work: Prepared) -> int:
    """Inputs of a block. It follows from the request alone, because the last bits of an answer may depend on it."""
    return min(_MOST, work.smoothed.block_size(_job(work, work.indices[:1], None)))


def certify_block(
    work: Prepared, indices: Sequence[int], *, begin: int = 0, on_progress: Progress | None = None
) -> Iterator[PointCertificate]:
    """The certificates of a block of inputs, each as soon as it is known; they depend on request and block alone.

    The first `begin` are known already: they take part in what inputs share, and are not sampled again.
    """
    job = _job(work, indices, on_progress)
    decision = work.smoothed.choose(job)
    for part in work.smoothed.estimate_parts(job):
        if part.stop > begin:
            yield from work.smoothed.estimate(job[part], decision[part])[max(0, begin - part.start) :]


def _job(work: Prepared, indices: Sequence[int], on_progress: Progress | None) -> Job:
    x = torch.from_numpy(work.source.images(indices))
    truth = work.source.labels[list(indices)].tolist()
    return work.smoothed.job(x, work.spec.budget, indices=indices, truth=truth, on_progress=on_progress)
