"""Arrays of the user's own: FILE.npz with `images` (or `x`) and `labels` (or `y`)."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from sigmax.data.source import ArraySource
from sigmax.errors import DataError

_MOST_CLASSES = 2**20  # larger numbers are hardly class labels


def arrays(path: Path) -> ArraySource:
    """Read a file. 8-bit images are divided by 255; floating-point ones stay as they are.

    An optional array `class_names` names the classes; by default the names are 0, 1, … up to the largest label.
    """
    try:
        with path.open("rb") as raw, np.lib.npyio.NpzFile(raw, allow_pickle=False) as file:
            content = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: expected a .npz file of plain arrays, got {type(error).__name__}: {error}") from error
    images = content.get("images", content.get("x"))
    labels = content.get("labels", content.get("y"))
    if images is None or labels is None:
        raise DataError(f"{path}: expected arrays 'images' and 'labels' (or 'x' and 'y'), got {sorted(content)}")
    if images.ndim < 2 or not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise DataError(
            f"{path}: expected images (n, …) and integer labels (n,), "
            f"got {images.shape} and {labels.dtype} {labels.shape}"
        )
    if int(labels.max(initial=0)) >= _MOST_CLASSES:
        raise DataError(f"{path}: expected labels below {_MOST_CLASSES:,}, got {labels.max()}")
    names = content.get("class_names", np.arange(int(labels.max(initial=0)) + 1))
    if names.ndim != 1:
        raise DataError(f"{path}: expected class_names (classes,), got {names.shape}")
    if images.dtype == np.uint8:
        return ArraySource(str(path), images, labels, [str(n) for n in names], levels=255)
    if not np.issubdtype(images.dtype, np.floating):
        raise DataError(f"{path}: expected uint8 or floating-point images, got {images.dtype}")
    with np.errstate(over="ignore"):  # too large for 32 bits becomes infinite, and is refused below
        images = images.astype(np.float32)
    is_finite = np.isfinite(images).reshape(len(images), -1).all(axis=1)
    if not is_finite.all():
        raise DataError(f"{path}: expected finite images, got NaN or infinity in input {int((~is_finite).argmax())}")
    return ArraySource(str(path), images, labels, [str(n) for n in names], levels=None)
