"""The work unit: the certificates of a block depend on the request and the block alone."""

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sigmax import AscentSearch, HalvingSearch, PointCertificate, SigmaSearch
from sigmax.budget import Budget
from sigmax.engine import Prepared, prepare
from sigmax.engine.blocks import block_size, certify_block
from sigmax.runs import CertificationSpec
from toy import Brighter, Shared, Wide, toy_spec

INPUTS = 40
BUDGETS: dict[str, dict[str, Any]] = {
    "few": {"n": 100},
    "many": {"n": 4_000},
    "tolerance": {"n": 8_000, "tolerance": 0.05},
    "radii": {"n": 8_000, "radii": (0.25, 0.5)},
    "runner-up": {"n": 4_000, "runner_up": True},
    "n-wrong": {"n": 4_000, "n_wrong": 500},
}


@pytest.fixture(params=BUDGETS)
def budget(request: pytest.FixtureRequest) -> Budget:
    return Budget(**BUDGETS[request.param])


def blocks(work: Prepared) -> Iterator[list[int]]:
    size = block_size(work)
    return (work.indices[start : start + size] for start in range(0, INPUTS, size))


@pytest.mark.parametrize(
    "search",
    [
        HalvingSearch(initial=0.25, pilot=16),
        AscentSearch(initial=0.25, steps=20, step_size=1e-3, pilot=0),
        Shared(initial=0.25),
    ],
)
def test_a_block_may_begin_anywhere(tmp_path: Path, search: SigmaSearch, budget: Budget) -> None:
    """What was certified before takes part in the choice for the rest, as it did when it was certified."""
    work = prepare(toy_spec(tmp_path, model="toy:small_network", inputs=INPUTS, search=search, budget=budget))
    block = next(blocks(work))
    whole = list(certify_block(work, block))
    assert len(whole) == len(block)
    for begin in (1, 5, len(block) - 1, len(block)):
        assert list(certify_block(work, block, begin=begin)) == whole[begin:]


def test_blocks_may_come_in_any_order_and_from_anyone(tmp_path: Path, budget: Budget) -> None:
    spec = toy_spec(tmp_path, model="toy:small_network", inputs=INPUTS, budget=budget, search=Brighter(initial=0.2))
    work = prepare(spec)
    there: CertificationSpec = pickle.loads(pickle.dumps(work.spec))  # as another process gets it
    assert there == work.spec
    other = prepare(there)
    found: dict[int, PointCertificate] = {}
    order = list(blocks(work))
    random.Random(0).shuffle(order)
    for who, block in zip([work, other] * len(order), order, strict=False):
        found |= zip(block, certify_block(who, block), strict=True)
    expected = [point for block in blocks(work) for point in certify_block(work, block)]
    assert [found[index] for index in work.indices] == expected


def test_what_is_known_is_not_sampled_again(tmp_path: Path) -> None:
    search = Brighter(initial=0.2)
    work = prepare(toy_spec(tmp_path, inputs=INPUTS, n=5_000, search=search))
    (block, *_) = blocks(work)
    done: dict[int, list[int]] = {0: [], 10: []}
    for begin, passes in done.items():
        list(certify_block(work, block, begin=begin, on_progress=passes.append))
    assert sum(done[0]) == len(block) * 5_100
    assert sum(done[10]) < sum(done[0]) - 8 * 5_000  # a batch of inputs may be shared with what is left


@pytest.mark.parametrize("change", [{"noise": Wide()}, {"batch": 256}, {"budget": Budget(n=50)}])
def test_the_size_of_a_block_follows_from_the_request(tmp_path: Path, change: dict[str, Any]) -> None:
    """Not from how many inputs there are: a run may go on with more."""
    spec = toy_spec(tmp_path, inputs=INPUTS, **change)
    few = replace(spec, data=replace(spec.data, max=2))
    assert block_size(prepare(few)) == block_size(prepare(spec)) >= 16
