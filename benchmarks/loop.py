"""How much the sampling loop adds to the bare network at the same batch.

The loop draws noise, runs the network and counts; the bare network runs as many times on one batch of
that shape and layout. Both are timed in turns, in one process.

    python benchmarks/loop.py [--n 100000] [--repeats 5]
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from networks import NETWORKS, SHAPE, make_smoothed, usable_backends
from part import Cell, Part, finish, interleaved, parser
from sigmax.models.backends import Backend


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def bare(model: Callable[[Tensor], Tensor], batch: Tensor, passes: int) -> None:
    with torch.no_grad():
        for _ in range(passes):
            model(batch)


def measure(arch: str, backend: Backend, *, n: int, repeats: int) -> dict[str, Cell]:
    smoothed, batch = make_smoothed(arch, backend)
    passes = max(1, round(n / len(batch)))
    x = torch.rand(1, *SHAPE)
    # A prediction under one sigma is the loop alone: no selection, no bounds.
    loop = partial(smoothed.predict, x, n=passes * len(batch))
    network = partial(bare, smoothed.classifier.model, batch, passes)
    loop(), network()  # the first run pays for what is built once
    seconds = interleaved({"bare": partial(timed, network), "loop": partial(timed, loop)}, repeats=repeats)
    samples = passes * len(batch)
    return {
        "network": arch,
        "backend": backend,
        "batch": len(batch),
        "samples": samples,
        "bare, samples/s": samples / seconds["bare"],
        "loop, samples/s": samples / seconds["loop"],
        "loop / bare": seconds["bare"] / seconds["loop"],
    }


def main() -> None:
    options = parser(__doc__, repeats=5).parse_args()
    backends, missing = usable_backends()
    rows = [
        measure(arch, backend, n=options.n // 20, repeats=options.repeats) for arch in NETWORKS for backend in backends
    ]
    part = Part(
        title="The sampling loop against the bare network",
        claim="the loop keeps at least 0.95 of the compiled network's own speed.",
        note=f"Medians of {options.repeats} runs in turns, one input.{missing}",
        rows=rows,
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
