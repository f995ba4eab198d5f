"""How long the memory takes to answer among 10,000 CIFAR-10-sized entries.

Claim: looking an input up takes at most a tenth of the time that stacking all entries and taking their
distances takes, which is what a memory without an index does.

Measured on an AMD EPYC with 2 cores, Python 3.11.7, NumPy 2.4.6, SciPy 1.17.1, SQLAlchemy 2.1.8 and SQLite
3.40.1, with CIFAR-10 test images, medians of 49: 73.6 ms for stacking, 0.66 ms for a lookup, 111 times less.
Each run prints the hardware and the versions that its own numbers belong to.

Run `python benchmarks/memory.py [--json FILE]`. Entries are the CIFAR-10 test images where SIGMAX_CIFAR10 names
the folder with the data set, else images made up with the spectrum of natural ones.
"""

import argparse
import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.fft import idctn

from machine import hardware
from sigmax.certificate import PointCertificate
from sigmax.data import load_source
from sigmax.memory import CertificateMemory

ENTRIES, ROUNDS = 10_000, 50
SHAPE = (3, 32, 32)
certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=100_000, alpha=0.001, norm=2)

Images = NDArray[np.float32]


def cifar10_images(folder: str) -> Images:
    return load_source(f"cifar10:{folder}").images(range(ENTRIES))


def made_up_images() -> Images:
    """8-bit images whose amplitude falls with frequency, as that of natural images does."""
    fall = 1.0 + np.add.outer(np.arange(32), np.arange(32))
    waves = np.random.default_rng(0).standard_normal((ENTRIES, *SHAPE)) * 8.0 / fall
    pixels = np.rint(255 * (0.5 + 0.25 * idctn(waves, norm="ortho", axes=(2, 3)))).clip(0, 255)
    images: Images = pixels.astype(np.float32) / np.float32(255)
    return images


def unseen(images: Images) -> Images:
    """Images that are no entries and lie in no ball: each about 2 away from the image that it was."""
    rng = np.random.default_rng(1)
    noisy = np.rint(images[: 2 * ROUNDS] * 255) + rng.integers(-16, 17, (2 * ROUNDS, *SHAPE))
    return noisy.clip(0, 255).astype(np.float32) / np.float32(255)


def versions() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("sigmax", "numpy", "scipy", "SQLAlchemy"))
    return f"Python {platform.python_version()}, {packages}, SQLite {sqlite3.sqlite_version}"


def milliseconds(run: Callable[[int], object]) -> float:
    """The median over all rounds, of which each takes another input."""
    run(0)
    times = []
    for i in range(1, ROUNDS):
        began = time.perf_counter()
        run(i)
        times.append(1_000.0 * (time.perf_counter() - began))
    return statistics.median(times)


def measure(images: Images, folder: Path) -> dict[str, float]:
    """The time of each way to ask, in milliseconds; the first is the one to compare with."""
    queries = unseen(images)
    entries = [image.ravel() for image in images]
    with CertificateMemory(norm=2) as memory, CertificateMemory.open(folder / "memory.db", norm=2) as durable:
        for i, image in enumerate(images):
            memory.settle(image, certificate(label=i % 10, radius=0.25))
        for i, image in enumerate(images[:100]):
            durable.settle(image, certificate(label=i % 10, radius=0.25))
        assert all(memory.lookup(query) is None for query in queries)
        return {
            "stack all entries and take their distances": milliseconds(
                lambda i: np.linalg.norm(np.stack(entries) - queries[i].ravel(), axis=1)
            ),
            "lookup of an input that is in no ball": milliseconds(lambda i: memory.lookup(queries[i])),
            "lookup of an input that is an entry": milliseconds(lambda i: memory.lookup(images[i])),
            "settle in process": milliseconds(
                lambda i: memory.settle(queries[ROUNDS + i], certificate(label=i % 10, radius=0.25))
            ),
            "settle in a file of 100 entries": milliseconds(
                lambda i: durable.settle(queries[i], certificate(label=i % 10, radius=0.25))
            ),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the memory among 10,000 entries of 3,072 numbers.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    arguments = parser.parse_args()
    folder = os.environ.get("SIGMAX_CIFAR10")
    images = cifar10_images(folder) if folder else made_up_images()
    data = "CIFAR-10 test images" if folder else "made-up images, because SIGMAX_CIFAR10 is not set"
    with tempfile.TemporaryDirectory() as place:
        times = measure(images, Path(place))
    baseline = next(iter(times.values()))
    console = Console()
    console.print(f"{ENTRIES:,} entries of {np.prod(SHAPE):,} numbers: {data}", hardware(), versions(), sep="\n")
    table = Table("query", "milliseconds", "times faster", box=None)
    for name, value in times.items():
        table.add_row(name, f"{value:.3f}", f"{baseline / value:.1f}")
    console.print(table)
    if arguments.json is not None:
        report = {"data": data, "hardware": hardware(), "versions": versions(), "milliseconds": times}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
