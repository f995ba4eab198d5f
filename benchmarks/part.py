"""What every benchmark gives: one table with its claim, for people and as JSON. Light: it imports no torch."""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

Cell = str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A table whose rows all have the same columns."""

    title: str
    claim: str  # what it should show
    note: str  # how it was measured
    rows: list[dict[str, Cell]]

    def markdown(self) -> str:
        """The part as it stands in the documentation."""
        lines = [f"### {self.title}", "", f"Claim: {self.claim}", ""]
        if self.rows:
            lines += ["| " + " | ".join(self.rows[0]) + " |", "|" + "---|" * len(self.rows[0])]
            lines += ["| " + " | ".join(shown(cell) for cell in row.values()) + " |" for row in self.rows]
        return "\n".join([*lines, "", self.note, ""])

    def show(self) -> None:
        """Print it."""
        view = Table(*(self.rows[0] if self.rows else ()), title=self.title, title_justify="left", box=None)
        for row in self.rows:
            view.add_row(*(shown(cell) for cell in row.values()))
        Console(width=120).print(view, f"Claim: {self.claim}", self.note, "", sep="\n", markup=False)


def shown(cell: Cell) -> str:
    """Text as it is, numbers with three digits or, where they are large, without fractions."""
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 100 or isinstance(cell, int) else f"{cell:.3g}"


def interleaved(runs: Mapping[str, Callable[[], float]], *, repeats: int) -> dict[str, float]:
    """The median of what each run measures, taken in turns (A B A B …): what slows the machine slows all."""
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            measured[name].append(run())
    return {name: statistics.median(values) for name, values in measured.items()}


def parser(doc: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--n", type=int, default=100_000, help="samples of a certificate (default: %(default)s)")
    made.add_argument("--repeats", type=int, default=repeats, help="medians over so many (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    return made


def finish(part: Part, file: Path | None) -> None:
    """Print, and write where that was asked for."""
    part.show()
    if file is not None:
        file.write_text(json.dumps(asdict(part), indent=2) + "\n")
