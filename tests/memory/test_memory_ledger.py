"""The file of a memory: what is stored comes back, what belongs to another is refused, nothing is half stored."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError, MemoryRefusedError
from sigmax.memory import CertificateMemory
from sigmax.memory.balls import Vector
from sigmax.memory.index import Sketch, SketchedBalls
from sigmax.memory.ledger import FORMAT, Owner
from sigmax.memory.sqlite import SqliteLedger

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)
Settle = Callable[[CertificateMemory], object]


def at(position: float) -> Vector:
    return np.array([position, 0.0])


def run_sql(file: Path, statement: str) -> list[tuple[object, ...]]:
    """Run a statement on the file with Python's own SQLite, past the ledger."""
    with closing(sqlite3.connect(file)) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A memory of 40 balls, of which two labels alternate along a line."""
    file = tmp_path / "memory.db"
    with CertificateMemory.open(file, norm=2, fingerprint="network") as memory:
        for i in range(40):
            memory.settle(at(2.0 * i), certificate(label=i % 2, radius=0.75))
    return file


def test_reopened_it_gives_the_same_entries_and_answers(tmp_path: Path) -> None:
    file = tmp_path / "memory.db"
    rng = np.random.default_rng(0)
    inputs = rng.integers(0, 6, (300, 2)) / 2
    points = [certificate(label=int(rng.integers(3)), radius=float(rng.choice([0.0, 0.4, 1.0]))) for _ in inputs]
    with CertificateMemory.open(file, norm=2) as memory:
        given = [memory.settle(x, point) for x, point in zip(inputs, points, strict=True)]
        entries = [(entry.id, entry.x.tolist(), entry.answer) for entry in memory.entries()]
    with CertificateMemory.open(str(file), norm=2) as memory:
        assert len(memory) == len(entries)
        assert [(entry.id, entry.x.tolist(), entry.answer) for entry in memory.entries()] == entries
        assert [memory.lookup(x) for x in inputs] == given
        other = certificate(label=7, radius=5.0)
        assert [memory.settle(x, other) for x in inputs] == given


@pytest.mark.parametrize(("norm", "fingerprint"), [(2, "other"), (2, None), (1, "network")])
def test_a_memory_of_another_owner_is_refused(file: Path, norm: int, fingerprint: str | None) -> None:
    with pytest.raises(MemoryRefusedError, match="network"):
        CertificateMemory.open(file, norm=norm, fingerprint=fingerprint)


@pytest.mark.parametrize("written", [1, FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_and_left_alone(file: Path, written: int) -> None:
    run_sql(file, f"UPDATE memory SET format = {written}")
    run_sql(file, "DROP TABLE balls")
    before = file.read_bytes()
    with pytest.raises(MemoryRefusedError, match=f"format {FORMAT} .* format {written}"):
        CertificateMemory.existing(file)
    assert file.read_bytes() == before


def test_an_existing_memory_says_what_it_belongs_to(file: Path) -> None:
    with CertificateMemory.existing(file) as memory:
        assert (memory.norm, len(memory)) == (2, 40)
        assert list(memory.contradictions()) == []


def test_a_file_that_is_missing_or_empty_is_no_existing_memory(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    for name in ("missing.db", "empty.db"):
        with pytest.raises(MemoryRefusedError, match=name):
            CertificateMemory.existing(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]


@pytest.fixture(params=["text", "database", "empty table"])
def foreign(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of somebody else."""
    file = tmp_path / "foreign"
    if request.param == "text":
        file.write_text("not a database\n" * 100)
    else:
        run_sql(
            file, f"CREATE TABLE {'users' if request.param == 'database' else 'memory'} (format, norm, fingerprint)"
        )
    return file


def test_a_file_of_something_else_is_refused_and_left_alone(foreign: Path) -> None:
    before = foreign.read_bytes()
    for use in (partial(CertificateMemory.open, norm=2), CertificateMemory.existing, CertificateMemory.discard_empty):
        with pytest.raises(MemoryRefusedError, match="foreign"):
            use(foreign)
    assert foreign.read_bytes() == before


def test_only_a_memory_without_entries_is_discarded(file: Path) -> None:
    empty, blank, missing = (file.with_name(name) for name in ("empty.db", "blank.db", "missing.db"))
    CertificateMemory.open(empty, norm=2).close()
    blank.touch()
    assert [CertificateMemory.discard_empty(each) for each in (empty, blank, missing, file)] == [0, 0, 0, 40]
    assert list(file.parent.iterdir()) == [file]
    with CertificateMemory.existing(file) as memory:
        assert len(memory) == 40


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.95, 0.9999])
def test_a_truncated_file_is_refused(file: Path, share: float) -> None:
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(MemoryRefusedError, match=file.name):
        CertificateMemory.open(file, norm=2, fingerprint="network")


