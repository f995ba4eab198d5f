"""The durable log of a memory: a SQLite file (or, in process, a SQLite database without a file).

What the search needs of each entry and what only an answer needs are in two tables, so that opening a long
ledger reads the sketches and not the inputs.
"""

import json
import random
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector
from sigmax.memory.index import SketchedBalls

FORMAT = 2
_CACHE_BYTES = 64 * 2**20
_PATIENCE = 60.0  # seconds that a writer waits for the lock of another, which holds it for milliseconds
_ENTRIES = 256  # entries read at a time
_PAGE = 2**17  # sketches read at a time: bounds what opening a long ledger takes
_SQLITE_PAGE = 2**14  # bytes; of 8-bit images of 3 x 32 x 32, five fill it, where one fills SQLite's usual page

_schema = sa.MetaData()
_owner = sa.Table(
    "memory",
    _schema,
    sa.Column("id", sa.Integer, primary_key=True),  # always 1
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("norm", sa.Integer, nullable=False),
    sa.Column("fingerprint", sa.String),
    sa.Column("shape", sa.String),  # JSON; NULL until the first entry
)
_balls = sa.Table(
    "balls",
    _schema,
    sa.Column("id", sa.Integer, primary_key=True),  # 1, 2, 3, … without gaps: nothing is ever removed
    sa.Column("label", sa.Integer, nullable=False),
    sa.Column("radius", sa.Double, nullable=False),
    sa.Column("sigma", sa.Double, nullable=False),
    sa.Column("margin", sa.Double, nullable=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.Integer, nullable=False),
)
_inputs = sa.Table(
    "inputs",
    _schema,
    sa.Column("id", sa.Integer, primary_key=True),  # that of its ball
    sa.Column("rule", sa.String, nullable=False),
    sa.Column("point", sa.String, nullable=False),  # the point certificate as JSON
    sa.Column("encoding", sa.String, nullable=False),
    sa.Column("x", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.Integer, nullable=False),
)


def _sql(statement: sa.ClauseElement) -> str:
    """The statement as SQLite reads it: running it past SQLAlchemy takes a tenth of the time."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="qmark")))


_select_owner = _sql(sa.select(_owner.c.format, _owner.c.norm, _owner.c.fingerprint, _owner.c.shape))
_select_balls = _sql(sa.select(_balls).where(_balls.c.id > sa.bindparam("after")).order_by(_balls.c.id)) + " LIMIT ?"
_select_inputs = (
    _sql(sa.select(_inputs).where(_inputs.c.id > sa.bindparam("after")).order_by(_inputs.c.id)) + " LIMIT ?"
)
_insert_owner, _insert_ball, _insert_input = _sql(_owner.insert()), _sql(_balls.insert()), _sql(_inputs.insert())
_update_shape = _sql(_owner.update().values(shape=sa.bindparam("shape")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One certified ball: the answer given for x."""

    id: int
    x: Vector  # flattened
    answer: SettledCertificate


