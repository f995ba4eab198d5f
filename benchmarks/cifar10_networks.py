"""The CIFAR-10 networks of docs/training.md: trains what is missing, resumes what was interrupted, prints the table.

    python benchmarks/cifar10_networks.py --out runs/cifar10 [--data cifar10:DIR] [--zoo]

Two to three hours on two cores, by estimate from the first of them. With --zoo the finished Cohen
networks are copied to where `zoo:NAME` finds them.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from machine import describe_machine
from sigmax import models
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.train.run import SUMMARY

COHEN = {f"cohen-{sigma}": f"--preset cpu-cifar10-cohen --sigma {sigma}" for sigma in ("0.25", "0.12", "0.50")}
FINE_TUNED = {
    f"{name}-0.25": f"--preset cpu-cifar10-{name} --from {{out}}/cohen-0.25"
    for name in ("cohen-ds2", "smoothadv", "macer")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"), help="default: %(default)s")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--zoo", action="store_true", help="copy the Cohen networks into the package")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    rows = []
    for name, settings in {**COHEN, **FINE_TUNED}.items():
        folder = options.out / name
        command = f"sigmax train {options.data} {settings.format(out=options.out)} --out {folder}"
        if not options.table:
            subprocess.run([sys.executable, "-m", *shlex.split(command), "--resume"], check=True)
        if (folder / SUMMARY).exists():
            rows.append((name, command, json.loads((folder / SUMMARY).read_text())))
        if options.zoo and name in COHEN:
            zoo = Path(models.__file__).parent / "zoo"
            zoo.mkdir(exist_ok=True)
            shutil.copyfile(folder / MODEL_FILE, zoo / f"cifar10-{name}.safetensors")
    machine = describe_machine()
    print(f"{machine}\n\n| network | noisy accuracy | epochs | minutes | mean sigma | command |")
    print("|---|---|---|---|---|---|")
    for name, command, summary in rows:
        print(
            f"| {name} | {100 * summary['noisy_accuracy']:.1f} % | {summary['epochs']} | {summary['seconds'] / 60:.0f} "
            f"| {summary['mean_sigma']:.4f} | `{command}` |"
        )


if __name__ == "__main__":
    main()
