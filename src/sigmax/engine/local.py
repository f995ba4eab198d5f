"""The engine of this process: blocks of inputs, one after another."""

from collections.abc import Generator, Sequence
from typing import final

from sigmax.engine.base import Engine
from sigmax.engine.blocks import Block, run_block
from sigmax.engine.prepare import Prepared
from sigmax.runs.points import Certified
from sigmax.sampling import Progress


@final
class LocalEngine(Engine):
    """Certifies in this process."""

    def workers(self) -> int:
        """One block at a time."""
        return 1

    def certify(self, work: Prepared, blocks: Sequence[Block], advance: Progress) -> Generator[Certified, None, None]:
        """Each certificate as soon as it is known."""
        for block in blocks:
            yield from run_block(work, block, advance)

    def close(self) -> None:
        """Nothing is held."""
