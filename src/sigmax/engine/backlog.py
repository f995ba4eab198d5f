"""Blocks handed out to workers, and their certificates put back into the order of the inputs."""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import final

from sigmax.engine.blocks import Block
from sigmax.runs.points import Certified


@final
class Backlog:
    """What is left of a request: blocks that no worker has, and certificates that wait for earlier ones.

    Args:
        blocks: The blocks, in the order of the inputs.
        ahead: How many blocks, counted from the first unfinished one, may be handed out or wait. It bounds what is lost
            if the driver is killed.
    """

    def __init__(self, blocks: Sequence[Block], *, ahead: int) -> None:
        self._left = list(blocks)
        self._free = list(range(len(blocks)))  # a heap: the earliest first
        self._arrived: list[deque[Certified]] = [deque() for _ in blocks]
        self._first = 0  # the first unfinished block
        self._ahead = ahead

    @property
    def is_done(self) -> bool:
        """Whether every certificate was given."""
        return self._first == len(self._left)

    def hand_out(self) -> tuple[int, Block] | None:
        """The next block with its number; None if no block may begin now."""
        if not self._free or self._free[0] >= self._first + self._ahead:
            return None
        number = heapq.heappop(self._free)
        return number, self._left[number]

    def take(self, number: int, certified: Sequence[Certified]) -> None:
        """The next certificates of a block."""
        self._left[number] = self._left[number].after(len(certified))
        self._arrived[number].extend(certified)

    def give_back(self, number: int) -> None:
        """The worker of this block is gone; the rest of the block is handed out again."""
        if self._left[number].left:
            heapq.heappush(self._free, number)

    def in_order(self) -> Iterator[Certified]:
        """The certificates whose predecessors have all been given."""
        while not self.is_done:
            while self._arrived[self._first]:
                yield self._arrived[self._first].popleft()
            if self._left[self._first].left:
                return
            self._first += 1
