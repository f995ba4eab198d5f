"""Replay: repeat a run, and compare every row with its record."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

from sigmax.engine.certify import Tracker, certify
from sigmax.errors import InvalidInputError, RecordError
from sigmax.models.reference import ModelReference
from sigmax.runs import CONFIG, TABLE, Found, read_spec
from sigmax.runs.table import point_part, without_time


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a record compares with its repetition."""

    rows: int  # compared
    differing: tuple[tuple[str, str], ...]  # rows as they were and as they came out
    is_settled: bool  # whether settled answers were compared too; without their memory only point certificates are


def replay(run: Path, *, track: Tracker, most: int | None = None, data: str | None = None) -> Replay:
    """Certify the inputs of a record again, at most `most`, and compare the rows except for their times.

    `data` is the data set from another place, such as cifar10:DIR.
    """
    spec = read_spec(run / CONFIG)
    if spec.found is None:
        raise RecordError(f"expected the record of a run in {run}, got a request that was never run; certify it first")
    if spec.shard is not None:
        raise RecordError(f"expected a whole run, got shard {spec.shard} in {run}; merge the shards and replay that")
    if most is not None and most < 1:
        raise InvalidInputError(f"expected to compare at least one row, got {most}")
    recorded = _rows(run)[:most]
    if not recorded:
        raise RecordError(f"expected rows in {run / TABLE}, got none")
    # A shared memory holds answers to other questions too; a frozen one does not change.
    is_settled = spec.memory is None or spec.frozen
    again = replace(
        spec.with_models(partial(_placed, found=spec.found)),
        data=replace(spec.data, max=len(recorded), name=data or spec.data.name),
        memory=spec.memory if spec.frozen else None,
        family_alpha=None,  # each input gets the share that is recorded, also where fewer are repeated
    )
    with TemporaryDirectory() as folder:
        certify(again, Path(folder), track=track)
        repeated = _rows(Path(folder))
    # Only what the record says: an older one may have fewer columns, which stand at the end.
    with (run / TABLE).open() as table:
        columns = table.readline().split()
    compared = partial(without_time if is_settled else point_part, columns=columns)
    pairs = zip_longest(recorded, repeated, fillvalue="")  # a record may have a row too many
    differing = tuple((old, new) for old, new in pairs if compared(old) != compared(new))
    return Replay(rows=len(recorded), differing=differing, is_settled=is_settled)


def _placed(model: ModelReference, found: Found) -> ModelReference:
    """The model on the kind of device where it ran."""
    return replace(model, device=model.device or (found.device if found.backend else None))


def _rows(run: Path) -> list[str]:
    """The lines of a table, but for its header and a last one that was cut off."""
    lines = (run / TABLE).read_text().splitlines(keepends=True)
    return [line.rstrip("\n") for line in lines[1:] if line.endswith("\n")]
