"""A table of results: cells as text, with the best ones marked, for every format alike."""

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """What a reader sees of some runs, whatever the format."""

    name: str  # of its files
    caption: str  # says the inputs, n, and whether certificates are point or settled
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default=frozenset())  # (row, column) of the cells to stress

    def __post_init__(self) -> None:
        widths = {len(row) for row in (self.header, *self.rows)}
        if len(widths) != 1:
            raise ValueError(f"expected {len(self.header)} cells in every row, got {sorted(widths)}")
