"""Data sets by name: where images, labels and class names come from."""

import os
from pathlib import Path
from typing import Literal

from sigmax.data.source import ArraySource, ImageSource
from sigmax.errors import DataError
from sigmax.files import cache_folder

__all__ = ["ArraySource", "ImageSource", "Split", "data_folder", "load_source"]

Split = Literal["train", "test"]
SPELLINGS = "digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR, arrays:FILE.npz"


def data_folder() -> Path:
    """Where named data sets are looked for: $SIGMAX_DATA, else the cache folder."""
    if os.environ.get("SIGMAX_DATA"):
        return Path(os.environ["SIGMAX_DATA"]).expanduser()
    return cache_folder()


def load_source(spec: str, *, split: Split = "test", download: bool = False) -> ImageSource:
    """The data set that `spec` names; see `SPELLINGS` for what there is.

    The named sets have two splits; a folder or file of the user's own is taken whole.
    """
    name, _, place = spec.partition(":")
    path = Path(place).expanduser()  # no shell expands the ~ of `folder:~/images`
    if name == "digits" and not place:
        from sigmax.data.digits import digits

        return digits(split)
    if name in ("mnist", "fashion-mnist"):
        from sigmax.data.idx import idx_source

        return idx_source(name, path if place else data_folder() / name, split)
    if name == "cifar10":
        from sigmax.data.cifar10 import cifar10

        return cifar10(path if place else data_folder(), split, download=download)
    if name == "imagenet" and place:
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, path, resize=256, crop=224, channels=3)
    if name == "folder" and place:
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, path)
    if name == "arrays" and place:
        from sigmax.data.arrays import arrays

        return arrays(path)
    raise DataError(f"expected one of {SPELLINGS}, got data={spec!r}")
