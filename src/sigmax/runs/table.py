"""The certificate table: one list of columns, with how each is written and read.

The first six columns are those that the field's scripts read; abstain is -1. Logs that others have published are read
too: CRLF, spaces around separators, extra columns in any order, times as seconds or as a clock.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import RecordError
from sigmax.table import ABSTAIN, CertificateTable

if TYPE_CHECKING:
    from sigmax.runs.orders import Orders
    from sigmax.runs.spec import CertificationSpec

TABLE, CONFIG = "certificates.tsv", "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What a line of the table says."""

    idx: int
    truth: int
    point: PointCertificate
    settled: SettledCertificate | None
    seconds: float

    @property
    def answer(self) -> PointCertificate | SettledCertificate:
        """The settled answer where a memory settled it, else the point certificate."""
        return self.settled or self.point

    @property
    def proof(self) -> PointCertificate:
        """The certificate that the answer relies on."""
        return self.settled.proof if self.settled else self.point

    @property
    def rule(self) -> str:
        """How the answer was settled; "recalled" if the memory had given it before, to another point certificate."""
        if self.settled is None:
            return "point"
        return self.settled.rule if self.settled.point == self.point else "recalled"


def _number(label: int | None) -> int:
    return ABSTAIN if label is None else label


def _known(value: float | None) -> float:
    """NaN where there is none: no level that the network was told, no router."""
    return float("nan") if value is None else value


# Each column of the table, in order: what a line says there.
_COLUMNS: dict[str, Callable[[_Row], object]] = {
    "idx": lambda row: row.idx,
    "label": lambda row: row.truth,
    "predict": lambda row: _number(row.answer.label),
    "radius": lambda row: row.answer.radius,
    "correct": lambda row: int(row.answer.label == row.truth),
    "time": lambda row: timedelta(seconds=round(row.seconds, 6)),
    "sigma": lambda row: row.answer.sigma,
    "p_lower": lambda row: row.proof.p_lower,
    "point_predict": lambda row: _number(row.point.label),
    "point_radius": lambda row: row.point.radius,
    "point_sigma": lambda row: row.point.sigma,
    "rule": lambda row: row.rule,
    "n": lambda row: row.proof.n,
    "alpha": lambda row: row.proof.alpha,
    "norm": lambda row: row.point.norm,
    "point_p_lower": lambda row: row.point.p_lower,
    "point_n": lambda row: row.point.n,
    "point_alpha": lambda row: row.point.alpha,
    "tau": lambda row: _known(row.proof.tau),
    "expert": lambda row: row.proof.expert,
    "point_tau": lambda row: _known(row.point.tau),
    "point_expert": lambda row: row.point.expert,
    "expert_radius": lambda row: _known(row.point.expert_radius),
    "route_radius": lambda row: _known(row.point.route_radius),
}
COLUMNS = tuple(_COLUMNS)
HEADER = "\t".join(COLUMNS) + "\n"
_POINT = ("idx", "label", "norm", *(name for name in COLUMNS if name.startswith("point_")))
_REQUIRED = ("idx", "label", "predict", "radius")


def format_row(
    idx: int, truth: int, point: PointCertificate, settled: SettledCertificate | None, seconds: float
) -> str:
    """One line of the table, floats at full precision.

    `predict` and `radius` are the settled answer where a memory settled it, and `sigma`, `p_lower`, `n`, `alpha`,
    `tau` and `expert` are those of the certificate it relies on. Else they are the point certificate, and `rule` says
    "point". `expert` is the place of the network in the request, 0 for its model. `expert_radius`
    and `route_radius` are what the network and the router proved where a router chose; `radius` is the smaller one.
    """
    row = _Row(idx=idx, truth=truth, point=point, settled=settled, seconds=seconds)
    return "\t".join(str(say(row)) for say in _COLUMNS.values()) + "\n"


def without_time(line: str, columns: Sequence[str] = COLUMNS) -> list[str]:
    """The fields of a line in these columns but for how long the input took: the same at every repetition."""
    return [field for name, field in _fields(line) if name != "time" and (not name or name in columns)]


def point_part(line: str, columns: Sequence[str] = COLUMNS) -> list[str]:
    """The fields of a line in these columns that no memory decides."""
    return [field for name, field in _fields(line) if name in _POINT and name in columns]


def _fields(line: str) -> list[tuple[str, str]]:
    return list(zip_longest(COLUMNS, line.rstrip("\n").split("\t"), fillvalue=""))  # also of a broken line


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A certificate table with the request that made it; others' logs have none."""

    table: CertificateTable
    spec: "CertificationSpec | None"
    orders: "Orders | None" = None  # how much its answers depend on their order; None: nobody has tried

    @property
    def name(self) -> str:
        """The name of its folder or file."""
        return self.table.name

    @property
    def noise(self) -> str:
        """Whether its noise was "exact", or in "float"; empty where the record does not say."""
        if self.spec is None or self.spec.found is None:
            return ""
        return "float" if self.spec.found.levels is None else "exact"


def read_run(path: Path | str) -> Run:
    """Read a run folder, or a certificate table alone."""
    path = Path(path)
    table = read_table(path)
    config = (path if path.is_dir() else path.parent) / CONFIG
    is_run = (path.is_dir() or path.name == TABLE) and config.exists()
    if not is_run:
        return Run(table=table, spec=None)
    from sigmax.runs.orders import read_orders
    from sigmax.runs.spec import read_spec  # here, because it takes torch, and a table alone does not

    return Run(table=table, spec=read_spec(config), orders=read_orders(config.parent))


