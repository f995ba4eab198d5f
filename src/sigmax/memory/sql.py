"""What ledgers in SQL databases share: their tables and all statements but for opening, locking and reconnecting."""
# ruff: noqa: D102 - `Ledger` says what each method does

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import ClassVar

from sigmax.certificate import SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory import codec
from sigmax.memory.balls import Vector
from sigmax.memory.index import SketchedBalls
from sigmax.memory.ledger import Entry, Freeze, Ledger, Owner, Pixels

_PAGE = 2**17  # ball rows read at a time, to bound the memory needed for opening a long ledger
_COPIED = 2**10  # entries copied in one transaction

# `memory` has one row. Its shape is JSON, and NULL until the first entry. `frozen` has one row once it is frozen.
_TABLES = (
    "memory (id {int} PRIMARY KEY, format {int} NOT NULL, norm {int} NOT NULL, fingerprint TEXT, shape TEXT)",
    """balls (id {int} PRIMARY KEY, label {int} NOT NULL, radius {float} NOT NULL, alpha {float} NOT NULL,
    margin {float} NOT NULL, sketch {bytes} NOT NULL, checksum {int} NOT NULL)""",
    """inputs (id {int} PRIMARY KEY, rule TEXT NOT NULL, point TEXT, proof TEXT, origin {int},
    encoding TEXT NOT NULL, x {bytes} NOT NULL, checksum {int} NOT NULL)""",
    "frozen (id {int} PRIMARY KEY, sigma {float} NOT NULL, entries {int} NOT NULL, digest TEXT NOT NULL)",
)
SELECT_OWNER = "SELECT format, norm, fingerprint FROM memory"
_INSERT_OWNER = "INSERT INTO memory (id, format, norm, fingerprint) VALUES (1, ?, ?, ?) ON CONFLICT DO NOTHING"
_SELECT_SHAPE = "SELECT shape FROM memory"
_UPDATE_SHAPE = "UPDATE memory SET shape = ?"
_SELECT_FROZEN = "SELECT sigma, entries, digest FROM frozen"
_INSERT_FROZEN = "INSERT INTO frozen VALUES (1, ?, ?, ?)"
_SELECT_BALLS = "SELECT * FROM balls WHERE id > ? ORDER BY id LIMIT ?"
_INSERT_BALL = f"INSERT INTO balls VALUES ({', '.join('?' for _ in codec.BALL)})"
_INSERT_INPUT = f"INSERT INTO inputs VALUES ({', '.join('?' for _ in codec.INPUT)})"
_SELECT_ENTRIES = "SELECT * FROM balls b LEFT JOIN inputs i ON i.id = b.id WHERE b.id > ? ORDER BY b.id LIMIT ?"


