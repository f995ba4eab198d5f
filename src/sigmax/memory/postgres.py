"""A ledger in a PostgreSQL database, which processes of many machines may share.

An answer is given only after its transaction is known to be committed. If the connection is lost before, nobody knows.
`ConnectionLostError` then makes the memory ask again, on a new connection. It waits for the lock until the server has
ended the lost transaction. If the entries are stored by then, they are the answers. Otherwise, the answers are settled
anew.
"""
# ruff: noqa: D102 - `Ledger` says what each method does

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, ClassVar, final

import psycopg
from psycopg.pq import TransactionStatus

from sigmax.errors import MemoryRefusedError, one_line, without_password
from sigmax.memory import codec
from sigmax.memory.ledger import ConnectionLostError, Owner, Place
from sigmax.memory.sql import SELECT_OWNER, SqlLedger

_SCHEMA = "sigmax"  # of our tables: the database may have others
_LOCK = 0x5167_6D61_7800  # the advisory lock of writers, in this database

# For each session. A writer that hangs, say on a machine that is gone, must not keep the lock for ever.
_SETTINGS = {
    "search_path": _SCHEMA,
    "synchronous_commit": "on",  # a committed answer survives a power cut
    "default_transaction_isolation": r"read\ committed",  # each statement sees what was committed before it
    "lock_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
}
_PATIENCE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_LOST = ("08", "57P", "25P03")  # first characters of the SQLSTATE of errors that end a connection
_SELECT_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = ? ORDER BY tablename"
_SELECT_INPUTS = "SELECT * FROM inputs WHERE id = ANY(?)"

Connection = psycopg.Connection[codec.Row]


@final
class PostgresLedger(SqlLedger):
    """A ledger in the schema `sigmax` of a PostgreSQL database; it holds one connection."""

    is_shared = True
    _types: ClassVar[dict[str, str]] = {"int": "BIGINT", "float": "DOUBLE PRECISION", "bytes": "BYTEA"}

    def __init__(self, place: Place | None, owner: Owner) -> None:
        self._url = str(place)
        self.place = without_password(self._url)
        self.owned_by = owner
        self._last: codec.Row | None = None  # the last ball that was read
        self._is_closed = False
        self._connection = _connect(self._url)
        try:
            written = _read_owner(self._connection, self.place)
            owner.check(written, self.place)
            if written is None:
                with self.locked():
                    self._execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
                    self._create(owner)
                # Another process may have created the tables first, for another owner.
                owner.check(_read_owner(self._connection, self.place), self.place)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def owner(place: Place) -> Owner | None:
        with closing(_connect(str(place))) as connection:
            return _read_owner(connection, without_password(str(place)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self._execute("BEGIN")
            self._execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
            yield
            self._execute("COMMIT")
        finally:
            self._undo()

    def roll_back(self) -> None:
        self._undo()
        if self._connection.closed and not self._is_closed:
            self._connection = _connect(self._url)
            self.owned_by.check(_read_owner(self._connection, self.place), self.place)

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _ball_rows(self, *, after: int) -> list[codec.Row]:
        if self._last is None:
            rows = super()._ball_rows(after=after)
        else:
            rows = super()._ball_rows(after=self._last[0] - 1)
            # A database that was restored from an older copy, or made anew, lacks what this process has read.
            if not rows or rows[0] != self._last:
                raise MemoryRefusedError(
                    f"{self.place}: expected entry {self._last[0]} as it was read before, got another or none; "
                    "restore the database, or open the memory again: new answers could contradict earlier ones"
                )
        if rows:
            self._last = rows[-1]
        return [row for row in rows if row[0] > after]

    def _undo(self) -> None:
        """End an open transaction. A connection that cannot, because it was interrupted or lost, is closed."""
        status = self._connection.info.transaction_status
        if self._connection.closed or status == TransactionStatus.IDLE:
            return
        if status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
                return
        self._connection.close()

    def _input_rows(self, ids: Sequence[int]) -> list[codec.Row]:
        rows = {row[0]: row for row in self._execute(_SELECT_INPUTS, (list(ids),))}
        return [rows.get(i, (None,)) for i in ids]

    def _execute(self, statement: str, values: codec.Row = ()) -> list[codec.Row]:
        return _execute(self._connection, self.place, statement, values)

    def _execute_many(self, statement: str, rows: Sequence[codec.Row]) -> None:
        with _explained(self._connection, self.place):
            self._connection.cursor().executemany(_translated(statement), rows)


def _connect(url: str) -> Connection:
    options = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
    try:
        return psycopg.connect(url, autocommit=True, options=options, **_PATIENCE)
    except psycopg.OperationalError as error:
        raise ConnectionLostError(
            f"{without_password(url)}: expected a PostgreSQL server that accepts the connection, got: "
            f"{one_line(error)}; start it, or check the URL, PGPASSWORD and its pg_hba.conf"
        ) from error
    except psycopg.Error:
        # Its text may repeat the URL, with a password.
        raise MemoryRefusedError(
            f"expected a URL like postgresql://user@host/database, got {without_password(url)}; correct it"
        ) from None


def _read_owner(connection: Connection, place: str) -> Owner | None:
    """What a database belongs to; None if it has no tables of ours yet."""
    tables = [name for (name,) in _execute(connection, place, _SELECT_TABLES, (_SCHEMA,))]
    if not tables:
        return None
    owners = _execute(connection, place, SELECT_OWNER) if "memory" in tables else []
    if len(owners) != 1:
        raise MemoryRefusedError(
            f"{place}: expected a memory or nothing in the schema {_SCHEMA}, got the tables {', '.join(tables)}; "
            "use another database"
        )
    ((written, norm, fingerprint),) = owners
    return Owner(format=written, norm=norm, fingerprint=fingerprint)


def _execute(connection: Connection, place: str, statement: str, values: codec.Row = ()) -> list[codec.Row]:
    with _explained(connection, place):
        cursor = connection.execute(_translated(statement), values or None)
        return cursor.fetchall() if cursor.description else []


def _translated(statement: str) -> str:
    """The statement with the placeholders of psycopg."""
    return statement.replace("?", "%s")


@contextmanager
def _explained(connection: Connection, place: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_LOST):
            connection.close()
        if connection.closed:
            raise ConnectionLostError(
                f"{place}: expected a connection to the server, got: {one_line(error)}; ask again: stored "
                "answers do not change"
            ) from error
        raise MemoryRefusedError(
            f"{place}: expected a memory that can be read and written, got: {one_line(error)}; "
            "fix this and try again; all answers given so far are stored"
        ) from error
