"""A ledger in a SQLite file, or for one process in a SQLite database without a file."""
# ruff: noqa: D102 - `Ledger` says what each method does

import os
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar, final

from sigmax.errors import MemoryRefusedError, one_line
from sigmax.memory import codec
from sigmax.memory.index import SketchedBalls
from sigmax.memory.ledger import Freeze, Owner, Place
from sigmax.memory.sql import SELECT_OWNER, SqlLedger

_PATIENCE = 60.0  # seconds to wait for the lock; other writers hold it for milliseconds
_SQLITE_PAGE = 2**14  # bytes; it fits five CIFAR-10 images, where SQLite's default page fits one

_SELECT_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
_SELECT_INPUT = "SELECT * FROM inputs WHERE id >= ? ORDER BY id LIMIT 1"


@final
class SqliteLedger(SqlLedger):
    """A ledger in a SQLite file that the processes of one machine may share; it holds one connection."""

    _types: ClassVar[dict[str, str]] = {"int": "INTEGER", "float": "REAL", "bytes": "BLOB"}

    def __init__(self, place: Place | None, owner: Owner) -> None:
        path = Path(place) if place is not None else None
        self.is_shared = path is not None
        self.owned_by = owner
        self.place = str(path) if path is not None else "the memory of this process"
        self._path, self._opened = path, _status(path)
        self._connection = _connect(path)
        try:
            self._check_identity()
            self._open(owner)
            self._check_identity()
            if path is not None:
                self._check_length(path)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def owner(place: Place) -> Owner | None:
        path = Path(place)
        if not path.is_file():
            return None
        with closing(_connect(path)) as connection:
            return _read_owner(connection, str(path))

    @staticmethod
    def remove(path: Path) -> None:
        """Delete the file and the files of its log, if they exist."""
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self._execute("BEGIN IMMEDIATE")
            yield
            self._execute("COMMIT")
        finally:
            self.roll_back()

    def roll_back(self) -> None:
        with _explained(self.place):
            self._connection.rollback()

    def balls(self, *, after: int) -> SketchedBalls | None:
        self._check_identity()  # here, because every answer begins with it, under the lock too
        return super().balls(after=after)

    def frozen(self) -> Freeze | None:
        return super().frozen() if ("frozen",) in self._execute(_SELECT_TABLES) else None  # older files lack it

    def check(self) -> None:
        ((health,),) = self._execute("PRAGMA quick_check(1)")
        if health != "ok":
            raise MemoryRefusedError(f"{self.place}: expected an intact file, got: {health}; restore it from a copy")
        super().check()

    def close(self) -> None:
        self._connection.close()

    def _open(self, owner: Owner) -> None:
        """Create the tables in a new file; check the owner of any other file before writing to it."""
        written = _read_owner(self._connection, self.place)
        owner.check(written, self.place)
        self._execute(f"PRAGMA page_size={_SQLITE_PAGE}")  # affects new files only
        self._write_ahead()
        self._execute("PRAGMA synchronous=FULL")  # a committed answer survives a power cut
        if written is None:
            with self.locked():
                self._create(owner)
            # Another process may have created the tables first, for another owner.
            owner.check(_read_owner(self._connection, self.place), self.place)

    def _write_ahead(self) -> None:
        """Use a write-ahead log, so that readers and a writer do not block each other."""
        deadline = time.monotonic() + _PATIENCE
        with _explained(self.place):
            while True:
                try:
                    self._connection.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError as error:
                    # This statement ignores SQLite's timeout when another process opens the file at the same time.
                    if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                        raise
                time.sleep(random.uniform(0.0, 0.01))  # random, so that two processes do not collide forever

    def _check_identity(self) -> None:
        """Refuse a file that has a second name or is no longer the one that was opened: it has another log."""
        found = _status(self._path)
        self._opened = self._opened or found  # a new file exists only after it was opened
        if self._opened is None:
            return
        if found is None or not os.path.samestat(found, self._opened):
            what = "no file" if found is None else "another file under this name"
            raise MemoryRefusedError(
                f"{self.place}: expected the file that was opened, got {what}; put the file back, or open the memory "
                "again: new answers could contradict earlier ones"
            )
        if found.st_nlink > 1:
            raise MemoryRefusedError(
                f"{self.place}: expected a file with one name, got {found.st_nlink} hard links; remove the other "
                "names, or use a symbolic link: each name has a log of its own, so answers could be lost"
            )

    def _check_length(self, path: Path) -> None:
        """Refuse a file whose last page is cut short: SQLite would read zeros there."""
        ((page,),) = self._execute("PRAGMA page_size")
        length = path.stat().st_size
        log = path.with_name(f"{path.name}-wal")
        # With a log, another process may be writing this page, or a crash cut it short. The log has the whole page.
        if length % page and not (log.exists() and log.stat().st_size):
            raise MemoryRefusedError(
                f"{self.place}: expected whole pages of {page} bytes, got length={length}; "
                "restore it from a copy, because the end of the file is lost"
            )

    def _input_rows(self, ids: Sequence[int]) -> list[codec.Row]:
        return [(self._execute(_SELECT_INPUT, (i,)) or [(None,)])[0] for i in ids]

    def _execute_many(self, statement: str, rows: Sequence[codec.Row]) -> None:
        with _explained(self.place):
            self._connection.executemany(statement, rows)

    def _execute(self, statement: str, values: codec.Row = ()) -> list[codec.Row]:
        # No variable holds the cursor: after an interrupt, an unfinished read would pin an old state of the file.
        with _explained(self.place):
            return self._connection.execute(statement, values).fetchall()


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is not None and not path.parent.is_dir():
        raise MemoryRefusedError(f"expected a folder for the memory, got {path.parent}; create it first")
    # SQLite gives names such as ":memory:" a special meaning, but never an absolute path.
    name = path.absolute() if path is not None else ":memory:"
    with _explained(str(path)):
        # No isolation level: transactions begin and end only where our statements say.
        return sqlite3.connect(name, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)


def _status(path: Path | None) -> os.stat_result | None:
    """The status of a file, with its device, inode and number of names; None if there is no file."""
    return path.stat() if path is not None and path.is_file() else None


def _read_owner(connection: sqlite3.Connection, place: str) -> Owner | None:
    """What a database belongs to; None if it has no tables yet."""
    with _explained(place):
        tables = [name for (name,) in connection.execute(_SELECT_TABLES).fetchall()]
        if not tables:
            return None
        owners = connection.execute(SELECT_OWNER).fetchall() if "memory" in tables else []
    if len(owners) != 1:
        raise MemoryRefusedError(
            f"{place}: expected a memory or a new file, got a database with the tables {', '.join(tables)}; "
            "use another file"
        )
    ((written, norm, fingerprint),) = owners
    return Owner(format=written, norm=norm, fingerprint=fingerprint)


@contextmanager
def _explained(place: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # an error's own text may quote damaged bytes
        raise MemoryRefusedError(
            f"{place}: expected a memory that can be read and written, got: {one_line(error)}; "
            "fix this and try again; all answers given so far are stored"
        ) from error