def test_a_page_that_a_crash_left_unfinished_is_taken_from_the_log(file: Path) -> None:
    """Killed while it copies its log into the file, a process leaves both behind."""
    with CertificateMemory.open(file, norm=2, fingerprint="network") as memory:
        for i in range(40, 400):
            memory.settle(at(2.0 * i), certificate(label=i % 2, radius=0.75))
        log = file.with_name("memory.db-wal")
        names = {path: file.with_name(f"crashed{path.name.removeprefix('memory')}") for path in (file, log)}
        for path, copy in names.items():
            copy.write_bytes(path.read_bytes())
    crashed = names[file]
    with crashed.open("ab") as half:
        half.write(bytes(100))
    with CertificateMemory.open(crashed, norm=2, fingerprint="network") as memory:
        assert len(memory) == 400
        assert not list(memory.contradictions())


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM balls",
        *(f"UPDATE balls SET {change}" for change in ("label = 1", "radius = 0.8", "alpha = 0.3", "margin = 0.0")),
        "UPDATE balls SET sketch = zeroblob(8)",
    ],
)
def test_a_lost_or_damaged_ball_is_refused(file: Path, damage: str) -> None:
    run_sql(file, f"{damage} WHERE id = 7")
    with pytest.raises(MemoryRefusedError, match="ball 7"):
        CertificateMemory.existing(file)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM inputs",
        "UPDATE inputs SET x = (SELECT x FROM inputs WHERE id = 8)",
        "UPDATE inputs SET rule = 'truncated'",
        "UPDATE inputs SET point = replace(point, 9, 8)",
        "UPDATE inputs SET encoding = '<f4'",
    ],
)
def test_a_lost_or_damaged_input_is_refused_where_it_matters(file: Path, damage: str) -> None:
    run_sql(file, f"{damage} WHERE id = 7")
    with CertificateMemory.existing(file) as memory:
        assert memory.lookup(at(2.0)) is not None
        with pytest.raises(MemoryRefusedError, match="input 7"):
            memory.settle(at(12.5), certificate(label=0, radius=0.5))
        for read in (memory.contradictions, memory.entries):
            with pytest.raises(MemoryRefusedError, match="input 7"):
                list(read())


def test_a_byte_of_an_input_that_the_disk_changed_is_noticed(tmp_path: Path) -> None:
    """SQLite itself does not notice."""
    file, image = tmp_path / "memory.db", np.full((3, 32, 32), 77 / 255, dtype=np.float32)
    with CertificateMemory.open(file, norm=2) as memory:
        memory.settle(image, certificate(label=0, radius=0.5))
    content = bytearray(file.read_bytes())
    content[content.index(bytes([77]) * 3_072) + 1_000] ^= 1
    file.write_bytes(content)
    assert run_sql(file, "PRAGMA integrity_check") == [("ok",)]
    with CertificateMemory.existing(file) as memory, pytest.raises(MemoryRefusedError, match="input 1"):
        memory.lookup(image)


def append_past_the_rules(
    file: Path, position: float, label: int, radius: float, sketched: float | None = None
) -> None:
    """Append an entry to the ledger without settling it, by default with the sketch of its input."""
    x, seen_as = at(position)[None], at(position if sketched is None else sketched)[None]
    point = certificate(label=label, radius=radius)
    answer = SettledCertificate(label=label, radius=radius, proof=point, point=point, rule="kept")
    sketch = Sketch((2,))
    balls = SketchedBalls(
        labels=np.array([label]),
        radii=np.array([radius]),
        alphas=np.array([point.alpha]),
        sketches=sketch(seen_as),
        margins=sketch.margins(seen_as, sketch(seen_as)),
    )
    ledger = SqliteLedger(file, Owner(norm=2, fingerprint="network"))
    (count,) = run_sql(file, "SELECT count(*) FROM balls")[0]
    assert isinstance(count, int)
    with ledger.locked():
        ledger.append(count + 1, list(x), [answer], balls)
    ledger.close()