def read_runs(paths: Sequence[Path | str]) -> dict[Path, Run]:
    """Read runs and logs, each by its place; a folder that is not a run stands for the runs, else the logs, in it.

    Runs whose folders have the same name are named by as much of their paths as tells them apart.
    """
    runs = {place: read_run(place) for path in paths for place in _places(Path(path).resolve())}
    if len({run.name for run in runs.values()}) < len(runs):
        root = os.path.commonpath([place.parent for place in runs])
        for place, run in runs.items():
            runs[place] = replace(run, table=replace(run.table, name=place.relative_to(root).as_posix()))
    return runs


def _places(path: Path) -> list[Path]:
    if path.name == TABLE:
        return [path.parent]
    if not path.is_dir() or (path / TABLE).exists():
        return [path]
    found = sorted(table.parent for table in path.rglob(TABLE)) or sorted(path.glob("*.tsv"))
    if not found:
        raise RecordError(f"expected a run folder, a folder of runs or a table, got {path} without any")
    return found


def read_table(path: Path | str) -> CertificateTable:
    """Read a certificate table: ours, of a run folder, or a log that others have published.

    A last line that was cut off is dropped. The correct column is recomputed.
    """
    path = Path(path)
    if path.is_dir():
        path = path / TABLE
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: expected a certificate table, got: {error}") from error
    lines = [[field.strip() for field in line.split("\t")] for line in text.splitlines()]
    if not lines or not set(_REQUIRED) <= set(lines[0]):
        got = lines[0] if lines else "an empty file"
        raise RecordError(f"{path}: expected a first line with the columns {', '.join(_REQUIRED)}, got {got}")
    header, rows = lines[0], [line for line in lines[1:] if line != [""]]
    dropped = 0
    if rows and _is_cut_off(text, rows[-1], header):
        rows, dropped = rows[:-1], 1
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise RecordError(f"{path}: expected {len(header)} columns in line {number}, got {len(row)}")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if again := [idx for idx, times in Counter(columns["idx"]).items() if times > 1]:
        raise RecordError(f"{path}: expected every input once, got input {again[0]} again; was a run appended to it?")
    norms = sorted(set(columns.get("norm", ["2"]))) or ["2"]
    if len(norms) > 1:
        raise RecordError(f"{path}: expected one norm in all rows, got {', '.join(norms)}")

    def read(name: str, default: str, kind: Callable[[list[str]], Any]) -> Any:
        return kind(columns.get(name, [default] * len(rows)))

    try:
        return CertificateTable(
            name=path.parent.name if path.name == TABLE else path.stem,
            idx=_whole(columns["idx"]),
            label=_whole(columns["label"]),
            predict=_whole(columns["predict"]),
            radius=_radii(columns["radius"]),
            seconds=read("time", "", lambda column: np.array([_seconds(text) for text in column])),
            sigma=read("sigma" if "sigma" in columns else "best_sigma", "nan", _sigmas),
            point_predict=_whole(columns.get("point_predict", columns["predict"])),
            point_radius=_radii(columns.get("point_radius", columns["radius"])),
            rule=read("rule", "", tuple),
            samples=read("point_n" if "point_n" in columns else "n", "0", _whole),
            tau=_sigmas(columns["tau"]) if "tau" in columns else None,
            expert=_whole(columns["expert"]) if "expert" in columns else None,
            expert_radius=_sigmas(columns["expert_radius"]) if "expert_radius" in columns else None,
            route_radius=_sigmas(columns["route_radius"]) if "route_radius" in columns else None,
            alpha=max(map(float, columns.get("alpha", [])), default=float("nan")),
            norm=int(norms[0]),
            dropped=dropped,
        )
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{path}: expected numbers in every row, got: {error}") from error


def _is_cut_off(text: str, last: list[str], header: list[str]) -> bool:
    """A last line without its end: surely cut where columns are missing; else only a time may be incomplete."""
    if text.endswith("\n"):
        return False
    return len(last) != len(header) or header[-1] != "time"


def _whole(column: Sequence[str]) -> NDArray[np.int64]:
    return np.array(column, dtype=np.int64)


def _radii(column: Sequence[str]) -> NDArray[np.float64]:
    radii = np.array(column, dtype=np.float64)
    is_radius = (radii >= 0) & np.isfinite(radii)
    if not is_radius.all():
        raise ValueError(f"radius {column[int((~is_radius).argmax())]!r}")
    return radii


def _sigmas(column: Sequence[str]) -> NDArray[np.float64]:
    sigmas = np.array(column, dtype=np.float64)
    if np.isinf(sigmas).any():
        raise ValueError(f"sigma {column[int(np.isinf(sigmas).argmax())]!r}")
    return sigmas


def _seconds(text: str) -> float:
    """Seconds from `12.5` or from `1 day, 0:00:12.5`; NaN if it says nothing."""
    days, comma, clock = text.rpartition(",")
    try:
        total = 0.0
        for part in clock.strip().split(":"):
            total = 60 * total + float(part)
        return total + (86_400 * float(days.split()[0]) if comma else 0.0)
    except ValueError:
        return float("nan")
