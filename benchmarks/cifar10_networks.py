"""The CIFAR-10 networks of docs/training.md: trains missing ones, resumes interrupted ones, prints the table.

    python benchmarks/cifar10_networks.py --out runs [--group fair] [--only '*-0.50'] [--data cifar10:DIR]

Two groups. `zoo` are the first six of the package. `fair` are pairs that differ only in where sigma comes from: one
sigma, or the table of Algorithm 2 (DS^2). Both of a pair have the same start, epochs and schedule, and none sees the
5,000 images that `--split fit` leaves out. A shell pattern after --only picks networks; what they start from is trained
first. Two processes with one thread each, and different patterns, use two cores best.
"""

import argparse
import json
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from machine import describe_machine
from sigmax.cards import zoo_file
from sigmax.data import Split
from sigmax.train.run import SUMMARY
from to_zoo import to_zoo

FIRST = "cohen-0.25"
ZOO = {
    FIRST: "--preset cpu-cifar10-cohen --sigma 0.25",
    "cohen-0.12": f"--preset cpu-cifar10-cohen-retuned --sigma 0.12 --from {{out}}/{FIRST}",
    "cohen-0.50": f"--preset cpu-cifar10-cohen-retuned --sigma 0.50 --from {{out}}/{FIRST}",
    **{
        f"{name}-0.25": f"--preset cpu-cifar10-{name} --sigma 0.25 --from zoo:cifar10-{FIRST}"
        for name in ("cohen-ds2", "smoothadv", "macer")
    },
}

START, L1_START = "fair-start", "fair-l1-start"
SIGMAS = ("0.12", "0.25", "0.50")
EPSILONS = {"0.12": "0.25", "0.25": "0.25", "0.50": "0.5"}  # the attack of SmoothAdv
# Epochs after the start, and the step size of sigma: all visits together can move sigma as far as the paper's 150.
METHODS = {
    "cohen": (8, 2e-3, "--lr 0.01"),
    "smoothadv": (4, 4e-3, "--lr 0.01 --method smoothadv -o warmup=1 -o epsilon={epsilon}"),
    "macer": (2, 7.5e-3, "--lr 0.005 --method macer -o draws=8 --clip 1"),
}
FAIR = {
    START: "--arch patch-resnet10 --sigma 0.25 --epochs 20",
    **{
        f"fair-{method}{suffix}-{sigma}": (
            f"--sigma {sigma} --from {{out}}/{START} --epochs {epochs} {settings.format(epsilon=EPSILONS[sigma])}"
            + (f" --per-input --search-step-size {step:g}" if suffix else "")
        )
        for method, (epochs, step, settings) in METHODS.items()
        for sigma in SIGMAS
        for suffix in ("", "-ds2")
    },
    "fair-cohen-1.00": f"--sigma 1.0 --from {{out}}/{START} --epochs 12 --lr 0.01",
    "aware-consistency": "--sigma-range 0.25,1.4 --from zoo:cifar10-aware --epochs 12 --lr 0.01 --method consistency "
    "-o strength=10",
    "aware-cohen-ds2": "--sigma-range 0.06,1.4 --from zoo:cifar10-aware --epochs 6 --lr 0.01 --per-input "
    "--search-step-size 0.02",
    L1_START: f"--noise uniform --sigma 0.5 --from {{out}}/{START} --epochs 6 --lr 0.01",
    **{
        f"fair-l1-cohen-{width}": f"--noise uniform --sigma {width} --from {{out}}/{L1_START} --epochs 6 --lr 0.01"
        for width in ("0.25", "0.50", "1.00")
    },
    "l1-aware-cohen": "--arch patch-resnet10-aware --noise uniform --sigma-range 0.12,1.4 "
    f"--from {{out}}/{L1_START} --epochs 12 --lr 0.01",
}
FIT = " --split fit --precision bf16-mixed"
NETWORKS = ZOO | {name: settings + FIT for name, settings in FAIR.items()}
GROUPS = {"zoo": ZOO, "fair": FAIR}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="default: %(default)s")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--group", choices=GROUPS, default="zoo", help="default: %(default)s")
    parser.add_argument("--only", default="*", help="a shell pattern of names; default: all")
    parser.add_argument("--zoo", action="store_true", help="copy the finished networks into the package")
    parser.add_argument("--table", action="store_true", help="only print the table of finished networks")
    options = parser.parse_args()
    rows = []
    for name in needed(options.group, options.only):
        folder = options.out / name
        command = f"sigmax train {options.data} {NETWORKS[name].format(out=options.out)} --out {folder}"
        if not options.table:
            subprocess.run([sys.executable, "-m", *shlex.split(command), "--resume"], check=True)
        if (folder / SUMMARY).exists():
            rows.append((name, command, json.loads((folder / SUMMARY).read_text())))
            if options.zoo:
                split: Split = "tune" if name in FAIR else "test"
                to_zoo(str(folder), zoo_file(f"cifar10-{name}", is_new=True), data=options.data, split=split)
    print(f"{describe_machine()}\n\n| network | noisy accuracy | epochs | minutes | mean sigma | command |")
    print("|---|---|---|---|---|---|")
    for name, command, summary in rows:
        accuracy = ", ".join(f"{100 * share:.1f} % at {sigma}" for sigma, share in summary["noisy_accuracy"].items())
        print(
            f"| {name} | {accuracy} | {summary['epochs']} | {summary['seconds'] / 60:.0f} "
            f"| {summary['mean_sigma']:.4f} | `{command}` |"
        )


def needed(group: str, pattern: str) -> list[str]:
    """The networks of a group whose name fits, each after what it starts from."""
    wanted = {name for name in GROUPS[group] if fnmatch(name, pattern)}
    while more := {start for start in NETWORKS if any(is_start(start, name) for name in wanted)} - wanted:
        wanted |= more
    return sorted((name for name in NETWORKS if name in wanted), key=depth)


def is_start(start: str, name: str) -> bool:
    """Whether the second network starts from the first."""
    return f"--from {{out}}/{start} " in NETWORKS[name] + " "


def depth(name: str) -> int:
    """How many networks are trained before it, one from the other."""
    return max((1 + depth(start) for start in NETWORKS if is_start(start, name)), default=0)


if __name__ == "__main__":
    main()
