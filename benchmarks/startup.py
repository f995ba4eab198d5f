"""How long a start takes, each in a fresh Python: `python benchmarks/startup.py [--repeats 9]`."""

import subprocess
import sys
import time
from functools import partial

from part import Part, finish, interleaved, parser

COMMANDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import sigmax": ["-c", "import sigmax"],
    "SmoothedClassifier": ["-c", "from sigmax import SmoothedClassifier"],
    "sigmax --help": ["-m", "sigmax", "--help"],
}


def start(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    options = parser(__doc__, repeats=9).parse_args()
    for arguments in COMMANDS.values():
        start(arguments)  # the first run fills the disk's cache
    seconds = interleaved(
        {name: partial(start, arguments) for name, arguments in COMMANDS.items()}, repeats=options.repeats
    )
    torch = seconds["import torch"]
    part = Part(
        title="Start-up",
        claim="`sigmax --help` in under half a second; the library within 1.3 times `import torch`.",
        note=f"Medians of {options.repeats} starts in turns.",
        rows=[{"what": name, "seconds": took, "of import torch": took / torch} for name, took in seconds.items()],
    )
    finish(part, options.json)


if __name__ == "__main__":
    main()