def test_contradictions_that_others_wrote_are_found(file: Path) -> None:
    append_past_the_rules(file, 19.0, 0, 0.5)  # into ball 10 at 18, and touches ball 11 at 20, which agrees
    append_past_the_rules(file, 60.0, 1, 0.0)  # the input of entry 31
    append_past_the_rules(file, 81.0, 0, 0.25)
    append_past_the_rules(file, 82.0, 1, 0.75)  # balls that only touch share no point
    progress: list[int] = []
    with CertificateMemory.existing(file) as memory:
        assert list(memory.contradictions(on_progress=progress.append)) == [(10, 41), (31, 42)]
        assert sum(progress) == 44
        with pytest.raises(MemoryRefusedError, match="sigmax memory check"):
            memory.lookup(at(18.6))


def test_a_sketch_of_another_input_is_found(file: Path) -> None:
    append_past_the_rules(file, 100.0, 0, 0.5, sketched=200.0)
    with CertificateMemory.existing(file) as memory, pytest.raises(MemoryRefusedError, match="41"):
        list(memory.contradictions())


def test_contradictions_include_what_others_appended_since(file: Path) -> None:
    with CertificateMemory.existing(file) as memory:
        append_past_the_rules(file, 100.0, 0, 0.6)
        append_past_the_rules(file, 101.0, 1, 0.6)
        assert list(memory.contradictions()) == [(41, 42)]


def test_a_file_with_a_second_name_is_refused(file: Path) -> None:
    """Each name has a log of its own: what one process appends, a process under the other name does not see."""
    with CertificateMemory.existing(file) as memory:
        second = file.with_name("second.db")
        second.hardlink_to(file)
        with pytest.raises(MemoryRefusedError, match="2 hard links"):
            CertificateMemory.existing(second)
        for ask in (memory.lookup, lambda x: memory.settle(x, certificate(label=1, radius=0.5))):
            with pytest.raises(MemoryRefusedError, match="2 hard links"):
                ask(at(500.0))
        second.unlink()
        assert memory.settle(at(500.0), certificate(label=1, radius=0.5)).label == 1
    link = file.with_name("link.db")
    link.symlink_to(file)
    with CertificateMemory.existing(link) as memory:
        assert len(memory) == 41


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_file_that_is_replaced_while_it_is_open_is_refused(file: Path, is_replaced: bool) -> None:
    with CertificateMemory.existing(file) as memory:
        moved = file.rename(file.with_name("moved.db"))
        if is_replaced:
            file.write_bytes(moved.read_bytes())
        for ask in (memory.lookup, lambda x: memory.settle(x, certificate(label=1, radius=0.5))):
            with pytest.raises(MemoryRefusedError, match="another file" if is_replaced else "no file"):
                ask(at(0.0))
        file.unlink(missing_ok=True)
        moved.rename(file)
        assert memory.lookup(at(0.0)) is not None


def test_a_file_that_is_replaced_during_the_search_is_refused(
    tmp_path: Path, racers: Callable[[Settle], CertificateMemory]
) -> None:
    def replace_file(_other: CertificateMemory) -> object:
        return (tmp_path / "m.db").rename(tmp_path / "moved.db")

    memory = racers(replace_file)
    with pytest.raises(MemoryRefusedError, match="no file"):
        memory.settle(at(0.0), certificate(label=1, radius=5.0))


@pytest.mark.parametrize("place", ["missing/memory.db", "."])
def test_a_place_that_can_hold_no_file_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(MemoryRefusedError, match=tmp_path.name):
        CertificateMemory.open(tmp_path / place, norm=2)
    assert list(tmp_path.iterdir()) == []


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="mysql://me@localhost/memory"):
        CertificateMemory.open("mysql://me:secret@localhost/memory", norm=2)


@pytest.mark.parametrize("name", [":memory:", "what?.db", "a%20b#c.db", "file:memory.db?mode=memory"])
def test_any_file_name_is_a_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with CertificateMemory.open(name, norm=2) as memory:
        memory.settle(at(0.0), certificate(label=1, radius=1.0))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with CertificateMemory.existing(tmp_path / name) as memory:
        assert len(memory) == 1


def test_a_closed_memory_is_refused(file: Path) -> None:
    for memory in (CertificateMemory.existing(file), CertificateMemory(norm=2)):
        memory.lookup(at(0.0))
        memory.close()
        memory.close()
        with pytest.raises(MemoryRefusedError, match="closed"):
            memory.settle(at(0.0), certificate(label=1, radius=1.0))
        with pytest.raises(MemoryRefusedError, match="closed"):
            memory.lookup(at(0.0))


