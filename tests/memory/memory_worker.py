"""A process of its own that uses a memory file; run by the tests beside this file.

`memory_worker.py settle FILE SEED COUNT [--check]` settles COUNT crowded inputs and prints each answer after
it was given, as a line of JSON. With --check it also compares each answer, and the index, with brute force.

`memory_worker.py open` opens, and so makes, the file of each name that it reads from its standard input.
"""

import json
import sqlite3
import sys
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.memory import CertificateMemory

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)

DIMS = 3
# Our radii are rounded down by far less.
ROUNDING = 1e-13


@final
class BruteForce:
    """All entries of a file, read with Python's own SQLite, in arrays that are searched from end to end."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file)
        self.count = 0
        self.ids: dict[bytes, int] = {}
        self.points = np.empty((1, DIMS))
        self.labels = np.empty(1, dtype=np.int64)
        self.radii = np.empty(1)

    def read(self) -> None:
        """Take in what the file holds by now."""
        query = "SELECT id, label, radius, x FROM entries WHERE id > ? ORDER BY id"
        for entry_id, label, radius, x in self._connection.execute(query, (self.count,)):
            assert entry_id == self.count + 1, f"expected entry {self.count + 1}, got {entry_id}"
            if self.count == len(self.labels):
                self.points = np.resize(self.points, (2 * self.count, DIMS))
                self.labels = np.resize(self.labels, 2 * self.count)
                self.radii = np.resize(self.radii, 2 * self.count)
            self.points[self.count] = np.frombuffer(x)
            self.labels[self.count] = label
            self.radii[self.count] = radius
            self.ids[x] = entry_id
            self.count = entry_id

    def distances(self, x: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        distances: NDArray[np.float64] = np.linalg.norm(self.points[:count] - x, axis=1)
        return distances

    def check(self, x: NDArray[np.float64], point: PointCertificate, answer: SettledCertificate, known: bool) -> None:
        """That the answer is what the rules say of the entries before it."""
        entry_id = self.ids.get(x.tobytes())
        if entry_id is None:
            assert answer.rule == "abstained", f"{answer} was given and not stored"
            return
        assert (answer.label, answer.radius) == (self.labels[entry_id - 1], self.radii[entry_id - 1])
        if known:
            return
        before = slice(entry_id - 1)
        distances, labels, radii = self.distances(x, entry_id - 1), self.labels[before], self.radii[before]
        depths = np.where(distances < radii, radii - distances, -1.0)
        depth = float(depths.max(initial=-1.0))
        if depth > 0.0 and labels[depths.argmax()] != point.label:
            label = labels[depths.argmax()]
            radius = depth if point.label is None else min(point.radius, depth)
        else:
            label = point.label
            room = float((distances - radii)[labels != label].min(initial=np.inf))
            radius = max(0.0, min(point.radius, room), depth)
        assert answer.label == label, f"expected label {label}, got {answer}"
        assert -1e-15 <= radius - answer.radius <= ROUNDING, f"expected radius {radius}, got {answer}"


def check_index(memory: CertificateMemory, everything: BruteForce, x: NDArray[np.float64], reach: float) -> None:
    """That the index finds every entry whose ball meets or touches the ball around x."""
    if memory._index is None:
        assert everything.count == 0
        return
    count = len(memory)
    near = memory._index.near(x, reach)
    meets = np.flatnonzero(everything.distances(x, count) <= everything.radii[:count] + reach)
    assert np.isin(meets, near).all(), f"expected {meets} to be near {x}, got {near}"


def crowded(rng: np.random.Generator) -> tuple[NDArray[np.float64], PointCertificate]:
    """An input on a coarse grid: some repeat, and balls overlap and touch."""
    x = rng.integers(0, 48, DIMS).astype(np.float64) / 16
    label = int(rng.integers(5))
    radius = float(rng.choice([0.0, 0.0625, 0.1, 0.125]))
    return x, certificate(label=label, radius=radius) if label < 4 else certificate(label=None, radius=0.0)


def settle(file: Path, seed: int, count: int, *, is_checked: bool) -> None:
    rng = np.random.default_rng(seed)
    with CertificateMemory.open(file, norm=2) as memory:
        everything = BruteForce(file)
        for _ in range(count):
            x, point = crowded(rng)
            known = x.tobytes() in everything.ids
            answer = memory.settle(x, point)
            print(json.dumps([x.tolist(), answer.label, answer.radius]), flush=True)
            if is_checked:
                everything.read()
                everything.check(x, point, answer, known)
                check_index(memory, everything, x, point.radius)


def open_files() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        CertificateMemory.open(line.strip(), norm=2).close()
        print("opened", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "open":
        open_files()
    else:
        settle(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), is_checked="--check" in sys.argv)
