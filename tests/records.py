"""Records as tests compare them: all that must be the same at every repetition."""

import sqlite3
from pathlib import Path

from sigmax.runs.table import without_time


def rows(out: Path) -> list[list[str]]:
    """The table of a run without its times."""
    return [without_time(line) for line in (out / "certificates.tsv").read_text().splitlines()]


def memory_rows(file: Path) -> list[str]:
    """All that a memory holds, as SQL."""
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
        return list(database.iterdump())
