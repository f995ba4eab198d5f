"""Data sets by name."""

import os
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from sigmax.data.arrays import arrays
from sigmax.data.idx import idx_source
from sigmax.data.source import ArraySource, ImageSource, SubsetSource
from sigmax.errors import DataError, did_you_mean
from sigmax.files import cache_folder

__all__ = [
    "ArraySource",
    "ImageSource",
    "Split",
    "check_spelling",
    "data_folder",
    "has_splits",
    "is_of_files",
    "load_source",
]

Split = Literal["train", "test", "fit", "tune"]
TUNE_EVERY = 10  # every tenth training image is in "tune", for choosing settings; the others are in "fit"
SPELLINGS = "digits, mnist[:DIR], fashion-mnist[:DIR], cifar10[:DIR], imagenet:DIR, folder:DIR, arrays:FILE.npz"
_ALONE = ("digits", "mnist", "fashion-mnist", "cifar10")  # need no path; these sets have splits
_PLACED = ("mnist", "fashion-mnist", "cifar10", "imagenet", "folder", "arrays")  # take a path


def data_folder() -> Path:
    """The folder of named data sets: $SIGMAX_DATA, else the cache folder."""
    folder = os.environ.get("SIGMAX_DATA")
    return Path(folder).expanduser() if folder else cache_folder()


def check_spelling(spec: str) -> None:
    """Refuse a text that names no data set, without reading any data."""
    name, _, place = spec.partition(":")
    if name not in (_PLACED if place else _ALONE):
        known = dict.fromkeys((*_ALONE, *_PLACED))
        hint = "" if name in known else did_you_mean(name, known)
        raise DataError(f"expected one of {SPELLINGS}, got data={spec!r}{hint}")


def has_splits(spec: str) -> bool:
    """Whether the data set has separate training and test images; others are used whole."""
    return spec.partition(":")[0] in _ALONE


def is_of_files(spec: str) -> bool:
    """Whether the data set is a folder of image files, which are preprocessed when read."""
    return spec.partition(":")[0] in ("imagenet", "folder")


def load_source(
    spec: str, *, split: Split = "test", download: bool = False, preprocess: str | None = None
) -> ImageSource:
    """Read a data set.

    Args:
        spec: A name and a path; see `SPELLINGS`.
        split: The part of a data set that has several; see `has_splits`. "fit" and "tune" are parts of "train": a
            network learns from "fit", and settings are chosen on "tune", so that neither uses a test image.
        download: Whether it may be downloaded.
        preprocess: How image files are resized and cropped; by default 256/224 for `imagenet`, none for `folder`.
    """
    check_spelling(spec)
    if split in ("fit", "tune"):
        whole = load_source(spec, split="train", download=download)
        is_tune = np.arange(len(whole)) % TUNE_EVERY == 0
        return SubsetSource(whole, np.flatnonzero(is_tune if split == "tune" else ~is_tune))
    name, _, place = spec.partition(":")
    path = Path(place).expanduser()  # the shell leaves the ~ of `folder:~/images`
    if name == "digits":
        from sigmax.data.digits import digits

        return digits(split)
    if name in ("mnist", "fashion-mnist"):
        return idx_source(name, path if place else data_folder() / name, split)
    if name == "cifar10":
        from sigmax.data.cifar10 import cifar10

        return cifar10(path if place else data_folder(), split, download=download)
    if name in ("imagenet", "folder"):
        from sigmax.data.folder import FolderSource, read_image
        from sigmax.data.preprocessing import Preprocessing

        usual = Preprocessing.parse("imagenet" if name == "imagenet" else "none")
        how = Preprocessing.parse(preprocess) if preprocess else usual
        read = partial(read_image, preprocessing=how, channels=3 if name == "imagenet" else None)
        return FolderSource(spec, path, read, how="" if how == usual else how.text)
    return arrays(path)
