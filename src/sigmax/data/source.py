"""What a data set gives: images in [0, 1] (or the user's own space), labels and their names."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from typing import final

import numpy as np
from numpy.typing import NDArray

from sigmax.errors import DataError

Images = NDArray[np.float32]
Labels = NDArray[np.int64]
_BLOCK = 1_000  # images read at a time for the digest
_FEW = 64  # images read at a time to check them, which may be large


class ImageSource(ABC):
    """Labelled images of one shape, read on demand."""

    name: str  # how the user asked for it
    class_names: tuple[str, ...]
    labels: Labels
    levels: int | None  # pixels are multiples of 1 / levels; None: they are any number
    needs_all_classes = False  # labels are places in the list of names, and right only if no class is missing

    @abstractmethod
    def images(self, indices: Sequence[int]) -> Images:
        """The images at these places, (len(indices), channels, height, width)."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""

    def __len__(self) -> int:
        return len(self.labels)

    def _contents(self) -> Iterator[bytes]:
        """What tells its images from others of the same shape and labels: all of them, however they are stored."""
        for start in range(0, len(self), _BLOCK):
            yield self.images(range(start, min(len(self), start + _BLOCK))).tobytes()

    def digest(self) -> str:
        """What tells a data set from another: shape, labels and images."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = sha256(f"{self.shape} {len(self)}".encode() + self.labels.tobytes())
        for part in self._contents():
            digest.update(part)
        return digest.hexdigest()[:16]

    def check_images(self, indices: Sequence[int]) -> None:
        """Refuse images that cannot be read, by reading all, a few at a time."""
        for start in range(0, len(indices), _FEW):
            self.images(indices[start : start + _FEW])

    def check_labels(self) -> None:
        """Refuse labels that no class name belongs to."""
        outside = (self.labels < 0) | (self.labels >= len(self.class_names))
        if outside.any():
            first = int(outside.argmax())
            raise DataError(
                f"{self.name}: expected labels in 0…{len(self.class_names) - 1}, "
                f"got label[{first}]={self.labels[first]}"
            )


@final
class ArraySource(ImageSource):
    """A data set that is held in memory: 8-bit pixels are divided by `levels` when read."""

    def __init__(
        self,
        name: str,
        pixels: NDArray[np.uint8] | NDArray[np.float32],
        labels: NDArray[np.integer],
        class_names: Sequence[str],
        *,
        levels: int | None,
    ) -> None:
        if len(pixels) != len(labels):
            raise DataError(f"{name}: expected one label per image, got {len(pixels)} images, {len(labels)} labels")
        if len(pixels) == 0:
            raise DataError(f"{name}: expected at least one image, got none")
        self.name = name
        self.class_names = tuple(class_names)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.levels = levels
        self._pixels = pixels
        self.check_labels()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return self._pixels.shape[1:]

    def check_images(self, indices: Sequence[int]) -> None:
        """What is in memory can be read."""

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these places."""
        pixels = self._pixels[np.asarray(indices, dtype=np.int64)].astype(np.float32)
        return pixels if self.levels is None else pixels / np.float32(self.levels)


@final
class SubsetSource(ImageSource):
    """Some images of another source, in the order of their places there."""

    def __init__(self, source: ImageSource, places: NDArray[np.int64]) -> None:
        self.name = source.name
        self.class_names = source.class_names
        self.labels = source.labels[places]
        self.levels = source.levels
        self._source = source
        self._places = places

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return self._source.shape

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these places of the subset."""
        return self._source.images(self._places[np.asarray(indices, dtype=np.int64)].tolist())
