"""A PostgreSQL server for the tests of the memory."""

from collections.abc import Iterator

import pytest

from servers import Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server of its own; tests are skipped where PostgreSQL is not installed."""
    with postgres_server() as server:
        yield server
