"""Where the time of a per-input certification goes: network, counting, search, memory, records.

A few inputs are certified into a run folder through a memory, with stopwatches at the seams. Time inside a
search counts as search, and in the selection of the class as selection, whatever is done there. Estimation is linear
in n: it is measured with about n / 20 samples, in whole batches, and scaled; everything else is taken as it is.

    python benchmarks/breakdown.py [--n 100000] [--inputs 8] [--arch patch-resnet10]
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from networks import CLASSES, NETWORKS, SHAPE, SIGMA, best_rows, make_network
from part import Part, finish, parser
from sigmax import CertificateMemory, HalvingSearch, smoothed
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import certify
from sigmax.models import BaseClassifier, LoadedModel
from sigmax.models.reference import ModelReference
from sigmax.runs import CertificationSpec, RunFolder
from sigmax.sampler import Sampler

SEARCH, SELECTION, MEMORY, RECORDS = "sigma search", "selection of the class", "memory", "records"
NETWORK, COUNTING = "forward pass", "waiting for noise, counting and bounds"
REST = "opening files, mostly once a run"
ESTIMATION = (NETWORK, COUNTING)
SHARE = 20  # estimation is measured with a share of its samples


class Stopwatch:
    """Adds up time by label, else as the rest; a label that runs inside another takes its time away from it."""

    def __init__(self, rest: str) -> None:
        self.seconds: dict[str, float] = {}
        self._running = [rest]
        self._since = time.perf_counter()

    def _switch(self) -> None:
        now = time.perf_counter()
        label = next((whole for whole in (SEARCH, SELECTION) if whole in self._running), self._running[-1])
        self.seconds[label] = self.seconds.get(label, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def running(self, label: str) -> Iterator[None]:
        """Time this block."""
        self._switch()
        self._running.append(label)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def put_on(self, owner: type | ModuleType, method: str, label: str) -> None:
        """Time every call of a method from now on."""
        inner: Callable[..., Any] = getattr(owner, method)

        @wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.running(label):
                return inner(*args, **kwargs)

        setattr(owner, method, timed)


@contextmanager
def silence(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _done: None


def measure(arch: str, *, inputs: int, n: int) -> tuple[dict[str, float], int]:
    """Seconds per input by label, at n samples, and with how many estimation was measured."""
    network = make_network(arch)
    rows = best_rows(network)
    samples = max(1, round(n / SHARE / rows)) * rows
    with tempfile.TemporaryDirectory() as place:
        pixels = np.random.default_rng(0).integers(0, 256, (inputs, *SHAPE), dtype=np.uint8)
        np.savez(Path(place) / "inputs.npz", images=pixels, labels=np.arange(inputs) % CLASSES)
        spec = CertificationSpec(
            model=ModelReference(name=arch, classes=CLASSES),
            data=DataReference(name=f"arrays:{place}/inputs.npz"),
            search=HalvingSearch(initial=SIGMA),
            batch=rows,
        )
        loaded = LoadedModel(model=network, card=None)

        def run(samples: int, folder: str) -> None:
            certify(replace(spec, budget=Budget(n=samples)), Path(place) / folder, track=silence, loaded=loaded)

        run(16, "first")  # pays for what is built and imported once
        watch = Stopwatch(REST)
        watch.put_on(BaseClassifier, "scores", NETWORK)
        watch.put_on(HalvingSearch, "find", SEARCH)
        watch.put_on(smoothed, "select_class", SELECTION)
        watch.put_on(CertificateMemory, "settle", MEMORY)
        watch.put_on(RunFolder, "append", RECORDS)
        watch.put_on(Sampler, "estimate", COUNTING)
        with watch.running(REST):  # to its end
            run(samples, "timed")
    scale = {label: n / samples if label in ESTIMATION else 1 for label in watch.seconds}
    return {label: scale[label] * seconds / inputs for label, seconds in watch.seconds.items()}, samples


def main() -> None:
    options_of = parser(__doc__, repeats=1)
    options_of.add_argument("--inputs", type=int, default=8, help="default: %(default)s")
    options_of.add_argument("--arch", choices=NETWORKS, default=NETWORKS[0], help="default: %(default)s")
    options = options_of.parse_args()
    seconds, samples = measure(options.arch, inputs=options.inputs, n=options.n)
    total, estimation = sum(seconds.values()), sum(seconds[label] for label in ESTIMATION)
    added = (seconds[SEARCH] + seconds[MEMORY]) / estimation
    part = Part(
        title=f"Where the time goes: {options.arch}, per-input sigma",
        claim="search and memory add at most 10 % to the time of certification at n = 100,000 "
        f"(here: {100 * added:.1f} % at n = {options.n:,}).",
        note=f"Mean of {options.inputs} inputs, n = {options.n:,}. Estimation was measured with "
        f"{samples:,} samples and scaled.",
        rows=[
            {"what": label, "ms per input": 1_000 * took, "share, %": 100 * took / total}
            for label, took in sorted(seconds.items(), key=lambda item: -item[1])
        ],
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
