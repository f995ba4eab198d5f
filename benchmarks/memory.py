"""How long the memory takes to answer among 10,000 and among 1,000,000 CIFAR-10-sized entries.

Claim: among 10,000 entries, looking an input up takes at most a 300th of the time that stacking all entries and
taking their distances takes, which is what a memory without an index does. Among 1,000,000 entries in a file, a
lookup takes less than 100 ms and the process less than 1.5 GB.

Run `OMP_NUM_THREADS=1 python benchmarks/memory.py [--million] [--json FILE]`. Each run prints the hardware and the
versions that its numbers belong to. Entries are the CIFAR-10 test images where SIGMAX_CIFAR10 names the folder with
the data set, else images made up with the spectrum of natural ones. With --million it also makes a memory of
1,000,000 made-up images in 10,000 clusters, a file of about 4 GB in a temporary folder, and asks it from a process
of its own. That file is filled past the search, by the ledger alone: only the questions are measured.
"""

import argparse
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.fft import idctn

from machine import hardware, peak_megabytes
from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.data import load_source
from sigmax.memory import CertificateMemory
from sigmax.memory.index import Sketch, SketchedBalls
from sigmax.memory.ledger import Owner
from sigmax.memory.sqlite import SqliteLedger

ENTRIES, ROUNDS, BATCH = 10_000, 50, 100
IN_BATCH = f"in a batch of {BATCH}, each"
MILLION, CLUSTERS, BLOCK = 1_000_000, 10_000, 1_000
SHAPE = (3, 32, 32)
certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=100_000, alpha=0.001, norm=2)

Images = NDArray[np.float32]


def cifar10_images(folder: str) -> Images:
    return load_source(f"cifar10:{folder}").images(range(ENTRIES))


def waves(count: int, seed: int) -> NDArray[np.float64]:
    """Pictures around 0 whose amplitude falls with frequency, as that of natural images does."""
    fall = 1.0 + np.add.outer(np.arange(32), np.arange(32))
    frequencies = np.random.default_rng(seed).standard_normal((count, *SHAPE)) * 2.0 / fall
    pictures: NDArray[np.float64] = idctn(frequencies, norm="ortho", axes=(2, 3))
    return pictures


def as_8_bit(pictures: NDArray[np.floating]) -> Images:
    images: Images = np.rint(255 * (0.5 + pictures)).clip(0, 255).astype(np.float32) / np.float32(255)
    return images


def made_up_images() -> Images:
    return as_8_bit(waves(ENTRIES, seed=0))