def test_an_8_bit_image_takes_a_byte_a_pixel_and_is_stored_exactly(tmp_path: Path) -> None:
    image = torch.arange(3 * 32 * 32).remainder(256).to(torch.uint8).reshape(3, 32, 32).float() / 255
    with CertificateMemory.open(tmp_path / "memory.db", norm=2) as memory:
        memory.settle(image, certificate(label=1, radius=1.0))
        (entry,) = memory.entries()
        assert entry.x.tolist() == image.double().ravel().tolist()
    assert run_sql(tmp_path / "memory.db", "SELECT encoding, length(x) FROM inputs") == [("u1/255", 3 * 32 * 32)]
    assert run_sql(tmp_path / "memory.db", "SELECT shape FROM memory") == [("[3, 32, 32]",)]


@pytest.mark.parametrize(
    ("make", "encoding"),
    [
        (lambda x: x, "<f8"),
        (lambda x: x.astype(np.float32), "<f4"),
        (lambda x: x.astype(np.float16), "<f2"),
        (lambda x: x.astype(">f8"), "<f8"),
        (lambda x: x.T, "<f8"),
        (lambda x: x * 1e300, "<f8"),
        (lambda x: (x * 1e38).astype(np.float32), "<f4"),
        (lambda x: np.round(x * 255) / 255, "<f8"),
        (lambda x: np.ones_like(x, dtype=np.float32) * np.nextafter(np.float32(1.0), np.float32(0.0)), "<f4"),
        (lambda x: np.full_like(x, 256.0 / 255.0, dtype=np.float32), "<f4"),
        (lambda x: np.full_like(x, -1.0 / 255.0, dtype=np.float32), "<f4"),
    ],
)
def test_any_input_is_stored_exactly(
    tmp_path: Path, make: Callable[[Vector], NDArray[np.floating]], encoding: str
) -> None:
    x = make(np.random.default_rng(0).standard_normal((4, 5)))
    with CertificateMemory.open(tmp_path / "memory.db", norm=2) as memory:
        memory.settle(x, certificate(label=1, radius=1.0))
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        (entry,) = memory.entries()
        assert entry.x.tolist() == x.astype(np.float64).ravel().tolist()
    assert run_sql(tmp_path / "memory.db", "SELECT encoding FROM inputs") == [(encoding,)]


def test_answers_are_stored_to_the_last_bit(tmp_path: Path) -> None:
    radii = [0.1, 1 / 3, 5e-324, 1e-300, float(np.nextafter(1.0, 0.0))]
    points = [certificate(label=i, radius=radius, tau=radius / 3, expert=i) for i, radius in enumerate(radii)]
    with CertificateMemory.open(tmp_path / "memory.db", norm=2) as memory:
        given = [memory.settle(at(10.0 * i), point) for i, point in enumerate(points)]
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        assert [entry.answer for entry in memory.entries()] == given
        assert [entry.answer.radius for entry in memory.entries()] == radii
        assert [entry.answer.point for entry in memory.entries()] == points


def test_a_radius_of_minus_zero_is_zero(tmp_path: Path) -> None:
    """SQLite gives 0.0 back for -0.0: its checksum would be another."""
    with CertificateMemory.open(tmp_path / "memory.db", norm=2) as memory:
        memory.settle(at(0.0), certificate(label=1, radius=0.5))
        answer = memory.settle(at(0.1), certificate(label=2, radius=-0.0))
        assert (answer.label, memory.lookup(at(0.1))) == (1, answer)
    with CertificateMemory.existing(tmp_path / "memory.db") as memory:
        assert [entry.answer.label for entry in memory.entries()] == [1, 1]


@pytest.fixture
def racers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Settle], CertificateMemory]]:
    """Makes a memory in whose way another process gets: between its search and its lock of the file."""
    with ExitStack() as stack:

        def race(step: Settle) -> CertificateMemory:
            memory, other = (stack.enter_context(CertificateMemory.open(tmp_path / "m.db", norm=2)) for _ in range(2))
            lock = memory._view.ledger.locked

            def locked_late() -> AbstractContextManager[None]:
                step(other)
                return lock()

            monkeypatch.setattr(memory._view.ledger, "locked", locked_late)
            return memory

        yield race


