"""MNIST and Fashion-MNIST in the idx format, plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmax.data.source import ArraySource
from sigmax.errors import DataError

_MAGIC_LABELS, _MAGIC_IMAGES = 0x0801, 0x0803
_CLASSES = {
    "mnist": tuple(str(d) for d in range(10)),
    "fashion-mnist": (
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
}


def idx_source(name: str, folder: Path, split: str) -> ArraySource:
    """Read `train-…` or `t10k-…` images and labels from a folder."""
    prefix = "t10k" if split == "test" else "train"
    images = _read(_find(folder, f"{prefix}-images-idx3-ubyte", name), _MAGIC_IMAGES)
    labels = _read(_find(folder, f"{prefix}-labels-idx1-ubyte", name), _MAGIC_LABELS)
    return ArraySource(name, images[:, None], labels, _CLASSES[name], levels=255)


def _find(folder: Path, stem: str, name: str) -> Path:
    for spelling in (stem, stem.replace("-idx", ".idx")):
        for path in (folder / spelling, folder / f"{spelling}.gz"):
            if path.is_file():
                return path
    raise DataError(f"{name}: expected {stem} or {stem}.gz in {folder}, got neither; put it there or use {name}:DIR")


def _read(path: Path, magic: int) -> NDArray[np.uint8]:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from error
    start = 4 + 4 * (magic & 0xFF)  # the last byte of the magic number is the number of dimensions
    if raw[:4] != magic.to_bytes(4, "big"):
        raise DataError(f"{path}: expected an idx file that starts with {magic:08x}, got {raw[:4].hex() or 'nothing'}")
    if len(raw) < start:
        raise DataError(f"{path}: expected a header of {start} bytes, got {len(raw)}; download it again")
    shape = np.frombuffer(raw[4:start], dtype=">u4").tolist()
    body = np.frombuffer(raw, dtype=np.uint8, offset=start)
    if body.size != math.prod(shape):
        raise DataError(f"{path}: expected {math.prod(shape)} bytes of data, got {body.size}; download it again")
    return body.reshape(shape)
