"""The durable log of a memory: a SQLite file (or, in process, a SQLite database without a file)."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.exc import DatabaseError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector

FORMAT = 1
_CACHE_BYTES = 64 * 2**20

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One certified ball: the answer given for x."""

    id: int
    x: Vector  # flattened
    answer: SettledCertificate


@final
class Ledger:
    """Entries in the order in which they were appended, shared by all processes that open the file."""

    def __init__(self, path: Path | None, *, norm: int, fingerprint: str | None) -> None:
        self._place = str(path) if path is not None else "the memory of this process"
        self._cache: OrderedDict[int, Vector] = OrderedDict()
        self._cached_bytes = 0
        with self._explained():
            self._engine = _connect(path)
            with self.locked() as connection:
                _schema.create_all(connection)
                if connection.execute(sa.select(_owner.c.id)).first() is None:
                    row = {"id": 1, "format": FORMAT, "norm": norm, "fingerprint": fingerprint}
                    connection.execute(_owner.insert().values(row))
        self._check_owner(norm, fingerprint)

    @staticmethod
    def owner(path: Path) -> tuple[int, str | None]:
        """The norm and the fingerprint that a memory file says it belongs to."""
        if not path.is_file():
            raise MemoryRefusedError(f"expected a memory file, got {path}; no such file")
        engine = _connect(path)
        try:
            with engine.connect() as connection:
                row = connection.execute(sa.select(_owner)).one()
        except SQLAlchemyError as error:
            raise MemoryRefusedError(f"{path}: expected a memory file, got: {_cause(error)}") from error
        finally:
            engine.dispose()
        return row.norm, row.fingerprint

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the ledger."""
        with self._explained(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def locked(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer interleaves with; committed at the end, durably."""
        writing = self._engine.execution_options(sigmax_writes=True)
        with self._explained(), writing.begin() as connection:
            yield connection

    def shape(self, connection: sa.Connection) -> tuple[int, ...]:
        """The shape of its inputs, once it has any."""
        return tuple(json.loads(connection.execute(sa.select(_owner.c.shape)).scalar_one()))

    def read(self, connection: sa.Connection, *, after: int) -> Iterator[Entry]:
        """All entries appended after this id."""
        query = sa.select(_entries).where(_entries.c.id > after).order_by(_entries.c.id)
        for row in connection.execute(query):
            yield _entry(row)

    def entry(self, connection: sa.Connection, entry_id: int) -> Entry:
        """One entry."""
        return _entry(connection.execute(sa.select(_entries).where(_entries.c.id == entry_id)).one())

    def points(self, connection: sa.Connection, ids: Sequence[int]) -> Vector:
        """The inputs of these entries, (len(ids), d); kept in memory while there is room."""
        missing = [i for i in ids if i not in self._cache]
        for start in range(0, len(missing), 500):  # SQLite limits the variables of a query
            few = missing[start : start + 500]
            query = sa.select(_entries.c.id, _entries.c.encoding, _entries.c.x).where(_entries.c.id.in_(few))
            for row in connection.execute(query):
                x = _decode(row.encoding, row.x)
                self._cache[row.id] = x
                self._cached_bytes += x.nbytes
        found = np.stack([self._cache[i] for i in ids])
        while self._cached_bytes > _CACHE_BYTES:
            _, oldest = self._cache.popitem(last=False)
            self._cached_bytes -= oldest.nbytes
        return found

    def append(
        self,
        connection: sa.Connection,
        entry_id: int,
        x: NDArray[np.floating],
        answer: SettledCertificate,
    ) -> None:
        """Append an entry inside a locked transaction."""
        if entry_id == 1:
            connection.execute(_owner.update().values(shape=json.dumps(x.shape)))
        encoding, content = _encode(x)
        if answer.point is None or answer.label is None:
            raise MemoryRefusedError(f"expected an answer with a label and a point certificate, got {answer}")
        connection.execute(
            _entries.insert().values(
                id=entry_id,
                label=answer.label,
                radius=answer.radius,
                sigma=answer.sigma,
                rule=answer.rule,
                point=json.dumps(_point_fields(answer.point)),
                encoding=encoding,
                x=content,
            )
        )

    def close(self) -> None:
        """Give the file back."""
        self._engine.dispose()

    def _check_owner(self, norm: int, fingerprint: str | None) -> None:
        with self.reading() as connection:
            owner = connection.execute(sa.select(_owner)).one()
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

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            raise MemoryRefusedError(
                f"{self._place}: expected a memory that can be read and written, got: {_cause(error)}; "
                "no answer was given that is not stored"
            ) from error


def _connect(path: Path | None) -> sa.Engine:
    if path is None:
        engine = sa.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        if not path.parent.is_dir():
            raise MemoryRefusedError(f"expected a folder for the memory, got {path.parent}; make it first")
        # A second writer waits for the lock of the first, which holds it for milliseconds.
        engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})

    def configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where `begin` below says
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")  # an answer given survives a power cut

    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("sigmax_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    sa.event.listen(engine, "connect", configure)
    sa.event.listen(engine, "begin", begin)
    return engine


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
        pixels = np.rint(x * 255).clip(0, 255).astype(np.uint8)
        if np.array_equal(pixels.astype(np.float32) / np.float32(255), x):
            return "u1/255", pixels.tobytes()
    return x.dtype.newbyteorder("<").str, x.astype(x.dtype.newbyteorder("<")).tobytes()


def _decode(encoding: str, content: bytes) -> Vector:
    if encoding == "u1/255":
        return (np.frombuffer(content, np.uint8).astype(np.float32) / np.float32(255)).astype(np.float64)
    return np.frombuffer(content, np.dtype(encoding)).astype(np.float64)


def _short(fingerprint: str | None) -> str:
    return fingerprint[:12] if fingerprint else "none"


def _cause(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
