"""CIFAR-10 in its two official layouts, binary and python."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pooch
from numpy.typing import NDArray

from sigmax.data.source import ArraySource
from sigmax.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"
_BINARY, _PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def cifar10(root: Path, split: str, *, download: bool) -> ArraySource:
    """Read either layout from `root` or from the official folder inside it; fetch it when allowed."""
    folder = _find(root)
    if folder is None and download:
        _fetch(root)
        folder = _find(root)
    if folder is None:
        raise DataError(
            f"cifar10: expected {_BINARY} or {_PYTHON} in {root}, got neither; "
            "unpack the official archive there, use cifar10:DIR, or allow --download"
        )
    binary = (folder / "test_batch.bin").is_file()
    parts = [
        _read_binary(folder / f"{batch}.bin") if binary else _read_python(folder / batch) for batch in _BATCHES[split]
    ]
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    return ArraySource("cifar10", pixels, labels, CLASSES, levels=255)


def _find(root: Path) -> Path | None:
    for folder in (root, root / _BINARY, root / _PYTHON):
        if (folder / "test_batch.bin").is_file() or (folder / "test_batch").is_file():
            return folder
    return None


def _fetch(root: Path) -> None:
    try:
        archive = pooch.retrieve(ARCHIVE_URL, known_hash=ARCHIVE_HASH, path=root, progressbar=False)
    except (OSError, ValueError) as error:
        raise DataError(f"cifar10: expected to download {ARCHIVE_URL}, got: {error}; use cifar10:DIR") from error
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rows = _bytes(path)
    if rows.size == 0 or rows.size % 3073:
        raise DataError(f"{path}: expected whole rows of 3073 bytes, got {rows.size} bytes; it is cut off")
    rows = rows.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _bytes(path: Path) -> NDArray[np.uint8]:
    try:
        return np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got: {error}") from error


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays and plain containers: the python layout needs no more, and code needs more."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read_python(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        batch = _ArrayUnpickler(io.BytesIO(_bytes(path).tobytes()), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[b"labels"], dtype=np.uint8)
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: expected an official CIFAR-10 batch, got: {error!r}") from error
    return pixels, labels
