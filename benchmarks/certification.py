"""How much of a certification is the network itself.

Claim: certifying with n = 100,000 samples on a CIFAR-10-sized ResNet-20 spends at least 90 % of its time
inside the network's forward pass; the rest is noise, counting and bounds.

The ratio is measured within one run: the same call is timed as a whole and inside the forward pass.
Weights are random: the time of a forward pass does not depend on them.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from machine import describe_machine
from sigmax import SmoothedClassifier
from sigmax.models import build_network


class Timed(nn.Module):
    """Adds up the time spent inside a network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.seconds = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """The network's own answer."""
        began = time.perf_counter()
        out: Tensor = self.network(x)
        self.seconds += time.perf_counter() - began
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000, help="samples (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="rows of a forward pass")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    options = parser.parse_args()
    rows = []
    for arch, channels, size in (("resnet20", 3, 32), ("fast-resnet9", 3, 32), ("digits-cnn", 1, 8)):
        torch.manual_seed(0)
        timed = Timed(build_network(arch, num_classes=10, in_channels=channels)).eval()
        smoothed = SmoothedClassifier(timed, num_classes=10, sigma=0.25, batch_size=options.batch)
        x = torch.rand(1, channels, size, size)
        smoothed.certify(x, n=1_000)  # warm up
        timed.seconds = 0.0
        began = time.perf_counter()
        smoothed.certify(x, n=options.n)
        total = time.perf_counter() - began
        rows.append({"network": arch, "seconds": total, "forward_share": timed.seconds / total})
    machine = describe_machine()
    view = Table("network", "seconds", "inside the forward pass", title=f"n = {options.n:,}; {machine}", box=None)
    for row in rows:
        view.add_row(str(row["network"]), f"{row['seconds']:.1f}", f"{row['forward_share']:.1%}")
    Console(width=120).print(view)
    if options.json:
        options.json.write_text(json.dumps({"n": options.n, "machine": machine, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
