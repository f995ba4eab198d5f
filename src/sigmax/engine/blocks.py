"""The work unit: a block of inputs, whose certificates depend on the request and the block alone."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import torch

from sigmax.certificate import PointCertificate
from sigmax.engine.prepare import Prepared
from sigmax.jobs import Job
from sigmax.runs.points import Certified
from sigmax.sampling import Progress

# Images decoded at a time: bounds the memory that large images take.
_MOST = 64


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Inputs that are selected and searched together; the first `begin` of them are already certified."""

    indices: tuple[int, ...]
    begin: int = 0

    @property
    def left(self) -> int:
        """How many are not certified yet."""
        return len(self.indices) - self.begin

    def after(self, certified: int) -> Self:
        """The same block after this many more inputs are certified."""
        return replace(self, begin=self.begin + certified)


def block_size(work: Prepared) -> int:
    """Inputs of a block. It follows from the request alone, because the last bits of an answer may depend on it."""
    return min(_MOST, work.certifier.block_size(_job(work, work.indices[:1], None)))


def split_blocks(work: Prepared) -> list[Block]:
    """The inputs of a request in whole blocks; those of its shard, if it is one."""
    indices, size = work.indices, block_size(work)
    blocks = [Block(tuple(indices[start : start + size])) for start in range(0, len(indices), size)]
    return blocks if work.spec.shard is None else work.spec.shard.of(blocks)


def blocks_left(blocks: Sequence[Block], done: int) -> list[Block]:
    """The blocks that are unfinished after the first `done` inputs."""
    found = []
    for block in blocks:
        begin = min(done, len(block.indices))
        done -= begin
        if begin < len(block.indices):
            found.append(block.after(begin))
    return found


def certify_block(
    work: Prepared, indices: Sequence[int], *, begin: int = 0, on_progress: Progress | None = None
) -> Iterator[PointCertificate]:
    """The certificates of a block of inputs, each as soon as it is known; they depend on request and block alone.

    The first `begin` are known already: they take part in what inputs share, and are not sampled again.
    """
    return work.certifier.certify_block(_job(work, indices, on_progress), begin=begin)


def run_block(work: Prepared, block: Block, on_progress: Progress) -> Iterator[Certified]:
    """Certify what is left of a block, with the time that each input takes."""
    points = certify_block(work, block.indices, begin=block.begin, on_progress=on_progress)
    for index in block.indices[block.begin :]:
        began = time.perf_counter()
        point = next(points)
        yield Certified(index, point, time.perf_counter() - began)


def _job(work: Prepared, indices: Sequence[int], on_progress: Progress | None) -> Job:
    x = torch.from_numpy(work.source.images(indices))
    truth = work.source.labels[list(indices)].tolist()
    return work.certifier.job(x, work.spec.budget, indices=indices, truth=truth, on_progress=on_progress)
