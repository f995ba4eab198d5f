"""A table of results: one value, written as Markdown, as LaTeX, as CSV and on the page."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

# What a table says in words and a paper sets in symbols; not where it is part of a name.
_SYMBOLS = {
    r"(?<![\w-])sigma0(?![\w-])": r"$\\sigma_0$",
    r"(?<![\w-])sigma\*": r"$\\sigma^*$",
    r"(?<![\\\w-])sigma(?![\w-])": r"$\\sigma$",
    r"(?<![\w-])l([12])(?![\w-])": r"$\\ell_\1$",
    r"\b([Kn]) = ": r"$\1$ = ",
    r"^-$": "--",
    r"(^|[ (])-(?=\d)": r"\1$-$",
    "[<>|]": r"$\g<0>$",
}
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPED = str.maketrans(_SPECIAL | {character: f"\\{character}" for character in "&%$#_{}"})
Rows = Sequence[Mapping[str, Any]]  # cells by column
_NUMBER = re.compile(r"<?[-+]?[\d,.]+\*?( [\[(].*)?|-")


@final
class Cell(str):
    """A cell as people read it, with its exact value and what belongs to it, such as the ends of an interval."""

    value: Any
    more: Mapping[str, object]

    def __new__(cls, text: str, value: object, **more: object) -> Self:
        """The text, and what CSV has for it."""
        cell = super().__new__(cls, text)
        cell.value, cell.more = value, more
        return cell


def with_scope(caption: str, scope: str) -> str:
    """A caption that also says what its runs are."""
    return f"{caption} {scope[0].upper()}{scope[1:]}." if scope else caption


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """What a reader sees of some runs, whatever the format."""

    name: str  # of its files
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of the cells to stress
    scope: str = ""  # the inputs, n, and whether certificates are point or settled; a section says it once

    @classmethod
    def of(cls, name: str, caption: str, rows: Rows, stressed: Collection[str] = (), scope: str = "") -> Self:
        """The table of rows with cells by column; of several rows the largest in each `stressed` column is the best."""
        header, cells = tuple(rows[0]), tuple(tuple(row.values()) for row in rows)
        largest = {column: max(row[column].value for row in rows) for column in stressed if len(rows) > 1}
        best = {(i, c) for c, most in largest.items() for i, row in enumerate(rows) if row[c].value == most > 0}
        places = frozenset((i, header.index(column)) for i, column in best)
        return cls(name=name, caption=caption, header=header, rows=cells, best=places, scope=scope)

    @property
    def is_numeric(self) -> tuple[bool, ...]:
        """Whether each column holds numbers, which are set to the right."""
        return tuple(all(_NUMBER.fullmatch(row[i]) for row in self.rows) for i in range(len(self.header)))

    def written(self, cell: Callable[[str], str], stress: str) -> list[list[str]]:
        """The rows with every cell written so, the best ones inside the format `stress`."""
        return [
            [stress.format(cell(text)) if (i, j) in self.best else cell(text) for j, text in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]


def to_markdown(table: ResultTable) -> str:
    """The table for people who read plain text, the best in bold."""
    rules = ["---:" if is_numeric else "---" for is_numeric in table.is_numeric]
    lines = [map(_plain, table.header), rules, *table.written(_plain, "**{}**")]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _plain(cell: str) -> str:
    """A bar or the end of a line would end the cell, and others begin a stress, a link or a tag."""
    return re.sub(r"[|*`]|\](?=\()|<(?=[a-zA-Z/!])|\b_\B|\B_\b", r"\\\g<0>", " ".join(cell.splitlines()))


def to_latex(table: ResultTable) -> str:
    """The table for papers: booktabs, the best in bold; one wider than the line is shrunk to it."""
    lines = [
        r"% needs \usepackage{booktabs,adjustbox}",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{_typeset(with_scope(table.caption, table.scope))}}}",
        rf"  \label{{tab:{table.name}}}",
        r"  \begin{adjustbox}{max width=\linewidth}",
        rf"  \begin{{tabular}}{{{''.join('r' if is_numeric else 'l' for is_numeric in table.is_numeric)}}}",
        r"    \toprule",
        _latex_line(map(_typeset, table.header)),
        r"    \midrule",
        *map(_latex_line, table.written(_typeset, r"\textbf{{{}}}")),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \end{adjustbox}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_line(cells: Iterable[str]) -> str:
    """A row; a bracket or a star at its beginning would be an option of the command before it."""
    text = " & ".join(cells)
    return f"    {'{}' * text.startswith(('[', '*'))}{text} " + r"\\"


def _typeset(text: str) -> str:
    text = text.translate(_ESCAPED)
    for pattern, symbol in _SYMBOLS.items():
        text = re.sub(pattern, symbol, text)
    return text


def to_csv(table: ResultTable) -> str:
    """The table for programs: numbers at full precision, and what belongs to a cell in columns after it."""
    records: list[dict[str, object]] = [{} for _ in table.rows]
    for record, row in zip(records, table.rows, strict=True):
        for name, cell in zip(table.header, row, strict=True):
            record[name] = getattr(cell, "value", cell)
            record |= {f"{name}_{key}": value for key, value in getattr(cell, "more", {}).items()}
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0] if records else table.header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
