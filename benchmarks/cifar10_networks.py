"""The CIFAR-10 networks of docs/training.md: trains missing ones, resumes interrupted ones, prints the table.

    python benchmarks/cifar10_networks.py --out runs/cifar10 [--data cifar10:DIR] [--zoo]

About two to three hours on two cores. --zoo copies the finished networks to where `zoo:NAME` finds them. SmoothAdv,
MACER and DS^2 start from the Cohen network there.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from machine import describe_machine
from sigmax.cards import zoo_file
from sigmax.train.run import SUMMARY
from to_zoo import to_zoo

FIRST = "cohen-0.25"
NETWORKS = {
    FIRST: "--preset cpu-cifar10-cohen --sigma 0.25",
    "cohen-0.12": f"--preset cpu-cifar10-cohen-retuned --sigma 0.12 --from {{out}}/{FIRST}",
    "cohen-0.50": f"--preset cpu-cifar10-cohen-retuned --sigma 0.50 --from {{out}}/{FIRST}",
    **{
        f"{name}-0.25": f"--preset cpu-cifar10-{name} --sigma 0.25 --from zoo:cifar10-{FIRST}"
        for name in ("cohen-ds2", "smoothadv", "macer")
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"), help="default: %(default)s")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--zoo", action="store_true", help="copy the networks into the package")
    parser.add_argument("--table", action="store_true", help="only print the table of finished networks")
    options = parser.parse_args()
    rows = []
    for name, settings in NETWORKS.items():
        folder = options.out / name
        command = f"sigmax train {options.data} {settings.format(out=options.out)} --out {folder}"
        if not options.table:
            subprocess.run([sys.executable, "-m", *shlex.split(command), "--resume"], check=True)
        if (folder / SUMMARY).exists():
            rows.append((name, command, json.loads((folder / SUMMARY).read_text())))
            if options.zoo:
                to_zoo(str(folder), zoo_file(f"cifar10-{name}", is_new=True), data=options.data, split="test")
    machine = describe_machine()
    print(f"{machine}\n\n| network | noisy accuracy | epochs | minutes | mean sigma | command |")
    print("|---|---|---|---|---|---|")
    for name, command, summary in rows:
        accuracy = ", ".join(f"{100 * share:.1f} % at {sigma}" for sigma, share in summary["noisy_accuracy"].items())
        print(
            f"| {name} | {accuracy} | {summary['epochs']} | {summary['seconds'] / 60:.0f} "
            f"| {summary['mean_sigma']:.4f} | `{command}` |"
        )


if __name__ == "__main__":
    main()
