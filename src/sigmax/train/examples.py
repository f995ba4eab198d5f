"""Training examples in a deterministic order: (seed, epoch) decides order, crops and flips of an epoch."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, final

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

    Args:
        source: The data set.
        batch: Examples of a step, over all processes; at most all that there are.
        augment: "none"; "crop": shifted by up to an eighth of the size; "crop-flip": also mirrored;
            "crop-flip-cutout": also with a gray square in a random place.
        seed: Seeds order, shifts and flips.
        rank: The number of this process.
        processes: How many processes share each batch.
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
        self._plan: tuple[int, _Plan] | None = None
        # One thread reads ahead.
        self._reader = ThreadPoolExecutor(max_workers=1)
        self._ahead: tuple[int, Future[Examples]] | None = None

    def at(self, step: int) -> Examples:
        """The examples of a step."""
        return self.prepare(step).result()

    def prepare(self, step: int) -> "Future[Examples]":
        """Begin to read the examples of a step, while the network works on those of the step before."""
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = (step, self._reader.submit(self._read, step))
        return self._ahead[1]

    def _read(self, step: int) -> Examples:
        epoch, place = divmod(step, self.steps_per_epoch)
        plan = self._epoch(epoch)
        places = slice(place * self.batch, (place + 1) * self.batch)
        indices = plan.order[places]
        own = indices[self.share]
        images = self.source.images(own.tolist())
        if self.augment != "none":
            images = crop_and_flip(images, plan.shifts[places][self.share], plan.flips[places][self.share])
        if self.augment == "crop-flip-cutout":
            images = cut_out(images, plan.corners[places][self.share])
        labels = self.source.labels[own]
        return Examples(
            indices=torch.from_numpy(indices),
            share=self.share,
            x=torch.from_numpy(images),
            labels=torch.from_numpy(labels),
        )

    def _epoch(self, epoch: int) -> "_Plan":
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, self._make_plan(epoch))
        return self._plan[1]

    def _make_plan(self, epoch: int) -> "_Plan":
        random = np.random.default_rng([self.seed, epoch])
        count = len(self.source)
        return _Plan(
            order=random.permutation(count),
            shifts=random.integers(0, 2 * _margin(self.source.shape), (count, 2), endpoint=True),
            flips=random.random(count) < (0.5 if self.augment.startswith("crop-flip") else 0.0),
            corners=random.random((count, 2)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    order: NDArray[np.int64]
    shifts: NDArray[np.int64]  # examples 2
    flips: NDArray[np.bool_]
    corners: NDArray[np.float64]  # examples 2, in [0, 1)


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
