"""One certification by one contender in a process of its own: radius, batch, seconds, peak memory above the imports.

Called by benchmarks/peers.py; prints one line of JSON.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import get_args

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import binomtest
from torch import Tensor, nn

from machine import peak_megabytes
from networks import CLASSES, SHAPE, SIGMA, make_network, make_smoothed
from sigmax.models.backends import Backend

N0, ALPHA, USUAL_BATCH = 100, 0.001, 1_000

Certify = Callable[[int], float]  # the radius of one input, certified with so many samples


def sigmax(arch: str, x: Tensor, backend: Backend) -> tuple[Certify, int]:
    smoothed, batch = make_smoothed(arch, backend)
    return lambda n: smoothed.certify(x, n0=N0, n=n, alpha=ALPHA)[0].radius, len(batch)


def usual_loop(arch: str, x: Tensor) -> tuple[Certify, int]:
    """How certification is usually written: one input, batches of 1,000 in the layout of the data, no compiling."""
    network = make_network(arch)

    def certify(n: int) -> float:
        label = int(counted(network, x, N0).argmax())
        hits = int(counted(network, x, n)[label])
        bound = binomtest(hits, n).proportion_ci(1 - 2 * ALPHA, method="exact").low
        return SIGMA * float(ndtri(bound)) if bound > 0.5 else 0.0

    return certify, USUAL_BATCH


@torch.no_grad()
def counted(network: nn.Module, x: Tensor, n: int) -> Tensor:
    counts = torch.zeros(CLASSES, dtype=torch.int64)
    for done in range(0, n, USUAL_BATCH):
        copies = x.repeat(min(USUAL_BATCH, n - done), 1, 1, 1)
        answers = network(copies + SIGMA * torch.randn_like(copies)).argmax(dim=1)
        counts += torch.bincount(answers, minlength=CLASSES)
    return counts


def art(arch: str, x: Tensor) -> tuple[Certify, int]:
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    peer = PyTorchRandomizedSmoothing(
        make_network(arch),
        loss=nn.CrossEntropyLoss(),
        input_shape=SHAPE,
        nb_classes=CLASSES,
        device_type="cpu",  # its own default is another
        sample_size=N0,
        scale=SIGMA,
        alpha=ALPHA,
    )
    pixels = x.numpy().astype(np.float32)
    return lambda n: float(peer.certify(pixels, n=n, batch_size=USUAL_BATCH)[1][0]), USUAL_BATCH


CONTENDERS: dict[str, Callable[[str, Tensor], tuple[Certify, int]]] = {
    **{f"sigmax-{backend}": partial(sigmax, backend=backend) for backend in get_args(Backend)},
    "usual-loop": usual_loop,
    "art": art,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--arch", required=True)
    parser.add_argument("--n", type=int, required=True)
    options = parser.parse_args()
    if options.contender == "art":
        import art.estimators.certification.randomized_smoothing  # noqa: F401 (its imports are not its memory)
    before = peak_megabytes()
    torch.manual_seed(0)
    certify, batch = CONTENDERS[options.contender](options.arch, torch.rand(1, *SHAPE))
    certify(USUAL_BATCH)  # the first batch pays for what is built once
    began = time.perf_counter()
    radius = certify(options.n)
    seconds = time.perf_counter() - began
    used = peak_megabytes() - before
    print(json.dumps({"seconds": seconds, "megabytes": used, "radius": radius, "batch": batch}))


if __name__ == "__main__":
    main()
