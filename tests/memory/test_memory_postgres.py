"""A memory in PostgreSQL: lost connections, killed clients, restarts, and what belongs to others."""

import subprocess
import sys
from contextlib import ExitStack
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

from commands import Run
from crowds import Step, crowds
from servers import Postgres
from sigmax import CertificateMemory, FrozenMemory
from sigmax.certificate import PointCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector
from sigmax.memory.ledger import FORMAT
from sigmax.memory.postgres import PostgresLedger

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)


def at(position: float) -> Vector:
    return np.array([position, 0.0])


@pytest.fixture
def url(postgres: Postgres) -> str:
    """A memory of 10 balls, of which two labels alternate along a line."""
    url = emptied(postgres)
    with CertificateMemory.open(url, norm=2, fingerprint="network") as memory:
        memory.settle_many(
            np.stack([at(2.0 * i) for i in range(10)]), [certificate(label=i % 2, radius=0.75) for i in range(10)]
        )
    return url


@cache
def reused(postgres: Postgres) -> str:
    return postgres.database()


def emptied(postgres: Postgres) -> str:
    """A database without a memory: to empty one is faster than to make one."""
    postgres.sql("DROP SCHEMA IF EXISTS sigmax CASCADE", url=reused(postgres))
    return reused(postgres)


@given(steps=crowds())
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_those_of_a_memory_in_this_process(postgres: Postgres, steps: list[Step]) -> None:
    url, points = emptied(postgres), [certificate(label=label, radius=radius) for _, label, radius in steps]
    inputs = [np.array(x) for x, _, _ in steps]
    with CertificateMemory(norm=2) as memory:
        given = [memory.settle(x, point) for x, point in zip(inputs, points, strict=True)]
        looked_up = memory.lookup_many(np.stack(inputs))
        entries = [(entry.id, entry.x.tolist(), entry.answer) for entry in memory.entries()]
    half = len(steps) // 2
    with CertificateMemory.open(url, norm=2) as memory:
        answers = [memory.settle(x, point) for x, point in zip(inputs[:half], points[:half], strict=True)]
    with CertificateMemory.open(url, norm=2) as memory:
        answers += memory.settle_many(np.stack(inputs[half:]), points[half:])
        assert answers == given
        assert memory.lookup_many(np.stack(inputs)) == looked_up
        assert [(entry.id, entry.x.tolist(), entry.answer) for entry in memory.entries()] == entries
        assert list(memory.contradictions()) == []


def test_inputs_and_answers_are_stored_to_the_last_bit(postgres: Postgres) -> None:
    url, radii = postgres.database(), [0.1, 1 / 3, 5e-324, 1e-300, float(np.nextafter(1.0, 0.0)), 1e300]
    inputs = np.array([[10.0 * i, np.pi * 10.0**-i] for i in range(6)]) * 1e200
    with CertificateMemory.open(url, norm=2) as memory:
        given = memory.settle_many(inputs, [certificate(label=i, radius=r) for i, r in enumerate(radii)])
    with CertificateMemory.existing(url) as memory:
        assert [entry.answer for entry in memory.entries()] == given
        assert [entry.x.tolist() for entry in memory.entries()] == inputs.tolist()


