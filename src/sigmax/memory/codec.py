"""How entries become rows of numbers, text and bytes, and back again without losing a bit.

An entry is two rows with the same id. The ball row holds what the search needs, the input row the input and the rest
of the answer. So a long ledger opens without reading the inputs. Each row ends with bytes and the checksum of all
before it.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sigmax.certificate import PointCertificate, Rule, SettledCertificate
from sigmax.errors import MemoryRefusedError
from sigmax.memory.balls import Vector
from sigmax.memory.index import SketchedBalls
from sigmax.memory.ledger import Entry, Pixels

BALL = ("id", "label", "radius", "alpha", "margin", "sketch", "checksum")
INPUT = ("id", "rule", "point", "proof", "origin", "encoding", "x", "checksum")
Row = tuple[Any, ...]


def encode_balls(first: int, balls: SketchedBalls) -> list[Row]:
    """The ball rows of entries with the ids first, first + 1, …."""
    columns = [column.tolist() for column in (balls.labels, balls.radii, balls.alphas, balls.margins)]
    sketches = [sketch.tobytes() for sketch in balls.sketches.astype("<f4")]
    ids = range(first, first + len(balls))
    return [(*row, _checksum(row)) for row in zip(ids, *columns, sketches, strict=True)]


def decode_balls(rows: Sequence[Row], *, after: int, place: str) -> SketchedBalls:
    """What the search needs of the entries after this id, from at least one ball row."""
    for entry_id, row in enumerate(rows, start=after + 1):
        _check("ball", entry_id, row, place)
    _, labels, *numbers, content, _ = zip(*rows, strict=True)
    radii, alphas, margins = np.array(numbers, dtype=np.float64)
    sketches = np.frombuffer(b"".join(content), dtype="<f4").reshape(len(rows), -1).astype(np.float32)
    return SketchedBalls(
        labels=np.array(labels, dtype=np.int64), radii=radii, alphas=alphas, margins=margins, sketches=sketches
    )


def encode_input(entry_id: int, x: Pixels, answer: SettledCertificate) -> Row:
    """The input row of an entry; of two equal certificates, only the point is written."""
    point = answer.point and json.dumps(asdict(answer.point))
    proof = None if answer.origin is None else json.dumps(asdict(answer.proof))
    row = (entry_id, answer.rule, point, proof, answer.origin, *_compressed(x))
    return (*row, _checksum(row))


def decode_input(row: Row, *, entry_id: int, place: str) -> Vector:
    """The flattened input of the entry with this id, from its input row."""
    _check("input", entry_id, row, place)
    *_, encoding, content, _ = row
    if encoding == "u1/255":
        return (np.frombuffer(content, np.uint8).astype(np.float32) / np.float32(255)).astype(np.float64)
    return np.frombuffer(content, np.dtype(encoding)).astype(np.float64)


def decode_entry(ball: Row, rest: Row, *, entry_id: int, place: str) -> Entry:
    """The entry with this id, from its ball row and its input row."""
    _check("ball", entry_id, ball, place)
    x = decode_input(rest, entry_id=entry_id, place=place)
    _, label, radius, *_ = ball
    rule: Rule
    _, rule, point, proof, origin, *_ = rest
    point, proof = (text and PointCertificate(**json.loads(text)) for text in (point, proof))
    answer = SettledCertificate(label=label, radius=radius, proof=proof or point, point=point, rule=rule, origin=origin)
    return Entry(id=entry_id, x=x, answer=answer)


def _compressed(x: Pixels) -> tuple[str, bytes]:
    """The encoding and the bytes of x: one byte per pixel for 8-bit images, all bytes of x otherwise."""
    if x.dtype == np.float32:
        pixels = np.rint(x.clip(0, 1) * 255).astype(np.uint8)
        if np.array_equal(pixels.astype(np.float32) / np.float32(255), x):
            return "u1/255", pixels.tobytes()
    little_endian = x.dtype.newbyteorder("<")
    return little_endian.str, x.astype(little_endian).tobytes()


def _checksum(row: Row) -> int:
    """The checksum of a row that ends with bytes; different floats have different representations."""
    return zlib.crc32(row[-1], zlib.crc32(repr(row[:-1]).encode()))


def _check(kind: str, entry_id: int, row: Row, place: str) -> None:
    """Refuse a row that is missing or damaged."""
    if row[0] != entry_id or row[-1] != _checksum(row[:-1]):
        what = f"id={row[0]}" if row[0] != entry_id else f"checksum={row[-1]}, which does not match"
        raise MemoryRefusedError(
            f"{place}: expected {kind} {entry_id} as it was written, got {what}; restore the memory from a copy"
        )
