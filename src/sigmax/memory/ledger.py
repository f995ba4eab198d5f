"""The durable log of a memory: a SQLite file (or, in process, a SQLite database without a file)."""

import json
import random
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector

FORMAT = 1
_CACHE_BYTES = 64 * 2**20
_PATIENCE = 60.0  # seconds that a writer waits for the lock of another, which holds it for milliseconds
_PAGE = 256  # entries read at a time: bounds what a long ledger takes

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
_entries = sa.Table(
    "entries",
    _schema,
    sa.Column("id", sa.Integer, primary_key=True),  # 1, 2, 3, … without gaps: nothing is ever removed
    sa.Column("label", sa.Integer, nullable=False),
    sa.Column("radius", sa.Double, nullable=False),
    sa.Column("sigma", sa.Double, nullable=False),
    sa.Column("rule", sa.String, nullable=False),
    sa.Column("point", sa.String, nullable=False),  # the point certificate as JSON
    sa.Column("encoding", sa.String, nullable=False),
    sa.Column("x", sa.LargeBinary, nullable=False),
)


# Built once: building a statement takes SQLAlchemy longer than running it takes SQLite.
_begin, _commit = sa.text("BEGIN IMMEDIATE"), sa.text("COMMIT")
_select_owner = sa.select(_owner)
_select_after = (
    sa.select(_entries)
    .where(_entries.c.id > sa.bindparam("after"))
    .order_by(_entries.c.id)
    .limit(sa.bindparam("limit", type_=sa.Integer))
)
_select_points = sa.select(_entries.c.id, _entries.c.encoding, _entries.c.x).where(
    _entries.c.id.in_(sa.bindparam("ids", expanding=True))
)
_insert_owner, _update_owner, _insert_entry = _owner.insert(), _owner.update(), _entries.insert()


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
        sa.event.listen(self._connection, "before_cursor_execute", self._remember)
        try:
            self._create(norm, fingerprint)
            self._check_owner(norm, fingerprint)
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
                row = connection.execute(_select_owner).one()
        except SQLAlchemyError as error:
            raise MemoryRefusedError(f"{path}: expected a memory file, got: {_cause(error)}") from error
        return row.norm, row.fingerprint

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A transaction that no other writer interleaves with; committed at the end, durably."""
        try:
            self._execute(_begin)
            yield
            self._execute(_commit)
        finally:
            self.roll_back()

    def roll_back(self) -> None:
        """Undo a transaction that was not committed; end, too, what an interrupt left open."""
        with self._explained():
            connection = self._connection.connection
            if self._cursor is not None:
                self._cursor.close()  # A read that was cut short would pin an old state of the file.
            connection.rollback()

    def shape(self) -> tuple[int, ...]:
        """The shape of its inputs, once it has any."""
        return tuple(json.loads(self._execute(_select_owner)[0].shape))

    def read(self, *, after: int, limit: int = _PAGE) -> list[Entry]:
        """The next entries after this id, at most so many."""
        entries = [_entry(row) for row in self._execute(_select_after, {"after": after, "limit": limit})]
        for expected, entry in enumerate(entries, start=after + 1):
            if entry.id != expected:
                raise MemoryRefusedError(
                    f"{self._place}: expected entries 1, 2, 3, … without gaps, got {entry.id} in place of {expected}; "
                    "restore the file from a copy"
                )
        return entries

    def points(self, ids: Sequence[int]) -> Vector:
        """The inputs of these entries, (len(ids), d); kept in memory while there is room."""
        missing = [i for i in ids if i not in self._points]
        for start in range(0, len(missing), _PAGE):
            for row in self._execute(_select_points, {"ids": missing[start : start + _PAGE]}):
                self._points[row.id] = _decode(row.encoding, row.x)
        found = np.stack([self._points[i] for i in ids])  # m d
        while len(self._points) * found[0].nbytes > _CACHE_BYTES:
            del self._points[next(iter(self._points))]
        return found

    def append(self, entry_id: int, x: NDArray[np.floating], answer: SettledCertificate) -> None:
        """Append an entry inside a locked transaction."""
        assert answer.point is not None, "an answer that was looked up is in the ledger already"
        if entry_id == 1:
            self._execute(_update_owner, {"shape": json.dumps(x.shape)})
        encoding, content = _encode(x)
        row = {
            "id": entry_id,
            "label": answer.label,
            "radius": answer.radius,
            "sigma": answer.sigma,
            "rule": answer.rule,
            "point": json.dumps(_point_fields(answer.point)),
            "encoding": encoding,
            "x": content,
        }
        self._execute(_insert_entry, row)

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def _create(self, norm: int, fingerprint: str | None) -> None:
        """Make an empty file a memory, and leave a file of something else as it is."""
        with self._explained():
            tables = sa.inspect(self._connection).get_table_names()
        if tables and not set(tables) >= set(_schema.tables):
            raise MemoryRefusedError(
                f"{self._place}: expected a memory or a new file, got a database with the tables {', '.join(tables)}; "
                "use another file"
            )
        self._write_ahead()
        (health,) = self._execute(sa.text("PRAGMA quick_check(1)"))
        if health[0] != "ok":
            raise MemoryRefusedError(
                f"{self._place}: expected an intact file, got: {health[0]}; restore it from a copy"
            )
        if not tables:
            with self.locked(), self._explained():
                _schema.create_all(self._connection)
                if not self._execute(_select_owner):  # else another process was faster
                    row = {"id": 1, "format": FORMAT, "norm": norm, "fingerprint": fingerprint}
                    self._execute(_insert_owner, row)

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
        self._execute(sa.text("PRAGMA synchronous=FULL"))

    def _check_owner(self, norm: int, fingerprint: str | None) -> None:
        (owner,) = self._execute(_select_owner)
        if owner.format != FORMAT:
            raise MemoryRefusedError(
                f"{self._place}: expected memory format {FORMAT}, got {owner.format}; use the version that wrote it"
            )
        if owner.norm != norm:
            raise MemoryRefusedError(
                f"{self._place}: expected a memory of l{norm} balls, got one of l{owner.norm}; use another file"
            )
        if owner.fingerprint != fingerprint:
            raise MemoryRefusedError(
                f"{self._place}: expected the memory of this model, preprocessing, norm and noise "
                f"(fingerprint {_short(fingerprint)}), got that of another ({_short(owner.fingerprint)}); "
                "use another file"
            )

    def _execute(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> Sequence[sa.Row[Any]]:
        with self._explained():
            result = self._connection.execute(statement, values)
            return result.all() if result.returns_rows else []

    def _remember(self, _connection: sa.Connection, cursor: Any, *_statement: Any) -> None:
        self._cursor = cursor

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

    def stay_connected(context: sa.ExceptionContext) -> None:
        # SQLAlchemy closes the connection on an interrupt; a memory without a file would be gone.
        context.is_disconnect = False

    sa.event.listen(engine, "handle_error", stay_connected)
    return engine.connect()


def _entry(row: Any) -> Entry:
    rule: Rule = row.rule
    answer = SettledCertificate(
        label=row.label,
        radius=row.radius,
        sigma=row.sigma,
        point=PointCertificate(**json.loads(row.point)),
        rule=rule,
    )
    return Entry(id=row.id, x=_decode(row.encoding, row.x), answer=answer)


def _point_fields(point: PointCertificate) -> dict[str, Any]:
    return {name: getattr(point, name) for name in PointCertificate.__slots__}


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
