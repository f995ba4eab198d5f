"""Many operations by many processes, some of which are killed, on a server that restarts: nothing is lost.

SIGMAX_SCALE is the number of operations on PostgreSQL, by default a million; SQLite gets a tenth of it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from servers import Postgres
from sigmax.memory import CertificateMemory

WORKER = Path(__file__).with_name("memory_worker.py")
OPERATIONS = int(os.environ.get("SIGMAX_SCALE", "1_000_000"))
BLOCK = 50  # operations per line of output

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(sys.platform == "win32", reason="kills as only POSIX systems do"),
]


class Clients:
    """Processes that share the work; what a killed one has not done, its successor does with another seed."""

    def __init__(self, place: str, folder: Path, *, clients: int, operations: int) -> None:
        self._place, self._folder, self._seed = place, folder, 0
        self._share = -(-operations // clients)
        self._left = dict.fromkeys(range(clients), self._share)
        self._running = {client: self._start(client) for client in self._left}

    def _start(self, client: int) -> tuple[subprocess.Popen[bytes], Path]:
        output = self._folder / f"{client}-{self._seed}.out"
        command = [sys.executable, str(WORKER), "mix", self._place, str(self._seed), str(self._left[client])]
        self._seed += 1
        with output.open("w") as stdout, output.with_suffix(".errors").open("w") as stderr:
            return subprocess.Popen(command, stdout=stdout, stderr=stderr), output

    def kill(self, client: int) -> None:
        """Kill a client at once, and start its successor."""
        process, output = self._running[client]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._left[client] -= BLOCK * len(lines(output))
        self._running[client] = self._start(client)

    def done(self) -> float:
        """The share of the work that is done."""
        written = sum(BLOCK * output.read_bytes().count(b"\n") for output in self._folder.glob("*.out"))
        return written / (self._share * len(self._left))

    def wait(self) -> None:
        for process, output in self._running.values():
            assert process.wait() == 0, output.with_suffix(".errors").read_text()


def lines(output: Path) -> list[bytes]:
    return [line for line in output.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


Event = Callable[[Clients], object]


def run(place: str, folder: Path, *, clients: int, operations: int, events: Sequence[Event]) -> str:
    """Run the clients with events spread over the work, and check everything; returns the figures."""
    began = time.monotonic()
    working = Clients(place, folder, clients=clients, operations=operations)
    for i, event in enumerate(events):
        while working.done() < (i + 1) / (len(events) + 1):
            time.sleep(0.2)
        event(working)
    working.wait()
    seconds = time.monotonic() - began
    with CertificateMemory.existing(place) as memory:
        entries = list(memory.entries())
        stored = {tuple(entry.x.tolist()): (entry.answer.label, entry.answer.radius) for entry in entries}
        assert len(stored) == len(entries), "an input was answered twice"
        given = lost = 0
        for output in folder.glob("*.out"):
            for line in lines(output):
                for x, label, radius in json.loads(line):
                    given += 1
                    lost += label is not None and stored.get(tuple(x)) != (label, radius)
        contradictions = len(list(memory.contradictions()))
    checking = [sys.executable, str(WORKER), "check", place, str(max(100, operations // 100))]
    checked = int(subprocess.run(checking, capture_output=True, text=True, check=True).stdout)
    assert (lost, contradictions) == (0, 0)
    assert given >= operations
    figures = f"{given:,} operations by {clients} processes in {seconds:.0f} s, {len(entries):,} entries"
    return f"{figures}; {lost} answers lost, {contradictions} contradictions, {checked} entries agree with brute force"


def test_a_million_operations_on_a_server(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = [partial(Clients.kill, client=client) for client in random.Random(0).sample(range(8), 6)]
    restart: Event = lambda _: postgres.restart()  # noqa: E731 - an event like the others
    events: list[Event] = [*kills[:2], restart, *kills[2:4], restart, *kills[4:]]
    figures = run(postgres.database(), tmp_path, clients=8, operations=OPERATIONS, events=events)
    with capsys.disabled():
        print(f"\nPostgreSQL: {figures}")


def test_a_hundred_thousand_operations_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [partial(Clients.kill, client=client) for client in (0, 1, 0)]
    place = str(tmp_path / "memory.db")
    figures = run(place, tmp_path, clients=2, operations=OPERATIONS // 10, events=events)
    with capsys.disabled():
        print(f"\nSQLite: {figures}")
