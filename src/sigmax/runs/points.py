"""Point certificates on their way into a table, and read back from it without losing a bit."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sigmax.certificate import PointCertificate
from sigmax.errors import RecordError
from sigmax.runs.table import COLUMNS, TABLE, read_table
from sigmax.table import ABSTAIN


@final
@dataclass(frozen=True, slots=True)
class Certified:
    """The point certificate of an input, and how long its worker took for it."""

    index: int
    point: PointCertificate
    seconds: float


def read_points(run: Path, *, is_exact: bool) -> list[Certified]:
    """The point certificates in the table of a run, row by row; `is_exact` is whether its noise was integer."""
    table = read_table(run)  # refuses what is no table, and says which rows are whole
    path = run / TABLE
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[: len(table)]
    if rows and tuple(rows[0]) != COLUMNS:
        raise RecordError(f"{path}: expected a table of this version, got another first line; certify it again")
    try:
        points = [_point(row, is_exact=is_exact) for row in rows]
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path}: expected a point certificate in every row, got: {error}") from error
    seconds = table.seconds.tolist()
    return [Certified(*row) for row in zip(table.idx.tolist(), points, seconds, strict=True)]


def _point(row: dict[str, str], *, is_exact: bool) -> PointCertificate:
    label = int(row["point_predict"])
    return PointCertificate(
        label=None if label == ABSTAIN else label,
        radius=float(row["point_radius"]),
        sigma=float(row["point_sigma"]),
        p_lower=float(row["point_p_lower"]),
        n=int(row["point_n"]),
        alpha=float(row["point_alpha"]),
        norm=int(row["norm"]),
        tau=_known(row["point_tau"]),
        expert=int(row["point_expert"]),
        is_exact=is_exact,
        expert_radius=_known(row["expert_radius"]),
        route_radius=_known(row["route_radius"]),
    )


def _known(text: str) -> float | None:
    return None if math.isnan(value := float(text)) else value
