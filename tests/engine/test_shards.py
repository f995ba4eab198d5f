"""Shards: parts of a request that run apart, and merged give the bytes of a run without shards."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Run
from records import memory_rows, rows
from sigmax import FixedSigma, HalvingSearch
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.engine import certify, merge_shards, replay
from sigmax.errors import InvalidInputError, RecordError
from sigmax.runs import CertificationSpec, Shard, read_run, read_table
from sigmax.runs.points import read_points
from sigmax.sampling import Progress
from toy import quietly, toy_spec

INPUTS, SHARDS = 56, 3  # three whole blocks of 16 and a part of one


def shard_specs(spec: CertificationSpec, count: int = SHARDS) -> list[CertificationSpec]:
    return [replace(spec, shard=Shard(number=number, count=count)) for number in range(1, count + 1)]


def certify_shards(spec: CertificationSpec, folder: Path, count: int = SHARDS) -> list[Path]:
    places = []
    for number, shard in enumerate(shard_specs(spec, count), start=1):
        places.append(folder / f"shard-{number}")
        certify(shard, places[-1], track=quietly)
    return places


@contextmanager
def stopping(_what: str, _total: int) -> Iterator[Progress]:
    """Stop in the middle."""
    calls: list[int] = []

    def advance(done: int) -> None:
        calls.append(done)
        if len(calls) == 20:
            raise KeyboardInterrupt

    yield advance


@pytest.mark.parametrize("model", ["toy:small_network", "toy:level"])
def test_merged_shards_are_the_run_without_shards(tmp_path: Path, model: str) -> None:
    search = HalvingSearch(initial=0.25, pilot=16)
    spec = toy_spec(tmp_path, model=model, inputs=INPUTS, n=100, search=search)
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    certify(spec, whole, track=quietly)
    shards = certify_shards(spec, tmp_path)
    assert [len(read_table(shard)) for shard in shards] == [16 + 8, 16, 16]
    assert all(set(read_table(shard).rule) == {"point"} for shard in shards)
    assert not any((shard / "memory.db").exists() for shard in shards)
    merge_shards(shards[::-1], merged, track=quietly)
    assert rows(merged) == rows(whole)
    assert memory_rows(merged / "memory.db") == memory_rows(whole / "memory.db")
    assert (merged / "config.json").read_bytes() == (whole / "config.json").read_bytes()
    assert not replay(merged, track=quietly, most=3).differing


def test_shards_and_merges_resume(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, model="toy:small_network", inputs=INPUTS, search=HalvingSearch(initial=0.25, pilot=16))
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    certify(spec, whole, track=quietly)
    shards = certify_shards(spec, tmp_path)
    table = shards[0] / "certificates.tsv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:6]))
    with pytest.raises(RecordError, match="input 5"):
        merge_shards(shards, merged, track=quietly)
    assert not merged.exists()
    certify(shard_specs(spec)[0], shards[0], track=quietly, resume=True)
    with pytest.raises(KeyboardInterrupt):
        merge_shards(shards, merged, track=stopping)
    assert 0 < len(read_table(merged)) < INPUTS
    with pytest.raises(RecordError, match="--resume"):
        merge_shards(shards, merged, track=quietly)
    merge_shards(shards, merged, track=quietly, resume=True)
    assert rows(merged) == rows(whole)
    assert memory_rows(merged / "memory.db") == memory_rows(whole / "memory.db")


def test_one_sigma_and_a_shared_memory(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, inputs=20, search=FixedSigma(0.25))
    shards = certify_shards(spec, tmp_path, count=5)  # more shards than blocks: three are empty
    certify(spec, tmp_path / "whole", track=quietly)
    merge_shards(shards, tmp_path / "merged", track=quietly)
    assert rows(tmp_path / "merged") == rows(tmp_path / "whole")
    shared = replace(spec, memory=str(tmp_path / "one.db"))
    certify(shared, tmp_path / "settled", track=quietly)
    merge_shards(shards, tmp_path / "merged-settled", track=quietly, memory=str(tmp_path / "two.db"))
    assert rows(tmp_path / "merged-settled") == rows(tmp_path / "settled")
    assert read_table(tmp_path / "settled").is_settled
    assert memory_rows(tmp_path / "two.db") == memory_rows(tmp_path / "one.db")


def other_settings(spec: CertificationSpec, shards: list[Path]) -> list[Path]:
    other = shards[0].with_name("other")
    certify(replace(shard_specs(spec)[1], budget=Budget(n=150)), other, track=quietly)
    return [shards[0], other, shards[2]]


def fewer_inputs(spec: CertificationSpec, shards: list[Path]) -> list[Path]:
    other = shards[0].with_name("other")
    certify(replace(shard_specs(spec)[1], data=replace(spec.data, max=20)), other, track=quietly)
    return [shards[0], other, shards[2]]


def no_shard(spec: CertificationSpec, shards: list[Path]) -> list[Path]:
    certify(spec, shards[0].with_name("other"), track=quietly)
    return [*shards, shards[0].with_name("other")]


REFUSED: dict[str, Callable[[CertificationSpec, list[Path]], list[Path]]] = {
    "number 2": lambda _, shards: [shards[0], shards[2]],
    "1/3 in .*shard-1 and .*shard-1": lambda _, shards: [*shards, shards[0]],
    "budget.n=150": other_settings,
    "data.max=20": fewer_inputs,
    "without --shard": no_shard,
}


@pytest.mark.parametrize("says", REFUSED)
def test_only_all_shards_of_one_request_are_merged(tmp_path: Path, says: str) -> None:
    spec = toy_spec(tmp_path, inputs=INPUTS, n=100, search=FixedSigma(0.25))
    chosen = REFUSED[says](spec, certify_shards(spec, tmp_path))
    with pytest.raises(RecordError, match=says):
        merge_shards(chosen, tmp_path / "merged", track=quietly)
    assert not (tmp_path / "merged").exists()


def test_a_shard_is_not_continued_as_another(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, inputs=40, n=100)
    first, second = shard_specs(spec, 2)
    certify(first, tmp_path / "shard", track=quietly)
    for other in (second, spec):
        with pytest.raises(RecordError, match="shard"):
            certify(other, tmp_path / "shard", track=quietly, resume=True)
    with pytest.raises(RecordError, match="merge"):
        replay(tmp_path / "shard", track=quietly)


def test_other_images_are_not_settled(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, inputs=20, n=100)
    shards = certify_shards(spec, tmp_path, count=2)
    images = np.zeros((20, 4), np.float32)
    np.savez(tmp_path / "other.npz", images=images, labels=np.arange(20) % 2)
    with pytest.raises(RecordError, match="--data"):
        merge_shards(shards, tmp_path / "merged", track=quietly, data=f"arrays:{tmp_path / 'other.npz'}")
    (tmp_path / "toy-20.npz").rename(tmp_path / "moved.npz")
    merge_shards(shards, tmp_path / "merged", track=quietly, data=f"arrays:{tmp_path / 'moved.npz'}")
    assert len(read_table(tmp_path / "merged")) == 20


@pytest.mark.parametrize("shard", [(0, 3), (4, 3), (1, 0)])
def test_there_is_no_such_shard(shard: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError, match="shard"):
        Shard(number=shard[0], count=shard[1])


def test_points_are_read_back_as_they_were(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, model="toy:level", inputs=20, n=100, search=FixedSigma(0.25))
    certify(spec, tmp_path / "run", track=quietly)
    run = read_run(tmp_path / "run")
    found = read_points(tmp_path / "run", is_exact=False)
    assert [row.index for row in found] == list(range(20))
    assert [row.point.tau for row in found] == [0.25] * 20
    assert [row.point.radius for row in found] == run.table.radius.tolist()
    assert all(isinstance(row.point, PointCertificate) for row in found)
    assert {row.point.label for row in found} >= {0, 1}


def test_the_command_line(tmp_path: Path, run: Run) -> None:
    spec = toy_spec(tmp_path, inputs=40)
    request = ["toy:small_network", "--data", spec.data.name, "--n", 100, "--sigma", 0.25, "--per-input"]
    said: dict[str, Any] = {"--batch": ["--seed", 1], "--seed": ["--batch", 64, "--seed", "random"]}
    for option, given in said.items():
        code, _, err = run("certify", *request, *given, "--shard", "1/2", "--out", tmp_path / "refused")
        assert (code, option in err) == (2, True)
    request += ["--batch", 64]
    code, _, err = run("certify", *request, "--shard", "1/2", "--memory", tmp_path / "m.db")
    assert (code, "sigmax merge" in err) == (2, True)
    assert run("certify", *request, "--shard", "half")[0] == 2
    assert run("certify", *request, "--workers", 2)[0] == 2
    for number in (1, 2):
        code, out, err = run("certify", *request, "--shard", f"{number}/2", "--out", tmp_path / f"part-{number}")
        assert (code, "point certificates" in out) == (0, True), err
    code, out, err = run("merge", tmp_path / "part-1", tmp_path / "part-2", "--out", tmp_path / "merged")
    assert (code, "certified accuracy" in out) == (0, True), err
    assert run("certify", *request, "--out", tmp_path / "whole")[0] == 0
    assert rows(tmp_path / "merged") == rows(tmp_path / "whole")