@final
class Ledger:
    """Entries in the order in which they were appended, shared by all processes that open the file.

    It holds one connection, for one thread at a time. Entries never change, so that reading needs no
    transaction.
    """

    def __init__(self, path: Path | None, *, norm: int, fingerprint: str | None) -> None:
        self._place = str(path) if path is not None else "the memory of this process"
        self._points: dict[int, Vector] = {}  # oldest first
        self._cursor: Any = None  # the last one that was used
        with self._explained():
            self._connection = _connect(path)
        try:
            self._create(norm, fingerprint)
            self._check_owner(norm, fingerprint)
            if path is not None:
                self._check_length(path)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def owner(path: Path) -> tuple[int, str | None]:
        """The norm and the fingerprint that a memory file says it belongs to."""
        if not path.is_file():
            raise MemoryRefusedError(f"expected a memory file, got {path}; no such file")
        try:
            with _connect(path) as connection:
                _, norm, fingerprint, _ = connection.exec_driver_sql(_select_owner).one()
        except SQLAlchemyError as error:
            raise MemoryRefusedError(f"{path}: expected a memory file, got: {_cause(error)}") from error
        return norm, fingerprint

    @staticmethod
    def is_blank(path: Path) -> bool:
        """Whether a file has no table yet, as one that was killed while it was made."""
        try:
            with _connect(path) as connection:
                return not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
        except SQLAlchemyError:
            return False  # no database at all

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A transaction that no other writer interleaves with; committed at the end, durably."""
        try:
            self._execute("BEGIN IMMEDIATE")
            yield
            self._execute("COMMIT")
        finally:
            self.roll_back()

    def roll_back(self) -> None:
        """Undo a transaction that was not committed; end, too, what an interrupt left open."""
        with self._explained():
            connection = self._connection.connection
            if self._cursor is not None:
                self._cursor.close()  # A read that was cut short would pin an old state of the file.
            connection.rollback()

    def check(self) -> None:
        """Refuse a file that SQLite finds damaged; it reads all of it."""
        ((health,),) = self._execute("PRAGMA quick_check(1)")
        if health != "ok":
            raise MemoryRefusedError(f"{self._place}: expected an intact file, got: {health}; restore it from a copy")

    def shape(self) -> tuple[int, ...]:
        """The shape of its inputs, once it has any."""
        ((_, _, _, shape),) = self._execute(_select_owner)
        return tuple(json.loads(shape))

    def balls(self, *, after: int, limit: int = _PAGE) -> SketchedBalls | None:
        """What the search needs of the next entries after this id, at most so many; None: there are none."""
        rows = self._execute(_select_balls, (after, limit))
        if not rows:
            return None
        for expected, row in enumerate(rows, start=after + 1):
            self._check_row("ball", expected, row)
        _, labels, radii, sigmas, margins, sketches, _ = zip(*rows, strict=True)
        return SketchedBalls(
            labels=np.array(labels, dtype=np.int64),
            radii=np.array(radii, dtype=np.float64),
            sigmas=np.array(sigmas, dtype=np.float64),
            margins=np.array(margins, dtype=np.float64),
            sketches=np.frombuffer(b"".join(sketches), dtype="<f4").reshape(len(rows), -1).astype(np.float32),
        )

    def read(self, *, after: int, limit: int = _ENTRIES) -> list[Entry]:
        """The next entries after this id, at most so many."""
        balls = self._execute(_select_balls, (after, limit))
        inputs = self._execute(_select_inputs, (after, limit))
        entries = []
        for i, ball in enumerate(balls):
            whole = inputs[i] if i < len(inputs) else (None,)
            self._check_row("ball", after + i + 1, ball)
            self._check_row("input", after + i + 1, whole)
            _, label, radius, sigma, *_ = ball
            rule: Rule
            _, rule, point, encoding, content, _ = whole
            certified = PointCertificate(**json.loads(point))
            answer = SettledCertificate(label=label, radius=radius, sigma=sigma, point=certified, rule=rule)
            entries.append(Entry(id=after + i + 1, x=_decode(encoding, content), answer=answer))
        return entries

    def points(self, ids: Sequence[int]) -> Vector:
        """The inputs of these entries, (len(ids), d); kept in memory while there is room."""
        for i in ids:
            if i not in self._points:
                rows = self._execute(_select_inputs, (i - 1, 1))
                self._check_row("input", i, rows[0] if rows else (None,))
                self._points[i] = _decode(*rows[0][3:5])
        found = np.stack([self._points[i] for i in ids])  # m d
        while len(self._points) * found[0].nbytes > _CACHE_BYTES:
            del self._points[next(iter(self._points))]
        return found

    def append(
        self,
        first: int,
        inputs: Sequence[NDArray[np.floating]],
        answers: Sequence[SettledCertificate],
        balls: SketchedBalls,
    ) -> None:
        """Append entries from this id on, inside a locked transaction."""
        if first == 1:
            self._execute(_update_shape, (json.dumps(inputs[0].shape),))
        rows = []
        for i, (x, answer) in enumerate(zip(inputs, answers, strict=True)):
            assert answer.point is not None, "an answer that was looked up is in the ledger already"
            point = json.dumps({name: getattr(answer.point, name) for name in PointCertificate.__slots__})
            numbers = float(balls.radii[i]), float(balls.sigmas[i]), float(balls.margins[i])
            ball = (first + i, int(balls.labels[i]), *numbers, balls.sketches[i].astype("<f4").tobytes())
            whole = (first + i, answer.rule, point, *_encode(x))
            rows.append(((*ball, _checksum(ball)), (*whole, _checksum(whole))))
        for statement, values in zip((_insert_ball, _insert_input), zip(*rows, strict=True), strict=True):
            with self._explained():
                self._cursor = self._connection.connection.cursor()
                self._cursor.executemany(statement, values)

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def _check_row(self, what: str, entry_id: int, row: tuple[Any, ...]) -> None:
        if row[0] != entry_id:
            raise MemoryRefusedError(
                f"{self._place}: expected entries 1, 2, 3, … without gaps, got {what} {row[0]} in place of {entry_id}; "
                "restore the file from a copy"
            )
        if row[-1] != _checksum(row[:-1]):
            raise MemoryRefusedError(
                f"{self._place}: expected {what} {entry_id} as it was written, got one with another checksum; "
                "restore the file from a copy"
            )

    def _create(self, norm: int, fingerprint: str | None) -> None:
        """Make an empty file a memory, and leave a file of something else as it is."""
        with self._explained():
            tables = sa.inspect(self._connection).get_table_names()
        if tables and _owner.name not in tables:
            raise MemoryRefusedError(
                f"{self._place}: expected a memory or a new file, got a database with the tables {', '.join(tables)}; "
                "use another file"
            )
        if tables:
            self._check_owner(norm, fingerprint)
        self._execute(f"PRAGMA page_size={_SQLITE_PAGE}")  # of a file that is new
        self._write_ahead()
        if not tables:
            with self.locked(), self._explained():
                _schema.create_all(self._connection)
                if not self._execute(_select_owner):  # else another process was faster
                    self._execute(_insert_owner, (1, FORMAT, norm, fingerprint, None))

    def _write_ahead(self) -> None:
        """Let readers go on beside a writer, and an answer that was given survive a power cut."""
        deadline = time.monotonic() + _PATIENCE
        with self._explained():
            while True:
                try:
                    self._connection.execute(sa.text("PRAGMA journal_mode=WAL"))
                    break
                except OperationalError as error:
                    # Here SQLite itself does not wait for a process that opens the file at the same moment.
                    is_busy = getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
                    if not is_busy or time.monotonic() > deadline:
                        raise
                time.sleep(random.uniform(0.0, 0.01))  # processes that keep step would meet again
        self._execute("PRAGMA synchronous=FULL")

    def _check_owner(self, norm: int, fingerprint: str | None) -> None:
        ((written, owner_norm, owner_fingerprint, _),) = self._execute(_select_owner)
        if written != FORMAT:
            raise MemoryRefusedError(
                f"{self._place}: expected memory format {FORMAT}, got {written}; use the version that wrote it"
            )
        if owner_norm != norm:
            raise MemoryRefusedError(
                f"{self._place}: expected a memory of l{norm} balls, got one of l{owner_norm}; use another file"
            )
        if owner_fingerprint != fingerprint:
            raise MemoryRefusedError(
                f"{self._place}: expected the memory of this model, preprocessing, norm and noise "
                f"(fingerprint {_short(fingerprint)}), got that of another ({_short(owner_fingerprint)}); "
                "use another file"
            )

    def _check_length(self, path: Path) -> None:
        """Refuse a file that was cut off inside its last page, which SQLite would take as filled with zeros."""
        ((page,),) = self._execute("PRAGMA page_size")
        length = path.stat().st_size
        log = path.with_name(f"{path.name}-wal")
        # Another process may be at this page, and a crash may have interrupted it; then the log has the page whole.
        if length % page and not (log.exists() and log.stat().st_size):
            raise MemoryRefusedError(
                f"{self._place}: expected a file of whole pages of {page} bytes, got {length} bytes: its end is lost; "
                "restore it from a copy"
            )

    def _execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._explained():
            self._cursor = self._connection.connection.cursor()
            self._cursor.execute(statement, values)
            rows: list[tuple[Any, ...]] = self._cursor.fetchall()
            return rows

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise MemoryRefusedError(
                f"{self._place}: expected a memory that can be read and written, got: {_cause(error)}; "
                "no answer was given that is not stored"
            ) from error


def _connect(path: Path | None) -> sa.Connection:
    if path is not None and not path.parent.is_dir():
        raise MemoryRefusedError(f"expected a folder for the memory, got {path.parent}; make it first")
    engine = sa.create_engine(
        # Absolute, because SQLite gives names such as ":memory:" a meaning of their own.
        sa.URL.create("sqlite", database=str(path.absolute()) if path is not None else None),
        isolation_level="AUTOCOMMIT",  # transactions begin and end where `locked` says
        poolclass=NullPool,
        connect_args={"timeout": _PATIENCE, "check_same_thread": False},
    )
    return engine.connect()


def _checksum(row: tuple[Any, ...]) -> int:
    """Of a row whose last field is bytes; the shortest decimal that names a float names no other."""
    return zlib.crc32(row[-1], zlib.crc32(repr(row[:-1]).encode()))


def _encode(x: NDArray[np.floating]) -> tuple[str, bytes]:
    """8-bit images take a byte a pixel; the stored input is always exactly the one given."""
    if x.dtype == np.float32:
        pixels = np.rint(x.clip(0, 1) * 255).astype(np.uint8)
        if np.array_equal(pixels.astype(np.float32) / np.float32(255), x):
            return "u1/255", pixels.tobytes()
    return x.dtype.newbyteorder("<").str, x.astype(x.dtype.newbyteorder("<")).tobytes()


def _decode(encoding: str, content: bytes) -> Vector:
    if encoding == "u1/255":
        return (np.frombuffer(content, np.uint8).astype(np.float32) / np.float32(255)).astype(np.float64)
    return np.frombuffer(content, np.dtype(encoding)).astype(np.float64)


def _short(fingerprint: str | None) -> str:
    return fingerprint[:12] if fingerprint else "none"


def _cause(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
