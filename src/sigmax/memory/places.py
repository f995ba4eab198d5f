"""Which kind of ledger is kept at a place."""

from sigmax.errors import InvalidInputError, MemoryRefusedError, one_line, without_password
from sigmax.memory.ledger import Ledger, Owner, Place
from sigmax.memory.sqlite import SqliteLedger


def ledger_kind(place: Place | None) -> type[Ledger]:
    """The kind of ledger that is kept at this place: a file, or a database behind a URL."""
    scheme, is_url, _ = str(place).partition("://")
    if not is_url:
        return SqliteLedger
    if scheme not in ("postgresql", "postgres"):
        raise InvalidInputError(
            f"expected the path of a SQLite file or postgresql://…, got place={without_password(str(place))}; "
            "give one of them"
        )
    try:
        from sigmax.memory.postgres import PostgresLedger
    except ImportError as error:
        raise MemoryRefusedError(
            f"expected psycopg for a memory in PostgreSQL, got: {one_line(error)}; pip install 'sigmax[postgres]'"
        ) from error
    return PostgresLedger


def existing_owner(place: Place) -> Owner:
    """What the ledger at this place belongs to; refused where there is none."""
    owner = ledger_kind(place).owner(place)
    if owner is None:
        raise MemoryRefusedError(f"expected a memory, got {without_password(str(place))}; nothing is stored there")
    return owner
