"""Copies between files and databases: the same entries, byte for byte."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from servers import Postgres
from sigmax.certificate import PointCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory import CertificateMemory, copy_memory, sql
from sigmax.memory.balls import Vector
from sigmax.memory.codec import Row
from sigmax.memory.places import existing_owner, ledger_kind
from sigmax.memory.sql import SqlLedger

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)
Place = Callable[[str], str]


@pytest.fixture
def places(tmp_path: Path, postgres: Postgres) -> Place:
    """A new place of this kind."""
    numbers = count()
    return lambda kind: postgres.database() if kind == "database" else str(tmp_path / f"{next(numbers)}.db")


def fill(place: str, number: int, *, first: int = 0) -> None:
    rng = np.random.default_rng(0)
    inputs: Vector = rng.integers(0, 40, (number, 2)) / 4
    points = [certificate(label=int(i) % 3, radius=0.3) for i in rng.integers(0, 9, number)]
    with CertificateMemory.open(place, norm=2, fingerprint="network") as memory:
        memory.settle_many(inputs[first:], points[first:])


def rows(place: str) -> list[tuple[Row, Row]]:
    ledger = ledger_kind(place)(place, existing_owner(place))
    assert isinstance(ledger, SqlLedger)
    try:
        return ledger._rows(after=0, limit=10_000)
    finally:
        ledger.close()


@pytest.mark.parametrize(("source", "target"), [("file", "database"), ("database", "file"), ("file", "file")])
def test_a_copy_has_the_same_rows_and_goes_on_by_itself(places: Place, source: str, target: str) -> None:
    old, new = places(source), places(target)
    fill(old, 60)
    done: list[int] = []
    copied = copy_memory(old, new, on_progress=done.append)
    assert rows(old) == rows(new)
    assert copied == len(rows(new)) == sum(done) > 30
    fill(new, 80)
    assert len(rows(old)) == copied < len(rows(new))


def test_an_interrupted_copy_goes_on(places: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = places("file"), places("database")
    fill(old, 60)
    monkeypatch.setattr(sql, "_COPIED", 10)

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_memory(old, new, on_progress=stop)
    assert len(rows(new)) == 10
    copy_memory(old, new)
    assert rows(new) == rows(old)
    assert copy_memory(old, new) == len(rows(old))


def test_a_copy_into_other_entries_or_of_nothing_is_refused(places: Place) -> None:
    old, new = places("file"), places("file")
    fill(old, 20)
    fill(new, 20, first=5)
    before = rows(new)
    with pytest.raises(MemoryRefusedError, match="copy into a new place"):
        copy_memory(old, new)
    assert rows(new) == before
    frozen = places("file")
    with CertificateMemory.open(frozen, norm=2, fingerprint="network") as memory:
        memory.freeze(sigma=0.25)
    with pytest.raises(MemoryRefusedError, match="frozen"):
        copy_memory(old, frozen)
    with pytest.raises(MemoryRefusedError, match="nothing is stored"):
        copy_memory(places("database"), places("file"))


def test_a_copy_of_a_frozen_memory_is_live_and_freezes_to_the_same_digest(places: Place) -> None:
    old, new = places("database"), places("file")
    fill(old, 20)
    with CertificateMemory.existing(old) as memory:
        digest = memory.freeze(sigma=0.25).digest
    copy_memory(old, new)
    with CertificateMemory.existing(new) as memory:
        assert memory.frozen is None
        assert memory.freeze(sigma=0.25).digest == digest