def clustered_images() -> Iterator[Images]:
    """A million images in blocks: each near one of 10,000, about a third as far from it as these are apart."""
    centres, variations = waves(CLUSTERS, seed=0).astype(np.float32), 0.3 * waves(BLOCK, seed=1).astype(np.float32)
    for block in range(MILLION // BLOCK):
        first = block * BLOCK % CLUSTERS
        # In each round over all clusters, other variations of them.
        turned = np.roll(variations, block * BLOCK // CLUSTERS, axis=0)
        yield as_8_bit(centres[first : first + BLOCK] + turned)


def unseen(images: Images) -> Images:
    """Images that are no entries and lie in no ball: each about 2 away from the image that it was."""
    rng = np.random.default_rng(1)
    noisy = np.rint(images[:BATCH] * 255) + rng.integers(-16, 17, (BATCH, *SHAPE))
    return noisy.clip(0, 255).astype(np.float32) / np.float32(255)


def versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("sigmax", "numpy", "scipy", "SQLAlchemy"))
    return f"Python {platform.python_version()}, {packages}, SQLite {sqlite3.sqlite_version}"


def milliseconds(ways: Mapping[str, Callable[[int], object]], turn: int = 10) -> dict[str, float]:
    """The median of each way over all rounds, of which each takes another input, or others; in a batch, of one.

    The ways take turns, a few rounds each: the machine may be faster now than a minute ago.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for start in range(0, ROUNDS, turn):
        for name, run in ways.items():
            for i in range(start, start + turn):
                began = time.perf_counter()
                run(i)
                times[name].append(1_000.0 * (time.perf_counter() - began))
    return {name: statistics.median(each) / (BATCH if IN_BATCH in name else 1) for name, each in times.items()}


def measure(images: Images, folder: Path) -> dict[str, float]:
    """The time of each way to ask, in milliseconds; the first is the one to compare with."""
    queries = unseen(images)
    entries = [image.ravel() for image in images]
    matrix = np.stack(entries)
    squares = np.einsum("ij,ij->i", matrix, matrix)
    points = [certificate(label=i % 10, radius=0.25) for i in range(len(images))]
    new = np.concatenate([unseen(images[start:]) for start in range(100, 100 + BATCH * ROUNDS, BATCH)])
    with (
        CertificateMemory(norm=2) as memory,
        CertificateMemory(norm=2) as growing,
        CertificateMemory.open(folder / "memory.db", norm=2) as durable,
    ):
        memory.settle_many(images, points)
        growing.settle_many(images, points)
        durable.settle_many(images, points)
        assert memory.lookup_many(queries) == [None] * len(queries)
        assert [memory.lookup(image) for image in images[:ROUNDS]] == memory.lookup_many(images[:ROUNDS])
        return milliseconds(
            {
                "stack all entries and take their distances": lambda i: np.linalg.norm(
                    np.stack(entries) - queries[i].ravel(), axis=1
                ),
                "one product with the matrix of all entries": lambda i: squares - 2.0 * (matrix @ queries[i].ravel()),
                "lookup of an input that is in no ball": lambda i: memory.lookup(queries[i]),
                "lookup of an input that is an entry": lambda i: memory.lookup(images[i]),
                f"lookup {IN_BATCH}": lambda _: memory.lookup_many(queries),
                "settle in process": lambda i: growing.settle(queries[i], points[i]),
                f"settle in process {IN_BATCH}": lambda i: growing.settle_many(
                    new[BATCH * i : BATCH * (i + 1)], points[:BATCH]
                ),
                "settle in a file": lambda i: durable.settle(queries[i], points[i]),
                f"settle in a file {IN_BATCH}": lambda i: durable.settle_many(
                    new[BATCH * i : BATCH * (i + 1)], points[:BATCH]
                ),
            }
        )


def fill(file: Path) -> None:
    """Write a million entries by the ledger, as a memory would that has settled them."""
    ledger, sketch = SqliteLedger(file, Owner(norm=2, fingerprint=None)), Sketch(SHAPE)
    for block, images in enumerate(clustered_images()):
        flat = images.reshape(BLOCK, -1).astype(np.float64)
        sketches = sketch(flat)
        labels = (block * BLOCK + np.arange(BLOCK)) % CLUSTERS % 10
        points = [certificate(label=label, radius=0.25) for label in labels.tolist()]
        answers = [
            SettledCertificate(label=point.label, radius=0.25, proof=point, point=point, rule="kept")
            for point in points
        ]
        balls = SketchedBalls(
            labels=labels,
            radii=np.full(BLOCK, 0.25),
            alphas=np.array([point.alpha for point in points]),
            sketches=sketches,
            margins=sketch.margins(flat, sketches),
        )
        with ledger.locked():
            ledger.append(1 + block * BLOCK, list(images), answers, balls)
    ledger.close()


def ask(file: Path) -> dict[str, float]:
    """Questions to a million entries, in seconds and milliseconds, and the memory that they take."""
    entries = next(clustered_images())
    queries = unseen(entries)
    began = time.perf_counter()
    with CertificateMemory.open(file, norm=2) as memory:
        opened = time.perf_counter() - began
        assert len(memory) == MILLION
        assert memory.lookup_many(queries) == [None] * len(queries)
        assert all(memory.lookup(entry) is not None for entry in entries[:ROUNDS])
        times = {"opening, seconds": opened} | milliseconds(
            {
                "lookup of an input that is in no ball": lambda i: memory.lookup(queries[i]),
                "lookup of an input that is an entry": lambda i: memory.lookup(entries[-1 - i]),
                f"lookup {IN_BATCH}": lambda _: memory.lookup_many(queries),
            }
        )
        settle = {"settle": lambda i: memory.settle(queries[i], certificate(label=i % 10, radius=0.5))}
        times |= milliseconds(settle)
    return times | {"resident at most, GB": peak_megabytes() * 2**20 / 1e9, "file, GB": file.stat().st_size / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the memory among 10,000 entries of 3,072 numbers.")
    parser.add_argument("--million", action="store_true", help="also among 1,000,000 entries in a file of 4 GB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    arguments = parser.parse_args()
    folder = os.environ.get("SIGMAX_CIFAR10")
    images = cifar10_images(folder) if folder else made_up_images()
    data = "CIFAR-10 test images" if folder else "made-up images, because SIGMAX_CIFAR10 is not set"
    million: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        times = measure(images, Path(place))
        if arguments.million:
            fill(Path(place) / "million.db")
            # A process of its own, so that what it takes is what a memory takes.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                million = pool.submit(ask, Path(place) / "million.db").result()
    baseline = next(iter(times.values()))
    console = Console()
    console.print(f"{ENTRIES:,} entries of {np.prod(SHAPE):,} numbers: {data}", hardware(), versions(), sep="\n")
    table = Table("query", "milliseconds", "times faster", box=None)
    for name, value in times.items():
        table.add_row(name, f"{value:.3f}", f"{baseline / value:.1f}")
    console.print(table)
    if million:
        console.print(f"{MILLION:,} made-up entries in {CLUSTERS:,} clusters, in a file")
        table = Table("query", "milliseconds", box=None)
        for name, value in million.items():
            table.add_row(name, f"{value:.3f}")
        console.print(table)
    if arguments.json is not None:
        report = {"data": data, "hardware": hardware(), "versions": versions(), "milliseconds": times}
        arguments.json.write_text(json.dumps(report | {"million": million}, indent=2) + "\n")


if __name__ == "__main__":
    main()
