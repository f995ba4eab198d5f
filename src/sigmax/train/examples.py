"""Training examples in a deterministic order: (seed, epoch) decides order, crops and flips of an epoch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from sigmax.data import ImageSource
from sigmax.data.source import Images
from sigmax.errors import InvalidInputError

Augment = Literal["none", "crop", "crop-flip", "crop-flip-cutout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """The examples of a step: the indices of all of them, and the images of this process's share."""

    indices: Tensor  # (batch,): of the whole batch
    share: slice  # the part of the batch that this process trains on
    x: Tensor  # share *dims
    labels: Tensor  # (share,)


@final
class ExampleStream:
    """Batches by step number. Each epoch has a new order; examples that do not fill a batch are left out.

    A batch is shared by all processes, and at most the whole data set. `augment` is "none"; "crop": shifted by up to an
    eighth of the size; "crop-flip": also mirrored; "crop-flip-cutout": also with a gray square in a random place.
    """

    def __init__(
        self, source: ImageSource, *, batch: int, augment: Augment, seed: int, rank: int = 0, processes: int = 1
    ) -> None:
        self.source = source
        self.batch = min(batch, len(source) // processes * processes)
        if self.batch < 1:
            raise InvalidInputError(f"expected an image for each of {processes} processes, got {len(source)} images")
        if self.batch % processes:
            raise InvalidInputError(
                f"expected a batch that {processes} processes can share, got batch={self.batch}; "
                f"use a multiple of {processes}"
            )
        self.steps_per_epoch = len(source) // self.batch
        self.augment = augment
        self.seed = seed
        size = self.batch // processes
        self.share = slice(rank * size, (rank + 1) * size)
        self._plan = lru_cache(maxsize=1)(self._make_plan)
        # One thread reads ahead, while the network works on the examples of the step before.
        reader = ThreadPoolExecutor(max_workers=1)
        self.prepare = lru_cache(maxsize=1)(lambda step: reader.submit(self._read, step))

    def at(self, step: int) -> Examples:
        """The examples of a step."""
        return self.prepare(step).result()

    def _read(self, step: int) -> Examples:
        epoch, place = divmod(step, self.steps_per_epoch)
        order, shifts, flips, corners = (
            part[place * self.batch : (place + 1) * self.batch] for part in self._plan(epoch)
        )
        own = order[self.share]
        images = self.source.images(own.tolist())
        if self.augment != "none":
            images = crop_and_flip(images, shifts[self.share], flips[self.share])
        if self.augment == "crop-flip-cutout":
            images = cut_out(images, corners[self.share])
        return Examples(
            indices=torch.from_numpy(order),
            share=self.share,
            x=torch.from_numpy(images),
            labels=torch.from_numpy(self.source.labels[own]),
        )

    def _make_plan(self, epoch: int) -> tuple[NDArray[Any], ...]:
        """Of each example: its place in the order, shift, flip, and where it is cut out."""
        random = np.random.default_rng([self.seed, epoch])
        count = len(self.source)
        return (
            random.permutation(count),
            random.integers(0, 2 * _margin(self.source.shape), (count, 2), endpoint=True),
            random.random(count) < (0.5 if self.augment.startswith("crop-flip") else 0.0),
            random.random((count, 2)),
        )


def crop_and_flip(images: Images, shifts: NDArray[np.int64], flips: NDArray[np.bool_]) -> Images:
    """Shift each image inside a black margin, by (down, right) from the upper left corner, and mirror some."""
    margin = _margin(images.shape[1:])
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, images.shape[2:], axis=(2, 3))  # batch channels shifts shifts h w
    cropped = windows[np.arange(len(images)), :, shifts[:, 0], shifts[:, 1]]  # batch channels h w
    cropped[flips] = cropped[flips, ..., ::-1]
    return cropped


def cut_out(images: Images, corners: NDArray[np.float64]) -> Images:
    """Replace a square of each image by the image's mean colour; a corner in [0, 1)^2 gives its place.

    Its side is 5/16 of the height. Up to half of it may lie outside the image.
    """
    height, width = images.shape[2:]
    size = height * 5 // 16
    first = np.floor(corners * [height, width]).astype(np.int64) - size // 2  # batch 2
    rows, columns = np.arange(height), np.arange(width)
    in_rows = (rows >= first[:, :1]) & (rows < first[:, :1] + size)  # batch height
    in_columns = (columns >= first[:, 1:]) & (columns < first[:, 1:] + size)  # batch width
    is_cut = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # batch 1 height width
    return np.where(is_cut, images.mean(axis=(2, 3), keepdims=True), images)


def _margin(shape: tuple[int, ...]) -> int:
    """An eighth of the size: on CIFAR-10 the usual 4 pixels."""
    return shape[-1] // 8
