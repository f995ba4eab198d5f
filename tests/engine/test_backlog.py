"""Whoever certifies what and in whichever order, whoever is lost on the way: certificates come in order, each once."""

import random

from hypothesis import given
from hypothesis import strategies as st

from sigmax.engine.backlog import Backlog
from sigmax.engine.blocks import Block, blocks_left
from sigmax.runs.points import Certified
from toy import point


def make_blocks(sizes: list[int], done: int) -> list[Block]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    blocks = [Block(tuple(range(start, start + size))) for start, size in zip(starts, sizes, strict=True)]
    return blocks_left(blocks, done)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    workers=st.integers(1, 4),
    ahead=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_certificates_come_in_order_each_once(
    sizes: list[int], workers: int, ahead: int, seed: int, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, sum(sizes)))
    chance = random.Random(seed)
    blocks = make_blocks(sizes, done)
    backlog, at_work, found = Backlog(blocks, ahead=ahead), dict[int, Block](), list[int]()
    while not backlog.is_done:
        while len(at_work) < workers and (task := backlog.hand_out()) is not None:
            at_work[task[0]] = task[1]
        assert at_work, "while something is left, there is work for somebody"
        assert max(at_work) < min(i for i, block in enumerate(blocks) if block.indices[-1] not in found) + ahead
        number = chance.choice(sorted(at_work))
        block = at_work[number]
        if block.left == 0 or chance.random() < 0.2:  # finished, or lost
            backlog.give_back(number)
            del at_work[number]
        else:
            some = block.indices[block.begin :][: chance.randint(0, 3)]
            backlog.take(number, [Certified(index, point(0, 1.0), 0.0) for index in some])
            at_work[number] = block.after(len(some))
        found += [certified.index for certified in backlog.in_order()]
    assert found == list(range(done, sum(sizes)))
