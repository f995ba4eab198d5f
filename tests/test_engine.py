"""A run belongs to the memory that settled it: begun anew or continued, its answers never contradict each other."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from oracles import HalfSpace
from sigmax import CertificateMemory, HalvingSearch, PointCertificate, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.data import ArraySource
from sigmax.engine import certify_source
from sigmax.errors import InvalidInputError, RecordError
from sigmax.records import CertificateTable
from sigmax.sampling import Progress


@contextmanager
def quietly(_what: str, _work: int) -> Iterator[Progress]:
    yield lambda _: None


def certify(
    out: Path,
    *,
    n: int = 200,
    inputs: int | Sequence[int] = 3,
    memory: Path | None = None,
    resume: bool = False,
) -> CertificateTable:
    torch.manual_seed(0)
    images = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    source = ArraySource("toy", images, np.array([0, 1, 1]), ["no", "yes"], levels=None)
    smoothed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=HalvingSearch(initial=0.25))
    budget = Budget(n=n)
    indices = range(inputs) if isinstance(inputs, int) else inputs
    return certify_source(smoothed, source, indices, out, budget=budget, track=quietly, memory=memory, resume=resume)


def answers(table: CertificateTable) -> list[tuple[int, float]]:
    return list(zip(table.predict.tolist(), table.radius.tolist(), strict=True))


def test_a_run_goes_on_with_the_memory_it_was_begun_with(tmp_path: Path) -> None:
    whole = certify(tmp_path / "whole")
    assert (whole.predict >= 0).sum() >= 2
    certify(tmp_path / "run", inputs=2)
    assert answers(certify(tmp_path / "run", resume=True)) == answers(whole)


def test_a_run_whose_memory_is_lost_is_not_continued(tmp_path: Path) -> None:
    certify(tmp_path, inputs=2)
    before = (tmp_path / "certificates.tsv").read_bytes()
    (tmp_path / "memory.db").unlink()
    with pytest.raises(RecordError, match=r"answer to input 0 .* got none; continue with the memory"):
        certify(tmp_path, resume=True)
    assert (tmp_path / "certificates.tsv").read_bytes() == before


def test_a_memory_at_another_place_of_the_same_name_is_refused(tmp_path: Path) -> None:
    here = Path.cwd()
    (tmp_path / "elsewhere").mkdir()
    try:
        os.chdir(tmp_path)
        certify(tmp_path / "run", inputs=2, memory=Path("shared.db"))
        os.chdir(tmp_path / "elsewhere")
        with pytest.raises(RecordError, match="continue with the memory it was begun with"):
            certify(tmp_path / "run", memory=Path("shared.db"), resume=True)
    finally:
        os.chdir(here)


def test_a_run_does_not_begin_with_the_answers_of_another(tmp_path: Path) -> None:
    certify(tmp_path, n=100)
    for name in ("certificates.tsv", "config.json"):
        (tmp_path / name).unlink()
    for _ in range(2):  # nor at the second attempt
        with pytest.raises(RecordError, match=r"expected no answers yet where a run begins, got \d in"):
            certify(tmp_path, n=2_000)
    assert not (tmp_path / "config.json").exists()


def begin_and_fail(out: Path) -> None:
    """Leave a folder as a run that was killed before its first row does."""
    certify(out, inputs=0)


def test_the_empty_memory_of_a_failed_run_is_not_in_the_way(tmp_path: Path) -> None:
    begin_and_fail(tmp_path)
    kept = tmp_path / "memory.db.bak"
    kept.write_text("a copy")
    assert answers(certify(tmp_path, n=300)) == answers(certify(tmp_path / "other", n=300))
    assert kept.exists()


def test_a_memory_that_was_killed_while_it_was_made_is_not_in_the_way(tmp_path: Path) -> None:
    begin_and_fail(tmp_path)
    for part in tmp_path.glob("memory.db*"):
        part.unlink()
    (tmp_path / "memory.db").touch()
    assert answers(certify(tmp_path, n=300)) == answers(certify(tmp_path / "other", n=300))


def test_a_memory_that_somebody_uses_is_never_removed(tmp_path: Path) -> None:
    begin_and_fail(tmp_path)
    path = tmp_path / "memory.db"
    point = PointCertificate(label=1, radius=9.0, sigma=0.25, p_lower=0.9, n=100, alpha=0.001, norm=2)
    with CertificateMemory.existing(path) as memory:
        memory.settle(np.zeros(4, dtype=np.float32), point)
    with pytest.raises(RecordError, match="got 1 in"):
        certify(tmp_path, n=300)
    table = certify(tmp_path, n=300, memory=path)
    assert set(table.predict.tolist()) == {1}
    with CertificateMemory.existing(path) as memory:
        assert len(memory) == 4


@pytest.mark.parametrize("inputs", [[0, 1, 0], [0, -1], [3]])
def test_indices_that_no_table_could_hold_are_refused_before_any_work(tmp_path: Path, inputs: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="each index once, from 0 to 2, got"):
        certify(tmp_path / "run", inputs=inputs)
    assert not (tmp_path / "run").exists()