class SqlLedger(Ledger):
    """A ledger in an SQL database. Statements have `?` where values go."""

    _types: ClassVar[dict[str, str]]  # what the database calls int, float and bytes

    def append(
        self, first: int, inputs: Sequence[Pixels], answers: Sequence[SettledCertificate], balls: SketchedBalls
    ) -> None:
        if (freeze := self.frozen()) is not None:
            raise freeze.refusal(self.place)
        if first == 1:
            self._execute(_UPDATE_SHAPE, (json.dumps(inputs[0].shape),))
        rows = [codec.encode_input(first + i, *each) for i, each in enumerate(zip(inputs, answers, strict=True))]
        self._execute_many(_INSERT_BALL, codec.encode_balls(first, balls))
        self._execute_many(_INSERT_INPUT, rows)

    def copy_from(self, other: Ledger, *, on_progress: Callable[[int], None] | None = None) -> int:
        assert isinstance(other, SqlLedger), "all ledgers are"
        last = 0
        while ours := self._rows(after=last):  # what an interrupted copy has stored already
            if ours != other._rows(after=last)[: len(ours)]:
                raise MemoryRefusedError(
                    f"{self.place}: expected a new memory, or the beginning of {other.place}, got entries that differ "
                    f"after entry {last}; copy into a new place"
                )
            last += len(ours)
            _report(on_progress, len(ours))
        while rows := other._rows(after=last):
            with self.locked():
                if (freeze := self.frozen()) is not None:
                    raise freeze.refusal(self.place)
                if last == 0:
                    self._execute(_UPDATE_SHAPE, (json.dumps(other.shape()),))
                self._execute_many(_INSERT_BALL, [ball for ball, _ in rows])
                self._execute_many(_INSERT_INPUT, [rest for _, rest in rows])
            last += len(rows)
            _report(on_progress, len(rows))
        return last

    def freeze(self, sigma: float) -> Freeze:
        with self.locked():
            if (freeze := self.frozen()) is not None:
                if freeze.sigma != sigma:
                    raise MemoryRefusedError(
                        f"{self.place}: expected a memory that is not frozen, or frozen with sigma={sigma}, got "
                        f"sigma={freeze.sigma}; make a copy by `sigmax memory copy` and freeze that"
                    )
                return freeze
            ((entries,),) = self._execute("SELECT count(*) FROM balls")
            freeze = Freeze(sigma=sigma, entries=entries, digest=self.digest(sigma))
            self._execute(f"CREATE TABLE IF NOT EXISTS {self._tables()[-1]}")  # older files lack it
            self._execute(_INSERT_FROZEN, (freeze.sigma, freeze.entries, freeze.digest))
        return freeze

    def frozen(self) -> Freeze | None:
        rows = self._execute(_SELECT_FROZEN)
        return Freeze(sigma=rows[0][0], entries=rows[0][1], digest=rows[0][2]) if rows else None

    def digest(self, sigma: float) -> str:
        owner, ((shape,),), last = self.owned_by, self._execute(_SELECT_SHAPE), 0
        digest = sha256(repr((owner.format, owner.norm, owner.fingerprint, shape, sigma)).encode())
        while rows := self._rows(after=last):
            for ball, rest in rows:
                codec.decode_entry(ball, rest, entry_id=ball[0], place=self.place)  # refuses damage
                for row in (ball, rest):
                    digest.update(repr(row).encode())
            last += len(rows)
        return digest.hexdigest()

    def check(self) -> None:
        if (freeze := self.frozen()) is not None and (got := self.digest(freeze.sigma)) != freeze.digest:
            raise MemoryRefusedError(
                f"{self.place}: expected the entries that were frozen, with digest {freeze.digest}, got digest {got}; "
                "restore the memory from a copy"
            )

    def shape(self) -> tuple[int, ...]:
        ((shape,),) = self._execute(_SELECT_SHAPE)
        return tuple(json.loads(shape))

    def balls(self, *, after: int) -> SketchedBalls | None:
        rows = self._ball_rows(after=after)
        return codec.decode_balls(rows, after=after, place=self.place) if rows else None

    def read(self, *, after: int, limit: int) -> list[Entry]:
        rows = self._rows(after=after, limit=limit)
        return [
            codec.decode_entry(*row, entry_id=entry_id, place=self.place)
            for entry_id, row in enumerate(rows, start=after + 1)
        ]

    def points(self, ids: Sequence[int]) -> list[Vector]:
        rows = self._input_rows(ids)
        return [codec.decode_input(row, entry_id=i, place=self.place) for i, row in zip(ids, rows, strict=True)]

    def _ball_rows(self, *, after: int) -> list[codec.Row]:
        """The next page of ball rows after this id."""
        return self._execute(_SELECT_BALLS, (after, _PAGE))

    def _rows(self, *, after: int, limit: int | None = None) -> list[tuple[codec.Row, codec.Row]]:
        """The next entries after this id, each as its ball row and its input row."""
        width = len(codec.BALL)
        found = self._execute(_SELECT_ENTRIES, (after, limit or _COPIED))
        return [(row[:width], row[width:]) for row in found]

    def _create(self, owner: Owner) -> None:
        """Create what is missing of the tables; inside `locked`. Another process may have done so."""
        for table in self._tables():
            self._execute(f"CREATE TABLE IF NOT EXISTS {table}")
        self._execute(_INSERT_OWNER, (owner.format, owner.norm, owner.fingerprint))

    def _tables(self) -> list[str]:
        """The tables with their columns, in the types of this database."""
        return [table.format(**self._types) for table in _TABLES]

    @abstractmethod
    def _input_rows(self, ids: Sequence[int]) -> list[codec.Row]:
        """The input row of each id; in place of one that is missing, any other."""

    @abstractmethod
    def _execute(self, statement: str, values: codec.Row = ()) -> list[codec.Row]:
        """The rows that a statement returns."""

    @abstractmethod
    def _execute_many(self, statement: str, rows: Sequence[codec.Row]) -> None:
        """Execute a statement for each of these rows."""


def _report(on_progress: Callable[[int], None] | None, done: int) -> None:
    if on_progress is not None:
        on_progress(done)
