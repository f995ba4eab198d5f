"""One table, several writers."""

import csv
import re

from sigmax.report.tables import Cell, ResultTable, to_csv, to_latex, to_markdown


def check_latex(text: str, *, rows: int) -> None:
    """Balanced, with the three rules of booktabs and the same number of cells in every row."""
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert opened == ["table", "adjustbox", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == opened[::-1]
    unescaped = re.sub(r"\\[{}$&_%#]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert unescaped.count("$") % 2 == 0
    assert [text.count(rf"\{rule}rule") for rule in ("top", "mid", "bottom")] == [1, 1, 1]
    match = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert match
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == rows + 1
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {len(match[1])}


def test_every_format_survives_awkward_cells() -> None:
    table = ResultTable(
        name="odd",
        caption="50 % of a_b & {c} at sigma0, sigma* and l2, n = 5",
        header=("run", "p"),
        rows=(
            *(("a|b_c*", "<0.001"), ("l2-sigma-l1", "0.1"), ("x & y", "-0.5 (<0.001)"), ("#1 ~ ^ \\", "-")),
            *(("[5pt] a", "0.1 [0.0, 0.2]"), ("_b_ <i>\n[c](d)", "1")),
        ),
        best=frozenset({(2, 1)}),
    )
    latex, markdown = to_latex(table), to_markdown(table)
    check_latex(latex, rows=6)
    assert "    {}[5pt] a & 0.1 [0.0, 0.2]" in latex  # else an option of the rule or line above
    assert "| [5pt] a | 0.1 [0.0, 0.2] |" in markdown
    assert r"| \_b\_ \<i> [c\](d) | 1 |" in markdown
    assert r"50 \% of a\_b \& \{c\} at $\sigma_0$, $\sigma^*$ and $\ell_2$, $n$ = 5" in latex
    assert "    l2-sigma-l1 & 0.1" in latex  # a name stays as it is
    assert r"\textbf{$-$0.5 ($<$0.001)}" in latex
    assert r"a\|b_c\* | <0.001 |" in markdown
    assert "**-0.5 (<0.001)**" in markdown
    assert list(csv.reader(to_csv(table).splitlines(keepends=True))) == [list(table.header), *map(list, table.rows)]


def test_csv_is_exact_and_the_largest_of_a_column_is_the_best() -> None:
    rows = [{"run": f"{i}", "ACR": Cell("0.333", value, low=0.1)} for i, value in enumerate((1 / 3, 0.3334))]
    table = ResultTable.of("t", "caption", rows, ["ACR"])
    assert table.rows == (("0", "0.333"), ("1", "0.333"))
    assert table.best == {(1, 1)}
    assert to_csv(table) == f"run,ACR,ACR_low\n0,{1 / 3!r},0.1\n1,0.3334,0.1\n"
    assert not ResultTable.of("t", "caption", rows[:1], ["ACR"]).best  # of one there is no choice
    assert not ResultTable.of("t", "caption", [{"a": Cell("0", 0.0)}] * 2, ["a"]).best  # and 0 is nothing to praise
