"""The numbers that the paper reports, to be set beside ours: its tables as data.

`best.tsv` holds its four tables of best certified accuracy per radius with ACR, `per_sigma.tsv` the
appendix, one row for each method, sigma, number of steps K and radius. Accuracies are in percent. One row
that the appendix prints twice (Cohen-DS^2, sigma 0.12, K = 100) is here once.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "paper_tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve:
    """Certified accuracy by radius, as printed in the paper."""

    data: str  # cifar10 or imagenet
    norm: int
    method: str  # such as cohen, cohen-ds, cohen-ds2
    sigma: float | None  # None: the best over all sigmas and K at each radius
    steps: int | None  # K; 0: no search; None: the best
    samples: int | None  # n of Algorithm 1; None: the table does not say
    accuracy: dict[float, float]  # radius -> percent
    acr: float | None  # given for the best only


@cache
def published_curves() -> tuple[PublishedCurve, ...]:
    """Every curve of the paper's tables, in their order."""
    return (*_read("best.tsv"), *_read("per_sigma.tsv"))


def _read(name: str) -> list[PublishedCurve]:
    with (_FOLDER / name).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    curves: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        curves.setdefault(tuple(v for k, v in row.items() if k not in ("radius", "accuracy")), []).append(row)
    return [_curve(rows) for rows in curves.values()]


def _curve(rows: list[dict[str, str]]) -> PublishedCurve:
    first = rows[0]
    return PublishedCurve(
        data=first["data"],
        norm=int(first.get("norm", "l2").removeprefix("l")),
        method=first["method"],
        sigma=float(first["sigma"]) if "sigma" in first else None,
        steps=int(first["steps"]) if "steps" in first else None,
        samples=int(first["samples"]) if "samples" in first else None,
        accuracy={float(row["radius"]): float(row["accuracy"]) for row in rows},
        acr=float(first["acr"]) if "acr" in first else None,
    )
