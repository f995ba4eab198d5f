"""Draws which package imports which: docs/images/imports.png.

    python benchmarks/import_graph.py

A module imports only from rows below its own; import-linter checks the order (pyproject.toml). An arrow that follows
from others is left out, and so are the modules that nearly all others use.
"""

import tomllib
from pathlib import Path

import grimp
import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "imports.png"


COMMON = ("errors", "rounding", "files", "named", "plain", "certificate")


def modules() -> list[str]:
    """What is drawn, in the order that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip() for row in rows for name in row.split("|")]
    return [name for name in names if name.removeprefix("sigmax.") not in COMMON]


def imports(modules: list[str]) -> dict[str, set[str]]:
    """What each imports directly, among these."""
    graph = grimp.build_graph("sigmax")
    members = {name: {name, *graph.find_descendants(name)} for name in modules}
    home = {module: name for name, parts in members.items() for module in parts}
    return {
        name: {
            home[other] for part in parts for other in graph.find_modules_directly_imported_by(part) if other in home
        }
        - {name}
        for name, parts in members.items()
    }


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from others."""
    return {
        name: {other for other in targets if not any(other in _below(edges, step) for step in targets - {other})}
        for name, targets in edges.items()
    }


def _below(edges: dict[str, set[str]], name: str) -> set[str]:
    return set().union(*({other} | _below(edges, other) for other in edges[name]))


def placed(edges: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Rows by the longest way down; in a row, each near the middle of what it imports."""

    def depth(name: str) -> int:
        return max((1 + depth(other) for other in edges[name]), default=0)

    place: dict[str, tuple[float, float]] = {}
    for row in range(max(map(depth, edges)) + 1):
        names = [name for name in edges if depth(name) == row]
        wanted = {name: sum(place[o][0] for o in edges[name]) / max(1, len(edges[name])) for name in names}
        names.sort(key=lambda name: wanted[name])
        middle = sum(wanted.values()) / len(names)
        for i, name in enumerate(names):
            sway = 0.9 if len(names) == 1 and row % 2 else 0.0  # so that long arrows pass beside the boxes
            place[name] = (middle * 0.3 + sway + 2.6 * (i - (len(names) - 1) / 2), float(row))
    return place


def draw(path: Path) -> None:
    edges = reduced(imports(modules()))
    place = placed(edges)
    figure, axes = plt.subplots(figsize=(8, 6.4))
    for name, targets in edges.items():
        for other in targets:
            (x, y), (to_x, to_y) = place[name], place[other]
            bend = 0.0 if y - to_y == 1 else 0.18 * (1 if to_x >= x else -1)
            axes.annotate(
                "",
                xy=(to_x, to_y + 0.28),
                xytext=(x, y - 0.28),
                arrowprops={"arrowstyle": "-|>", "color": "#78909c", "connectionstyle": f"arc3,rad={bend}"},
            )
    for name, (x, y) in place.items():
        axes.text(
            x, y, name.removeprefix("sigmax."), ha="center", va="center", fontsize=11, family="monospace", zorder=3,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "#eceff1", "edgecolor": "#546e7a"},
        )  # fmt: skip
    across = [x for x, _ in place.values()]
    axes.set_xlim(min(across) - 1.2, max(across) + 1.2)
    axes.set_ylim(-0.5, max(y for _, y in place.values()) + 0.5)
    axes.set_axis_off()
    figure.savefig(path, dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    draw(PICTURE)
    print(PICTURE)
