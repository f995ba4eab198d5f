"""Real servers for tests: started in a temporary folder, reached on this machine only, and stopped afterwards."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn, final

import pytest

# Set by .ci/run: a server that is missing is then an error instead of a reason to skip tests.
NEEDED = "SIGMAX_NEEDS_SERVERS"


def missing(what: str) -> NoReturn:
    """Skip the test, or fail where every server has to be there."""
    if os.environ.get(NEEDED):
        pytest.fail(f"{what} is not installed, and {NEEDED} is set")
    pytest.skip(f"{what} is not installed")


@final
class Postgres:
    """A PostgreSQL server that listens on a socket in its own folder, and nowhere else."""

    def __init__(self, bin_folder: Path, folder: Path) -> None:
        self._bin, self._data, self._socket = bin_folder, folder / "data", folder / "socket"
        # PostgreSQL refuses to run as root.
        self._user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        for path in (folder, self._socket):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
            if self._user:
                shutil.chown(path, "postgres")
        self._run("initdb", "-D", self._data, "-U", "sigmax", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8")
        # Without fsync: tests crash processes, not the machine, and recovery would synchronise every file.
        settings = f"-k {self._socket} -c listen_addresses='' -c max_connections=40 -c fsync=off"
        self._control = partial(self._run, "pg_ctl", "-D", self._data, "-w", "-t", 300, "-l", folder / "log")
        self._start = partial(self._control, "-o", settings)
        self._start("start")
        self._count = 0

    def database(self) -> str:
        """The URL of a new, empty database."""
        self._count += 1
        name = f"memory{self._count}"
        self.sql(f"CREATE DATABASE {name}", database="postgres")
        return f"postgresql://sigmax@/{name}?host={self._socket}"

    def sql(self, statement: str, *, database: str | None = None, url: str | None = None) -> str:
        """What psql prints for a statement, past the ledger."""
        place = url or f"postgresql://sigmax@/{database}?host={self._socket}"
        return self._run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", place, "-c", statement)

    def restart(self) -> None:
        """As after a crash: no connection is ended properly, and nothing is written that was not yet."""
        self._start("restart", "-m", "immediate")

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")

    def _run(self, program: str, *arguments: object) -> str:
        command = [*self._user, str(self._bin / program), *map(str, arguments)]
        # Output to a file: the server keeps what it inherits open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd="/")
            output.seek(0)
            text = output.read()
        assert done.returncode == 0, f"{command}: {text}"
        return text.strip()


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server of its own, or a skipped test."""
    programs = [*Path("/usr/lib/postgresql").glob("*/bin/initdb"), Path(shutil.which("initdb") or "no initdb")]
    found = next((program.parent for program in programs if program.exists()), None)
    if found is None or (os.geteuid() == 0 and shutil.which("runuser") is None):
        missing(f"PostgreSQL (initdb, for {getpass.getuser()})")
    assert found is not None, "the test was skipped otherwise"
    # The path of a socket has at most 107 characters: not in the folder of the test.
    folder = Path(tempfile.mkdtemp(prefix="sigmax-pg-"))
    try:
        server = Postgres(found, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
