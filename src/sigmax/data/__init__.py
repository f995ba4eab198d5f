"""Data sets by name: where images, labels and class names come from."""

import os
from pathlib import Path
from typing import Literal

import numpy as np

from sigmax.data.source import ArraySource, ImageSource, SubsetSource
from sigmax.errors import DataError, did_you_mean
from sigmax.files import cache_folder

__all__ = ["ArraySource", "ImageSource", "Split", "check_spelling", "data_folder", "has_splits", "load_source"]

Split = Literal["train", "test", "fit", "tune"]
TUNE_EVERY = 10  # every so-many-th training image is for choosing settings ("tune"), the others to learn from ("fit")
SPELLINGS = "digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR, arrays:FILE.npz"
_ALONE = ("digits", "mnist", "fashion-mnist", "cifar10")  # names that need no place; they have two splits
_PLACED = ("mnist", "fashion-mnist", "cifar10", "imagenet", "folder", "arrays")  # names that take one


def data_folder() -> Path:
    """Where named data sets are looked for: $SIGMAX_DATA, else the cache folder."""
    if os.environ.get("SIGMAX_DATA"):
        return Path(os.environ["SIGMAX_DATA"]).expanduser()
    return cache_folder()


def check_spelling(spec: str) -> None:
    """Refuse what names no data set; whether it is here, only reading it can tell."""
    name, _, place = spec.partition(":")
    if name not in (_PLACED if place else _ALONE):
        known = dict.fromkeys((*_ALONE, *_PLACED))
        hint = "" if name in known else did_you_mean(name, known)
        raise DataError(f"expected one of {SPELLINGS}, got data={spec!r}{hint}")


def has_splits(spec: str) -> bool:
    """Whether the data set has a part to train on and one to test with; others are taken whole."""
    return spec.partition(":")[0] in _ALONE


def load_source(spec: str, *, split: Split = "test", download: bool = False) -> ImageSource:
    """The data set that `spec` names; see `SPELLINGS` for what there is.

    `split` says which part of a set that has several; see `has_splits`. "fit" and "tune" are parts of "train":
    settings are chosen on images that no weight has seen, and that no test will see.
    """
    check_spelling(spec)
    if split in ("fit", "tune"):
        whole = load_source(spec, split="train", download=download)
        is_tune = np.arange(len(whole)) % TUNE_EVERY == 0
        return SubsetSource(whole, np.flatnonzero(is_tune if split == "tune" else ~is_tune))
    name, _, place = spec.partition(":")
    path = Path(place).expanduser()  # no shell expands the ~ of `folder:~/images`
    if name == "digits":
        from sigmax.data.digits import digits

        return digits(split)
    if name in ("mnist", "fashion-mnist"):
        from sigmax.data.idx import idx_source

        return idx_source(name, path if place else data_folder() / name, split)
    if name == "cifar10":
        from sigmax.data.cifar10 import cifar10

        return cifar10(path if place else data_folder(), split, download=download)
    if name == "imagenet":
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, path, resize=256, crop=224, channels=3)
    if name == "folder":
        from sigmax.data.folder import FolderSource

        return FolderSource(spec, path)
    from sigmax.data.arrays import arrays

    return arrays(path)
