"""A process of its own that uses a memory, in a file or behind a URL; run by the tests beside this file.

`memory_worker.py settle PLACE SEED COUNT [--check] [--block]` settles COUNT crowded inputs and prints each answer
after it was given, as a line of JSON. With --check it also compares each answer, and the index, with brute force;
with --block it settles 20 at a time.

`memory_worker.py mix PLACE SEED COUNT` settles COUNT crowded inputs or looks them up, 50 at a time, and prints the
answers likewise. It waits for a server that is not there.

`memory_worker.py check PLACE COUNT` compares so many of its entries with brute force, and prints how many.

`memory_worker.py open` opens, and so makes, the memory at each place that it reads from its standard input.
"""

import json
import sqlite3
import sys
import time
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.memory import CertificateMemory
from sigmax.memory.balls import Vector
from sigmax.memory.ledger import ConnectionLostError

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)

DIMS = 3
SIDE = 48
CELLS = SIDE**DIMS
# Our radii are rounded down by far less.
ROUNDING = 1e-13


@final
class BruteForce:
    """All entries of a memory, read past its ledger, in arrays that are searched from end to end."""

    def __init__(self, place: str) -> None:
        self._connection = _connect(place)
        self._mark = "%s" if "://" in place else "?"
        self.ids: dict[bytes, int] = {}
        self._points = np.empty((DIMS, CELLS))  # contiguous along the entries: they are many, dimensions few
        self._labels = np.empty(CELLS, dtype=np.int64)
        self._radii = np.empty(CELLS)

    def read(self) -> None:
        """Take in what the memory holds by now."""
        query = f"SELECT id, label, radius, x FROM balls JOIN inputs USING (id) WHERE id > {self._mark} ORDER BY id"
        for entry_id, label, radius, x in self._connection.execute(query, (len(self.ids),)):
            self.ids[x] = entry_id
            assert entry_id == len(self.ids), f"expected entry {len(self.ids)}, got {entry_id}"
            self._points[:, entry_id - 1] = np.frombuffer(x)
            self._labels[entry_id - 1], self._radii[entry_id - 1] = label, radius

    def check(self, x: Vector, point: PointCertificate | None, answer: SettledCertificate) -> None:
        """That an answer which is new is what the rules say of the entries before it; None: it was looked up."""
        entry_id = self.ids[x.tobytes()]
        assert (answer.label, answer.radius) == (self._labels[entry_id - 1], self._radii[entry_id - 1])
        distances, labels, radii = self._view(x, entry_id - 1)
        depths = np.where(distances < radii, radii - distances, -1.0)
        depth = float(depths.max(initial=-1.0))
        found = point.label if point is not None else None
        label = int(labels[depths.argmax()]) if depth > 0.0 else found
        if point is None or label != point.label:
            radius = depth if point is None or point.label is None else min(point.radius, depth)
        else:
            room = float((distances - radii)[labels != label].min(initial=np.inf))
            radius = max(0.0, min(point.radius, room), depth)
        assert answer.label == label, f"expected label {label}, got {answer}"
        assert -1e-15 <= radius - answer.radius <= ROUNDING, f"expected radius {radius}, got {answer}"

    def check_near(self, x: Vector, reach: float, near: list[int], count: int) -> None:
        """That the search has found every entry whose ball meets or touches the ball around x."""
        distances, _, radii = self._view(x, count)
        is_missing = distances <= radii + reach
        is_missing[near] = False
        assert not is_missing.any(), f"expected {np.flatnonzero(is_missing)} to be near {x}, got {near}"

    def _view(self, x: Vector, count: int) -> tuple[Vector, NDArray[np.int64], Vector]:
        """Distances from x, labels and radii of the first so many entries."""
        squares = ((self._points[:, :count] - x[:, None]) ** 2).sum(axis=0)
        return np.sqrt(squares), self._labels[:count], self._radii[:count]


def _connect(place: str) -> Any:
    if "://" not in place:
        return sqlite3.connect(place)
    import psycopg

    return psycopg.connect(place, autocommit=True, options="-c search_path=sigmax")


def crowded(rng: np.random.Generator) -> tuple[Vector, PointCertificate]:
    """An input on a coarse grid: some repeat, and balls overlap and touch."""
    x = rng.integers(0, SIDE, DIMS).astype(np.float64) / 16
    label = int(rng.integers(5))
    radius = float(rng.choice([0.0, 0.0625, 0.1, 0.125]))
    return x, certificate(label=label, radius=radius) if label < 4 else certificate(label=None, radius=0.0)


def settle(place: str, seed: int, count: int, *, block: int, is_checked: bool) -> None:
    rng = np.random.default_rng(seed)
    with CertificateMemory.open(place, norm=2) as memory:
        brute_force = BruteForce(place)
        for _ in range(count // block):
            inputs, points = zip(*(crowded(rng) for _ in range(block)), strict=True)
            answers = memory.settle_many(np.stack(inputs), points)
            for x, answer in zip(inputs, answers, strict=True):
                print(json.dumps([x.tolist(), answer.label, answer.radius]), flush=True)
            if is_checked:
                before = set(brute_force.ids)
                brute_force.read()
            for x, point, answer in zip(inputs, points, answers, strict=True) if is_checked else ():
                if answer.label is not None and x.tobytes() not in before and answer.point == point:
                    brute_force.check(x, point, answer)
                if memory._view.index is not None:
                    sketch = memory._view.index.sketch(x)
                    margin = float(memory._view.index.sketch.margins(x, sketch))
                    near = memory._view.index.near(sketch, margin, radius=point.radius)
                    brute_force.check_near(x, point.radius, near, len(memory))


def mix(place: str, seed: int, count: int, block: int = 50) -> None:
    rng = np.random.default_rng(seed)
    with _opened(place) as memory:
        for _ in range(-(-count // block)):
            inputs, points = zip(*(crowded(rng) for _ in range(block)), strict=True)
            x = np.stack(inputs)
            answers = memory.settle_many(x, points) if rng.integers(2) else memory.lookup_many(x)
            given = [(a.label, a.radius) if a is not None else (None, 0.0) for a in answers]
            print(json.dumps([[y, *answer] for y, answer in zip(x.tolist(), given, strict=True)]), flush=True)


def check(place: str, count: int) -> None:
    brute_force = BruteForce(place)
    brute_force.read()
    with CertificateMemory.existing(place) as memory:
        entries = list(memory.entries())
    sample = np.random.default_rng(0).permutation(len(entries))[:count].tolist()
    for i in sample:
        brute_force.check(entries[i].x, entries[i].answer.point, entries[i].answer)
    print(len(sample))


def _opened(place: str) -> CertificateMemory:
    deadline = time.monotonic() + 120
    while True:
        try:
            return CertificateMemory.open(place, norm=2)
        except ConnectionLostError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def open_files() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        CertificateMemory.open(line.strip(), norm=2).close()
        print("opened", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "open":
        open_files()
    elif sys.argv[1] == "check":
        check(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "mix":
        mix(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        flags = sys.argv[5:]
        block = 20 if "--block" in flags else 1
        settle(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), block=block, is_checked="--check" in flags)
