"""Data sets by name: where images, labels and class names come from."""

import os
from pathlib import Path
from typing import Literal

from sigmax.data.source import ArraySource, ImageSource
from sigmax.errors import DataError

__all__ = ["ArraySource", "ImageSource", "Split", "data_folder", "load_source"]

Split = Literal["train", "test"]
SPELLINGS = "digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR, arrays:FILE.npz"


def data_folder() -> Path:
    """Where named data sets are looked for: $SIGMAX_DATA, else the user's cache folder."""
    if "SIGMAX_DATA" in os.environ:
        return Path(os.environ["SIGMAX_DATA"])
    import pooch

    return Path(pooch.os_cache("sigmax"))


def load_source(spec: str, *, split: Split = "test", download: bool = False) -> ImageSource:
    """The data set that `spec` names; see `SPELLINGS` for what there is."""
    name, _, place = spec.partition(":")
    if name == "digits" and not place:
        from sigmax.data.digits import digits

        return digits(split)
    if name in ("mnist", "fashion-mnist"):
        from sigmax.data.idx import idx_source

        return idx_source(name, Path(place) if place else data_folder() / name, split)
    if name == "cifar10":
        from sigmax.data.cifar10 import cifar10

        return cifar10(Path(place) if place else data_folder(), split, download=download)
    if name == "imagenet" and place:
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, Path(place), resize=256, crop=224)
    if name == "folder" and place:
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, Path(place))
    if name == "arrays" and place:
        from sigmax.data.arrays import arrays

        return arrays(Path(place))
    raise DataError(f"expected one of {SPELLINGS}, got data={spec!r}")
