"""CIFAR-10 in its two official layouts, binary and Python."""

import io
import pickle
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pooch
from numpy.typing import NDArray

from sigmax.data.source import ArraySource
from sigmax.errors import DataError
from sigmax.files import write_atomically

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
ARCHIVE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_HASH = "md5:c32a1d4ab5d03f1284b67883e8d87530"
_BINARY, _PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def cifar10(root: Path, split: str, *, download: bool) -> ArraySource:
    """Read either layout from `root` or from the official folder inside it; download it if allowed."""
    if _find(root) is None and download:
        _fetch(root)
    folder = _find(root)
    if folder is None:
        raise DataError(
            f"cifar10: expected {_BINARY} or {_PYTHON} in {root}, got neither; "
            "unpack the official archive there, use cifar10:DIR, "
            "or let sigmax certify, train or reproduce fetch it with --download"
        )
    read, suffix = (_read_binary, ".bin") if (folder / "test_batch.bin").is_file() else (_read_python, "")
    try:
        parts = [read(folder / (name + suffix)) for name in _BATCHES[split]]
    except OSError as error:
        raise DataError(f"{error.filename}: expected a readable file, got: {error}") from error
    pixels, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ArraySource("cifar10", pixels, labels, CLASSES, levels=255)


def _find(root: Path) -> Path | None:
    for folder in (root, root / _BINARY, root / _PYTHON):
        if (folder / "test_batch.bin").is_file() or (folder / "test_batch").is_file():
            return folder
    return None


def _fetch(root: Path) -> None:
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    try:
        archive = pooch.retrieve(ARCHIVE_URL, known_hash=ARCHIVE_HASH, path=root, progressbar=is_watched)
    except (OSError, ValueError) as error:
        raise DataError(f"cifar10: expected to download {ARCHIVE_URL}, got: {error}; use cifar10:DIR") from error
    try:
        with tarfile.open(archive) as tar:
            # The test batch comes last, because a folder with it counts as complete.
            for file in [f"{_BINARY}/{batch}.bin" for batch in (*_BATCHES["train"], *_BATCHES["test"])]:
                content = tar.extractfile(file)
                if content is not None:
                    write_atomically(root / file, content.read())
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{archive}: expected the official archive, got: {error}; delete it and try again") from error


def _read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rows = np.fromfile(path, dtype=np.uint8)
    if rows.size == 0 or rows.size % 3073:
        raise DataError(f"{path}: expected rows of 3073 bytes, got {rows.size} bytes; the file is cut off")
    rows = rows.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles only NumPy arrays and plain containers, so that a file cannot run code."""

    _ALLOWED = frozenset({"numpy.ndarray", "numpy.dtype", "numpy._core.multiarray._reconstruct", "_codecs.encode"})

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # its name in old files
        if f"{module}.{name}" not in self._ALLOWED:
            raise pickle.UnpicklingError(f"refused to load {module}.{name}")
        return super().find_class(module, name)


def _read_python(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    raw = path.read_bytes()
    try:
        batch = _ArrayUnpickler(io.BytesIO(raw), encoding="bytes").load()
        pixels = np.asarray(batch[b"data"]).astype(np.uint8, casting="safe").reshape(-1, 3, 32, 32)
        labels = np.asarray(batch[b"labels"], dtype=np.int64)
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(f"{path}: expected an official CIFAR-10 batch, got {type(error).__name__}: {error}") from error
    return pixels, labels