def test_what_another_appends_during_the_search_cuts(racers: Callable[[Settle], CertificateMemory]) -> None:
    memory = racers(lambda other: other.settle(at(3.0), certificate(label=0, radius=1.0)))
    answer = memory.settle(at(0.0), certificate(label=1, radius=5.0))
    assert (answer.label, answer.rule) == (1, "truncated")
    assert answer.radius == pytest.approx(2.0, rel=1e-14)
    assert [entry.answer.label for entry in memory.entries()] == [0, 1]
    assert list(memory.contradictions()) == []


def test_what_another_appends_during_the_search_is_inherited(racers: Callable[[Settle], CertificateMemory]) -> None:
    memory = racers(lambda other: other.settle(at(3.0), certificate(label=0, radius=4.0)))
    answer = memory.settle(at(0.0), certificate(label=1, radius=5.0))
    assert (answer.label, answer.rule) == (0, "inherited")
    assert answer.radius == pytest.approx(1.0, rel=1e-14)


def test_the_same_input_by_another_during_the_search_is_answered_once(
    racers: Callable[[Settle], CertificateMemory],
) -> None:
    memory = racers(lambda other: other.settle(at(0.0), certificate(label=0, radius=1.0)))
    answer = memory.settle(at(0.0), certificate(label=1, radius=5.0))
    assert (answer.label, answer.radius, answer.rule) == (0, 1.0, "kept")
    assert len(memory) == 1


def test_a_first_input_of_another_shape_does_not_slip_in(racers: Callable[[Settle], CertificateMemory]) -> None:
    memory = racers(lambda other: other.settle(np.zeros((2, 3)), certificate(label=0, radius=1.0)))
    with pytest.raises(InvalidInputError, match=r"\(2, 3\)"):
        memory.settle(np.ones((3, 2)), certificate(label=1, radius=1.0))
    assert len(memory) == 1


def fill(memory: CertificateMemory, answers: list[SettledCertificate]) -> None:
    """Settle until the memory refuses."""
    position = 1_000.0
    while True:
        answers.append(memory.settle(at(position), certificate(label=0, radius=0.5)))
        position += 1.0


def test_a_full_database_refuses_and_goes_on_when_there_is_room(file: Path) -> None:
    with CertificateMemory.existing(file) as memory:
        answers = [entry.answer for entry in memory.entries()]
        assert isinstance(memory._view.ledger, SqliteLedger)
        sqlite = memory._view.ledger._connection.execute
        sqlite(f"PRAGMA max_page_count = {sqlite('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(MemoryRefusedError, match=r"memory\.db: .*full"):
            fill(memory, answers)
        assert len(memory) == len(answers)
        assert [entry.answer for entry in memory.entries()] == answers
        refused = at(1_000.0 + len(answers) - 40)
        assert memory.lookup(refused) is None
        sqlite("PRAGMA max_page_count = 1073741823")
        answers.append(memory.settle(refused, certificate(label=7, radius=0.5)))
    with CertificateMemory.existing(file) as memory:
        assert [entry.answer for entry in memory.entries()] == answers
        assert list(memory.contradictions()) == []
    assert run_sql(file, "PRAGMA integrity_check") == [("ok",)]


LIMITED = """
import json, os, resource, sys
from functools import partial
from pathlib import Path
import numpy as np
from sigmax.certificate import PointCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory import CertificateMemory

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)
file, room = Path(sys.argv[1]), int(sys.argv[2])
given, refused = [], 0
with CertificateMemory.open(file, norm=2) as memory:
    def settle(i):
        x = np.full(64, 10.0 * i)
        given.append((x[0], memory.settle(x, certificate(label=i % 3, radius=1.0)).radius))
    for i in range(20):
        settle(i)
    written = max(path.stat().st_size for path in file.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (written + room, resource.RLIM_INFINITY))
    for i in range(20, 300):
        try:
            settle(i)
        except MemoryRefusedError:
            refused += 1
    assert len(memory) == len(given)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for i in range(290, 310):
        settle(i)
    assert len(memory) == len(given)
    print(json.dumps([given, refused]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as only POSIX systems do")
@pytest.mark.parametrize("room", [0, 30_000])
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path, room: int) -> None:
    """A real failure of write(2) in the middle of a transaction, in a process of its own."""
    file = tmp_path / "memory.db"
    run = subprocess.run([sys.executable, "-c", LIMITED, file, str(room)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    given, refused = json.loads(run.stdout)
    assert refused > 0
    with CertificateMemory.existing(file) as memory:
        assert [[entry.x[0], entry.answer.radius] for entry in memory.entries()] == given
        assert list(memory.contradictions()) == []
    assert run_sql(file, "PRAGMA integrity_check") == [("ok",)]
