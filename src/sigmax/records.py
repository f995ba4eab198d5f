"""Records are the truth: the run folder, the certificate table, and readers for others' logs.

The first six columns of a table are those that the field's scripts read; abstain is -1.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.errors import RecordError
from sigmax.files import lock_folder, write_atomically

TABLE, CONFIG, MEMORY = "certificates.tsv", "config.json", "memory.db"
NOTES = "notes"  # the part of a configuration that tells people more and decides nothing
ABSTAIN = -1
COLUMNS = (
    *("idx", "label", "predict", "radius", "correct", "time"),
    *("sigma", "p_lower", "point_predict", "point_radius", "point_sigma", "rule", "n", "alpha", "norm"),
)
_REQUIRED = ("idx", "label", "predict", "radius")


def format_row(
    idx: int, label: int, point: PointCertificate, settled: SettledCertificate | None, seconds: float
) -> str:
    """One line of the table, floats at full precision.

    `predict` and `radius` are the settled answer where a memory settled it; else they are the point
    certificate, and `rule` says "point".
    """
    answer = settled or point
    fields = (
        idx,
        label,
        _number(answer.label),
        answer.radius,
        int(answer.label == label),
        timedelta(seconds=round(seconds, 6)),
        answer.sigma,
        point.p_lower,
        _number(point.label),
        point.radius,
        point.sigma,
        settled.rule if settled else "point",
        point.n,
        point.alpha,
        point.norm,
    )
    return "\t".join(str(field) for field in fields) + "\n"


def _number(label: int | None) -> int:
    return ABSTAIN if label is None else label


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateTable:
    """The columns of a certificate table that reports use, one row per input."""

    name: str
    idx: NDArray[np.int64]
    label: NDArray[np.int64]
    predict: NDArray[np.int64]
    radius: NDArray[np.float64]
    seconds: NDArray[np.float64]  # NaN where the log does not say
    sigma: NDArray[np.float64]  # NaN where the log does not say
    point_predict: NDArray[np.int64]  # before a memory settled it; the answer itself where the log does not say
    point_radius: NDArray[np.float64]  # as above
    rule: tuple[str, ...]  # "" where the log does not say
    samples: NDArray[np.int64]  # n; 0 where the log does not say
    norm: int = 2
    dropped: int = 0  # lines that were cut off

    def __len__(self) -> int:
        return len(self.idx)

    @property
    def is_correct(self) -> NDArray[np.bool_]:
        """Whether the answer is the label; recomputed, because some logs keep a running count instead."""
        is_answer: NDArray[np.bool_] = self.predict != ABSTAIN
        return is_answer & np.equal(self.predict, self.label)

    @property
    def is_settled(self) -> bool:
        """Whether its answers were settled by a memory."""
        return any(rule not in ("", "point") for rule in self.rule)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A certificate table with the configuration that made it; others' logs have none."""

    table: CertificateTable
    config: dict[str, Any]  # that of config.json; empty where there is none

    @property
    def name(self) -> str:
        """The name of its folder or file."""
        return self.table.name

    def note(self, key: str) -> str | None:
        """What people were told, such as the model and the data."""
        said = self.config.get(NOTES, {}).get(key)
        return None if said is None else str(said)


def read_run(path: Path) -> Run:
    """Read a run folder, or a certificate table alone."""
    table = read_table(path)
    folder = path if path.is_dir() else path.parent
    is_run = (path.is_dir() or path.name == TABLE) and (folder / CONFIG).exists()
    return Run(table=table, config=read_config(folder) if is_run else {})


def read_config(folder: Path) -> dict[str, Any]:
    """The settings that a run folder was begun with."""
    path = folder / CONFIG
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{path}: expected the configuration of a run, got: {error}") from error


def read_table(path: Path) -> CertificateTable:
    """Read a certificate table: ours, of a run folder, or a log that others have published.

    Accepts CRLF, spaces around separators, extra columns in any order, and a last line that was cut off,
    which is dropped. The correct column is recomputed.
    """
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
    try:
        return CertificateTable(
            name=path.parent.name if path.name == TABLE else path.stem,
            idx=np.array(columns["idx"], dtype=np.int64),
            label=np.array(columns["label"], dtype=np.int64),
            predict=np.array(columns["predict"], dtype=np.int64),
            radius=_radii(columns["radius"]),
            seconds=np.array([_seconds(t) for t in columns.get("time", [""] * len(rows))]),
            sigma=_sigmas(columns.get("sigma", columns.get("best_sigma", ["nan"] * len(rows)))),
            point_predict=np.array(columns.get("point_predict", columns["predict"]), dtype=np.int64),
            point_radius=_radii(columns.get("point_radius", columns["radius"])),
            rule=tuple(columns.get("rule", [""] * len(rows))),
            samples=np.array(columns.get("n", ["0"] * len(rows)), dtype=np.int64),
            norm=int(norms[0]),
            dropped=dropped,
        )
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{path}: expected numbers in every row, got: {error}") from error


