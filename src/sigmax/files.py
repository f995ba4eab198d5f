"""Writing files so that an interruption leaves the old content or the new, never half of it."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside, flush to the disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
