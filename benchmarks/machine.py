"""What a benchmark ran on, to be said beside its numbers."""

import os
import platform
import re
import resource
import sys
from pathlib import Path

import torch

from sigmax import __version__


def hardware() -> str:
    """The processor and its cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def describe_machine() -> str:
    """Hardware, threads and versions, in one line."""
    return f"{hardware()}, {torch.get_num_threads()} threads, torch {torch.__version__}, sigmax {__version__}"


if __name__ == "__main__":
    print(describe_machine())


def peak_megabytes() -> float:
    """The most memory that this process has had."""
    # A child inherits ru_maxrss from a larger parent on Linux; what the kernel says of this program alone does not.
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
