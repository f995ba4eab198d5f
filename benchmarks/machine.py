"""What a benchmark ran on, to be said beside its numbers."""

import os
import platform
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