def _is_cut_off(text: str, last: list[str], header: list[str]) -> bool:
    """A last line without its end: surely cut where columns miss; else only a time may be incomplete."""
    if text.endswith("\n"):
        return False
    return len(last) != len(header) or header[-1] != "time"


def _radii(column: list[str]) -> NDArray[np.float64]:
    radii = np.array(column, dtype=np.float64)
    is_radius = (radii >= 0) & np.isfinite(radii)
    if not is_radius.all():
        raise ValueError(f"radius {column[int((~is_radius).argmax())]!r}")
    return radii


def _sigmas(column: list[str]) -> NDArray[np.float64]:
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


@final
class RunFolder:
    """A run on disk: its configuration, its table so far, and the only process that writes to it.

    Interrupted anywhere, it is continued by opening it again with the same configuration: a line that
    was cut off is removed, and the rest is appended to.

    Args:
        path: The folder.
        config: Its settings; a folder that was begun with others is refused.
        resume: Continue a run that has rows.
        on_begin: Called before a run is begun here, also in place of one that has no rows; may refuse.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        *,
        resume: bool = False,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._lock = lock_folder(path)
        try:
            self.rows = self._open_table()
            self._open_config(config, resume, on_begin)
        except OSError as error:
            self._lock.release()
            raise RecordError(f"expected to read and write {path}, got: {error}") from error
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def table(self) -> Path:
        """The certificate table."""
        return self.path / TABLE

    def check_rows(self, indices: Sequence[int]) -> int:
        """How many rows there are, all of them of these inputs in this order; refuse any others."""
        found = read_table(self.path).idx.tolist() if self.rows else []
        if len(found) != self.rows or found[: len(indices)] != list(indices)[: len(found)]:
            raise RecordError(
                f"expected {self.table} to begin with the inputs {_few(indices)}, got {_few(found)}; "
                "use the --skip it was begun with, or choose another folder"
            )
        return self.rows

    def append(self, line: str) -> None:
        """Append one line of the table, durably."""
        try:
            with self.table.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"expected room to append to {self.table}, got: {error}; nothing is lost: continue with --resume"
            ) from error
        self.rows += 1

    def _open_config(self, config: dict[str, Any], resume: bool, on_begin: Callable[[], None] | None) -> None:
        path = self.path / CONFIG
        try:
            content = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
        except TypeError as error:
            # By its text alone, a setting could not be told from another: that of a module has no weights.
            raise RecordError(
                f"expected settings of plain values, got {config.get('search')}: {error}; "
                "let settings() of the search name what it is, such as by a digest"
            ) from error
        config = json.loads(content)  # as it will be read again: a tuple comes back as a list
        if not path.exists() and self.rows:
            raise RecordError(f"expected {CONFIG} beside {self.table}, got none; choose another folder")
        old = read_config(self.path) if path.exists() else None
        now = _compared(config)
        was = {"engine": now.get("engine")} | _compared(old) if old is not None else now  # not all records have said it
        changed = [key for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
        if old is None or (changed and not self.rows):
            # A run that failed before its first row is not in the way of the corrected one.
            if on_begin is not None:
                on_begin()
            write_atomically(path, content)
            return
        if self.rows and not resume:
            raise RecordError(f"expected a new folder, got {self.path} with a run in it; add --resume to continue it")
        if changed:
            differences = ", ".join(
                f"{key}={now.get(key)!r} (was {was.get(key)!r}{_MEANING.get(key, '')})" for key in changed
            )
            raise RecordError(
                f"expected the settings that {self.path} was begun with, got {differences}; choose another folder"
            )

    def _open_table(self) -> int:
        """Remove a line that was cut off; return how many rows there are."""
        if not self.table.exists():
            write_atomically(self.table, "\t".join(COLUMNS).encode() + b"\n")
            return 0
        content = self.table.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if not whole.startswith("\t".join(COLUMNS).encode() + b"\n"):
            raise RecordError(f"{self.table}: expected a table of this version, got another first line")
        if len(whole) < len(content):
            with self.table.open("r+b") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        return whole.count(b"\n") - 1


# What digests that differ stand for.
_MEANING = {"fingerprint": ": another model, backend or noise", "data": ": other images or labels"}


def _compared(config: dict[str, Any]) -> dict[str, Any]:
    """What a run is continued with only if it is the same: all but notes, of which the engine may answer otherwise."""
    engine = (config.get(NOTES) or {}).get("engine")
    return {key: value for key, value in config.items() if key != NOTES} | ({"engine": engine} if engine else {})


def _few(indices: Sequence[int]) -> str:
    shown = ", ".join(str(index) for index in indices[:3])
    return f"{shown}, …" if len(indices) > 3 else shown or "none"