def kill_connections(url: str) -> None:
    """End all other connections to this database, as a server does that shuts down."""
    with psycopg.connect(url, autocommit=True) as connection:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_connection_that_is_lost_at_commit(url: str, monkeypatch: pytest.MonkeyPatch, is_committed: bool) -> None:
    """Whether it was committed is unknown to the client; the answer is given once, and it is the one stored."""
    with CertificateMemory.existing(url) as memory:
        ledger = memory._view.ledger
        lost: list[bool] = []
        assert isinstance(ledger, PostgresLedger)
        execute = ledger._execute

        def lose(statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
            if statement == "COMMIT" and not lost:
                lost.append(True)
                if is_committed:
                    execute(statement, values)
                kill_connections(url)
            return execute(statement, values)

        monkeypatch.setattr(ledger, "_execute", lose)
        answers = memory.settle_many(np.stack([at(100.0), at(101.0)]), [certificate(label=1, radius=0.25)] * 2)
        assert lost
        assert [entry.answer for entry in memory.entries()][10:] == answers
        assert memory.settle(at(100.0), certificate(label=0, radius=9.0)) == answers[0]


@pytest.mark.parametrize("moment", range(8))
def test_a_connection_that_is_lost_at_any_statement(url: str, monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    with CertificateMemory.existing(url) as memory:
        ledger, done = memory._view.ledger, count()
        assert isinstance(ledger, PostgresLedger)
        execute = ledger._execute

        def lose(statement: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
            if next(done) == moment:
                kill_connections(url)
            return execute(statement, values)

        monkeypatch.setattr(ledger, "_execute", lose)
        answer = memory.settle(at(100.0), certificate(label=1, radius=0.25))
        assert answer == memory.lookup(at(100.0))
        assert len(memory) == len(list(memory.entries())) == 11


def test_a_process_that_was_suspended_in_its_transaction_asks_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends a transaction that is idle for a minute; when the process goes on, its patience begins anew."""
    now = 0.0
    monkeypatch.setattr("sigmax.memory.memory.time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _: None))
    with CertificateMemory.existing(url) as memory:
        append = memory._view.ledger.append

        def suspended(*arguments: Any) -> None:
            nonlocal now
            if not now:
                now = 300.0
                kill_connections(url)
            append(*arguments)

        monkeypatch.setattr(memory._view.ledger, "append", suspended)
        assert memory.settle(at(100.0), certificate(label=1, radius=0.25)).rule == "kept"
        assert now
        assert len(list(memory.entries())) == 11


def test_a_restart_between_questions_is_not_noticed(url: str, postgres: Postgres) -> None:
    with CertificateMemory.existing(url) as memory:
        first = memory.settle(at(100.0), certificate(label=1, radius=0.25))
        postgres.restart()
        assert memory.lookup(at(100.0)) == first
        entries = memory.entries()
        next(entries)
        postgres.restart()
        assert len(list(entries)) == 10
        assert memory.settle(at(200.0), certificate(label=1, radius=0.25)).rule == "kept"
        pairs = memory.contradictions(on_progress=lambda _: kill_connections(url))
        assert list(pairs) == []
        assert memory.frozen is None


STUCK = """
import sys, time
from functools import partial
from itertools import count
import numpy as np
from sigmax.certificate import PointCertificate
from sigmax.memory import CertificateMemory

memory = CertificateMemory.existing(sys.argv[1])
append = memory._view.ledger.append
def append_and_wait(*arguments):
    append(*arguments)
    print("appended", flush=True)
    time.sleep(600)
memory._view.ledger.append = append_and_wait
point = PointCertificate(label=1, radius=0.5, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)
memory.settle(np.array([100.0, 0.0]), point)
"""


def test_a_client_killed_in_mid_transaction_leaves_nothing_behind(url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK, url], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "appended\n"
        with CertificateMemory.existing(url) as memory:
            assert memory.lookup(at(100.0)) is None  # not committed
            client.kill()
            client.wait()
            answer = memory.settle(at(100.0), certificate(label=0, radius=0.5))  # the lock is free again
            assert (answer.label, len(memory)) == (0, 11)


@pytest.mark.parametrize(("norm", "fingerprint"), [(2, "other"), (2, None), (1, "network")])
def test_a_memory_of_another_owner_is_refused(url: str, norm: int, fingerprint: str | None) -> None:
    with pytest.raises(MemoryRefusedError, match="network"):
        CertificateMemory.open(url, norm=norm, fingerprint=fingerprint)


def test_another_format_and_foreign_tables_are_refused(url: str, postgres: Postgres) -> None:
    postgres.sql(f"UPDATE sigmax.memory SET format = {FORMAT - 1}", url=url)
    with pytest.raises(MemoryRefusedError, match=f"format {FORMAT} .* format {FORMAT - 1}"):
        CertificateMemory.existing(url)
    other = postgres.database()
    with pytest.raises(MemoryRefusedError, match="nothing is stored"):
        CertificateMemory.existing(other)
    postgres.sql("CREATE SCHEMA sigmax; CREATE TABLE sigmax.users (id int)", url=other)
    with pytest.raises(MemoryRefusedError, match="tables users"):
        CertificateMemory.open(other, norm=2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("DELETE FROM sigmax.balls WHERE id = 7", "ball 7"),
        ("UPDATE sigmax.balls SET radius = 0.8 WHERE id = 7", "ball 7"),
        ("DELETE FROM sigmax.inputs WHERE id = 7", "input 7"),
        ("UPDATE sigmax.inputs SET rule = 'truncated' WHERE id = 7", "input 7"),
    ],
)
def test_damage_is_refused(url: str, postgres: Postgres, damage: str, message: str) -> None:
    postgres.sql(damage, url=url)
    with pytest.raises(MemoryRefusedError, match=message), ExitStack() as stack:
        list(stack.enter_context(CertificateMemory.existing(url)).entries())


def test_a_database_that_was_put_back_is_refused(url: str, postgres: Postgres) -> None:
    """Restored from an older copy, it lacks answers that this process has given."""
    with CertificateMemory.existing(url) as memory:
        memory.settle(at(100.0), certificate(label=1, radius=0.25))
        memory.lookup(at(0.0))
        postgres.sql("DELETE FROM sigmax.balls WHERE id = 11; DELETE FROM sigmax.inputs WHERE id = 11", url=url)
        for ask in (memory.lookup, lambda x: memory.settle(x, certificate(label=0, radius=0.5))):
            with pytest.raises(MemoryRefusedError, match="entry 11"):
                ask(at(100.0))


def test_frozen_in_the_database(url: str) -> None:
    with CertificateMemory.existing(url) as live, CertificateMemory.existing(url) as other:
        digest = live.freeze(sigma=0.25).digest
        with pytest.raises(MemoryRefusedError, match="--frozen"):
            other.settle(at(100.0), certificate(label=1, radius=0.25))
    with FrozenMemory.existing(url) as frozen:
        assert frozen.digest == digest
        kill_connections(url)
        found = frozen.lookup(at(0.1))
        assert found is not None
        assert found.label == 0
        assert list(frozen.contradictions()) == []


@pytest.mark.parametrize(
    "place", ["postgresql://me:geheim@127.0.0.1:1/none", "postgresql://127.0.0.1:1/none?user=me&password=geheim"]
)
def test_no_message_shows_a_password(run: Run, tmp_path: Path, place: str) -> None:
    code, out, err = run("memory", "show", place)
    assert (code, err.count("\n")) == (2, 1)
    assert "127.0.0.1:1/none" in err
    assert "geheim" not in out + err
    code, _, err = run("certify", "zoo:cifar10-cohen-0.25", "--data", "cifar10", "--memory", place)
    assert (code, "PGPASSWORD" in err, "geheim" in err) == (2, True, False)
    code, _, err = run("memory", "check", "postgresql://me:geheim@:x:/y")
    assert (code, "geheim" in err) == (2, False)


def test_it_is_used_from_the_command_line(run: Run, digits_model: Path, postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    options = ("--n", 200, "--max", 3, "--per-input", "--memory", url, "--out", tmp_path / "run")
    code, _, err = run("certify", digits_model, *options)
    assert code == 0, err
    code, _, err = run("certify", digits_model, *options, "--resume")
    assert code == 0, err
    code, out, _ = run("memory", "check", tmp_path / "run")
    assert (code, "no two with different labels" in out) == (0, True)
    code, out, _ = run("memory", "show", url, "--json")
    assert code == 0


def test_without_psycopg_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "sigmax.memory.postgres")
    with pytest.raises(MemoryRefusedError, match=r"sigmax\[postgres\]"):
        CertificateMemory.open("postgresql://localhost/none", norm=2)
