"""What the noise level costs: a forward pass of a noise-aware network beside that of the plain one, each backend.

    python benchmarks/noise_aware.py [--arch patch-resnet10] [--rows 64] [--repeats 15]

Processor time of one process, the passes of both networks in turns, medians. One level for the whole batch, as in
certification, where each input has thousands of samples. Weights are random: they do not change the time.
"""

import argparse
import time
from statistics import median

import torch
from torch import nn

from machine import describe_machine
from networks import CLASSES, SHAPE, SIGMA, make_network, usable_backends
from sigmax.models.architectures import AWARE
from sigmax.models.backends import accelerate
from sigmax.models.levels import told
from sigmax.sampling import sample_buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="patch-resnet10", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=64, help="noisy samples per forward pass; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=15, help="default: %(default)s")
    options = parser.parse_args()
    torch.set_num_threads(1)
    batch = sample_buffer(torch.rand(1, *SHAPE), options.rows)[-1]
    tau = torch.full((options.rows,), SIGMA)
    backends, missing = usable_backends()
    print(f"{describe_machine()}; {options.arch}, batches of {options.rows}, {CLASSES} classes.{missing}\n")
    print("| backend | plain, ms | noise-aware, ms | ratio |\n|---|---|---|---|")
    for backend in backends:
        pair = [
            accelerate(make_network(arch), backend, batch_shape=tuple(batch.shape))
            for arch in (options.arch, options.arch + AWARE)
        ]
        plain, aware = measure(pair, batch, tau, options.repeats)
        print(f"| {backend} | {1e3 * plain:.1f} | {1e3 * aware:.1f} | {aware / plain:.3f} |", flush=True)


def measure(networks: list[nn.Module], batch: torch.Tensor, tau: torch.Tensor, repeats: int) -> list[float]:
    """Median seconds of a forward pass of each; they take turns, so that a busy machine slows both alike."""
    seconds: list[list[float]] = [[] for _ in networks]
    with torch.no_grad():
        for _ in range(2 + repeats):
            for network, taken in zip(networks, seconds, strict=True):
                began = time.process_time()
                told(network, batch, tau)
                taken.append(time.process_time() - began)
    return [median(taken[2:]) for taken in seconds]


if __name__ == "__main__":
    main()
