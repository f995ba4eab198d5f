"""What an engine is: it runs blocks somewhere, and gives their certificates back in the order of the inputs."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Self

from sigmax.engine.blocks import Block
from sigmax.engine.prepare import Prepared
from sigmax.runs.points import Certified
from sigmax.sampling import Progress


class Engine(ABC):
    """Where blocks of inputs are certified. It is a context manager: leaving it frees what it holds."""

    @abstractmethod
    def workers(self) -> int:
        """How many blocks run at a time."""

    @abstractmethod
    def certify(self, work: Prepared, blocks: Sequence[Block], advance: Progress) -> Generator[Certified, None, None]:
        """The certificates of the blocks in the order of the inputs, the same bits from every engine.

        `advance` is told how many forward passes were done since the last call. It may raise, to stop the work. Closing
        the generator stops it too.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the engine holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
