"""Shards: parts of one request that ran separately, merged and settled as if one process had run it all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sigmax.engine.certify import Tracker
from sigmax.engine.record import open_record
from sigmax.errors import InvalidInputError, RecordError
from sigmax.runs import CONFIG, CertificateTable, CertificationSpec, read_spec, read_table
from sigmax.runs.folder import check_same
from sigmax.runs.points import Certified, read_points


def merge_shards(
    shards: Sequence[Path],
    out: Path,
    *,
    track: Tracker,
    memory: str | None = None,
    data: str | None = None,
    resume: bool = False,
) -> CertificateTable:
    """Settle and record the point certificates of all shards of a request, in the order of the inputs.

    The table and the memory are those of a run without shards, byte for byte except for the times. The model is not
    needed.

    Args:
        shards: The folders of all shards, in any order.
        out: The run folder.
        track: Shows progress, in inputs.
        memory: A memory to settle answers in; by default a per-input run gets its own.
        data: The data set from another place, such as cifar10:DIR.
        resume: Continue an interrupted merge.
    """
    spec = replace(_common_spec(shards), memory=memory)
    assert spec.found is not None, "every shard says what it found"
    source = replace(spec.data, name=data or spec.data.name).load()
    if source.digest() != spec.found.data:
        raise RecordError(
            f"expected the images that the shards certified, got others from {source.name}; name them by --data"
        )
    points: dict[int, Certified] = {}
    for shard in shards:
        for row in read_points(shard, is_exact=spec.found.levels is not None):
            if row.index in points:
                raise RecordError(f"expected every input in one shard, got input {row.index} again in {shard}")
            points[row.index] = row
    indices = spec.data.indices(len(source))
    if missing := [index for index in indices if index not in points]:
        raise RecordError(
            f"expected all {len(indices)} inputs, got {len(indices) - len(missing)}; input {missing[0]} is missing: "
            "finish each shard by its own command with --resume"
        )
    if len(points) > len(indices):
        raise RecordError(f"expected only the {len(indices)} inputs of the request, got {len(points)}; certify anew")
    with open_record(spec, source, indices, out, resume=resume) as record:
        left = indices[record.done :]
        with track(f"settling {len(left)} inputs", len(left)) as advance:
            for index in left:
                record.take(points[index])
                advance(1)
    return read_table(out)


def _common_spec(shards: Sequence[Path]) -> CertificationSpec:
    """The request that these are all shards of, each once."""
    if not shards:
        raise InvalidInputError("expected the folders of all shards, got none")
    places: dict[int, Path] = {}
    first = read_spec(shards[0] / CONFIG)
    for place in shards:
        spec = read_spec(place / CONFIG)
        if spec.shard is None or spec.found is None:
            raise RecordError(f"expected shards, got {place}, which was certified without --shard; leave it out")
        check_same(_settings(first), _settings(spec), shards[0], advice="merge shards of one request")
        if spec.shard.number in places:
            both = f"{places[spec.shard.number]} and {place}"
            raise RecordError(f"expected each shard once, got shard {spec.shard} in {both}; leave one out")
        places[spec.shard.number] = place
    count = first.shard.count if first.shard else 1
    if missing := sorted({*range(1, count + 1)} - {*places}):
        raise RecordError(f"expected all {count} shards, got none with number {', '.join(map(str, missing))}; add them")
    return replace(first, shard=None)


def _settings(spec: CertificationSpec) -> dict[str, Any]:
    """All that shards of one request have in common."""
    settings = spec.decisive() | {"shards": spec.shard.count if spec.shard else 1}
    del settings["shard"]
    settings["data"] |= {"max": spec.data.max}  # decides which inputs there are
    return settings
