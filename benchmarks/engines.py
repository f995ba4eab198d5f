"""What the Ray engine costs and gains against the local one, on this machine: `python benchmarks/engines.py`.

Certifies made-up images with a network of the zoo: by the local engine, and by Ray with one worker and with two. Every
worker has one thread. Each run has a process of its own, because one that has certified before asks the system for less
memory, and Ray's workers are always new. It takes about five minutes on two idle cores; anything else that runs there
spoils the ratios.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from part import Part, finish, interleaved
from sigmax import FixedSigma
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import LocalEngine, certify
from sigmax.engine.ray import RayEngine
from sigmax.models.reference import ModelReference
from sigmax.runs import CertificationSpec

INPUTS = 128  # eight blocks: the same number for each of two workers
SECONDS = 100.0  # that the local engine should take


class Clock:
    """When the first forward pass was reported and when the last, as a progress bar sees it."""

    def __init__(self) -> None:
        self.first = self.last = 0.0

    @contextmanager
    def __call__(self, _what: str, _total: int) -> Iterator[Callable[[int], None]]:
        """Track a run."""
        yield self.advance

    def advance(self, passes: int) -> None:
        """So many forward passes were done."""
        if passes:
            self.last = time.perf_counter()
            self.first = self.first or self.last


def work(spec: CertificationSpec, workers: int) -> tuple[float, float]:
    """Seconds of work, from the first forward pass to the last, and of the whole run; 0 workers: without Ray."""
    torch.set_num_threads(1)
    clock, began = Clock(), time.perf_counter()
    engine = RayEngine(workers=workers) if workers else LocalEngine()
    with tempfile.TemporaryDirectory() as out, engine:
        certify(spec, Path(out) / "run", track=clock, engine=engine)
    return clock.last - clock.first, time.perf_counter() - began


def run(spec: CertificationSpec, workers: int, total: dict[int, float]) -> float:
    """Seconds of work in a new process; those of the whole run go into `total`."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        seconds, total[workers] = process.submit(work, spec, workers).result()
    return seconds


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--repeats", type=int, default=1, help="medians over so many (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    made.add_argument("--seconds", type=float, default=SECONDS, help="that the local engine should take, about")
    options = made.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        images = random.integers(0, 256, (INPUTS, 3, 32, 32), dtype=np.uint8)
        np.savez(file, images=images, labels=np.arange(INPUTS) % 10)

        def request(inputs: int, n: int) -> CertificationSpec:
            return CertificationSpec(
                model=ModelReference(name="zoo:cifar10-cohen-0.25", device="cpu"),
                data=DataReference(name=f"arrays:{file}", max=inputs),
                search=FixedSigma(0.25),
                budget=Budget(n=n),
                batch=128,
            )

        total: dict[int, float] = {}
        small = run(request(16, 300), 0, total)
        n = max(100, int(300 * options.seconds / (small * INPUTS / 16)))
        spec = request(INPUTS, n)
        engines = {"local": 0, "ray, 1 worker": 1, "ray, 2 workers": 2}
        runs = {name: partial(run, spec, workers, total) for name, workers in engines.items()}
        seconds = interleaved(runs, repeats=options.repeats)
    rows: list[dict[str, str | float]] = [
        {
            "engine": name,
            "seconds of work": took,
            "seconds in all": total[engines[name]],
            "of local": took / seconds["local"],
            "speed-up": seconds["ray, 1 worker"] / took,
        }
        for name, took in seconds.items()
    ]
    part = Part(
        title="Engines",
        claim="Ray with one worker takes at most 1.03 times as long as the local engine; two are 1.8 times as fast.",
        note=f"{INPUTS} inputs, n = {n}, one thread each. Work is from the first forward pass to the last; the rest is "
        "the start of Ray and of its workers. Speed-up is over one worker.",
        rows=rows,
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
