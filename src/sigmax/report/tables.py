"""A table of results: cells as text, with the best ones marked, for every format alike."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

# What a table says in words and a paper sets in symbols; not where it is part of a name.
_SYMBOLS = (
    (re.compile(r"(?<![\w-])sigma0(?![\w-])"), r"$\\sigma_0$"),
    (re.compile(r"(?<![\w-])sigma\*"), r"$\\sigma^*$"),
    (re.compile(r"(?<![\\\w-])sigma(?![\w-])"), r"$\\sigma$"),
    (re.compile(r"(?<![\w-])l([12])(?![\w-])"), r"$\\ell_\1$"),
    (re.compile(r"\b([Kn]) = "), r"$\1$ = "),
    (re.compile(r"^-$"), "--"),
    (re.compile(r"(^|[ (])-(?=\d)"), r"\1$-$"),
    (re.compile("[<>|]"), r"$\g<0>$"),
)
_SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_LINE = 100  # characters, with room between columns
_NUMBER = re.compile(r"<?[-+]?[\d,.]+( [\[(].*)?|-")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """What a reader sees of some runs, whatever the format."""

    name: str  # of its files
    caption: str  # says the inputs, n, and whether certificates are point or settled
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default=frozenset())  # (row, column) of the cells to stress
    # The same for programs, at full precision; empty: the cells as they are.
    records: tuple[Mapping[str, object], ...] = ()

    def __post_init__(self) -> None:
        widths = {len(row) for row in (self.header, *self.rows)}
        if len(widths) != 1:
            raise ValueError(f"expected {len(self.header)} cells in every row, got {sorted(widths)}")

    @property
    def is_numeric(self) -> tuple[bool, ...]:
        """Of each column whether it holds numbers, which are set to the right."""
        return tuple(all(_NUMBER.fullmatch(row[i]) for row in self.rows) for i in range(len(self.header)))


def to_markdown(table: ResultTable) -> str:
    """The table for people who read plain text, the best in bold."""

    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cells) + " |\n"

    rules = tuple("---:" if is_numeric else "---" for is_numeric in table.is_numeric)
    rows = (
        tuple(f"**{_plain(cell)}**" if (i, j) in table.best else _plain(cell) for j, cell in enumerate(row))
        for i, row in enumerate(table.rows)
    )
    return line(tuple(map(_plain, table.header))) + line(rules) + "".join(map(line, rows))


def _plain(cell: str) -> str:
    """A bar or the end of a line would end the cell, and others begin a stress, a link or a tag."""
    return re.sub(r"[|*`]|\](?=\()|<(?=[a-zA-Z/!])|\b_\B|\B_\b", r"\\\g<0>", " ".join(cell.splitlines()))


def to_latex(table: ResultTable) -> str:
    """The table for papers: booktabs, the best in bold; one that is wide is shrunk to the line."""
    columns = "".join("r" if is_numeric else "l" for is_numeric in table.is_numeric)
    rows = (
        [rf"\textbf{{{_typeset(cell)}}}" if (i, j) in table.best else _typeset(cell) for j, cell in enumerate(row)]
        for i, row in enumerate(table.rows)
    )
    is_wide = max(sum(map(len, row)) + 2 * len(row) for row in (table.header, *table.rows)) > _LINE
    lines = [
        r"% needs \usepackage{booktabs,graphicx}" if is_wide else r"% needs \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{_typeset(table.caption)}}}",
        rf"  \label{{tab:{table.name}}}",
        *([r"  \resizebox{\linewidth}{!}{%"] if is_wide else []),
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        _latex_line(map(_typeset, table.header)),
        r"    \midrule",
        *map(_latex_line, rows),
        r"    \bottomrule",
        r"  \end{tabular}" + ("}" if is_wide else ""),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    """A row; where it begins with a bracket or a star, these would be options of the command before it."""
    text = " & ".join(cells)
    return f"    {'{}' * text.startswith(('[', '*'))}{text} " + r"\\"


def _typeset(text: str) -> str:
    text = "".join(_SPECIAL.get(character, character) for character in text)
    for pattern, symbol in _SYMBOLS:
        text = pattern.sub(symbol, text)
    return text


def to_csv(table: ResultTable) -> str:
    """The table for programs: numbers at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.records[0] if table.records else table.header)
    writer.writerows([record.values() for record in table.records] if table.records else table.rows)
    return text.getvalue()
