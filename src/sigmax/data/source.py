"""Data sources: images in [0, 1] (or in the user's own input space), labels and class names."""

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
_FEW = 64  # images read at a time to check them; they may be large


class ImageSource(ABC):
    """Labelled images of one shape, read on demand."""

    name: str  # as the user named it
    class_names: tuple[str, ...]
    labels: Labels
    shape: tuple[int, ...]  # of one image
    levels: int | None  # pixels are multiples of 1 / levels; None: any number
    needs_all_classes = False  # labels are positions in the list of names, and wrong if a class is missing

    @abstractmethod
    def images(self, indices: Sequence[int]) -> Images:
        """The images at these indices, (len(indices), channels, height, width)."""

    def __len__(self) -> int:
        return len(self.labels)

    def _contents(self) -> Iterator[bytes]:
        """What the digest covers beside shape and labels: by default all pixels, however they are stored."""
        for start in range(0, len(self), _BLOCK):
            yield self.images(range(start, min(len(self), start + _BLOCK))).tobytes()

    def digest(self) -> str:
        """A digest of shape, labels and images, computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = sha256(f"{self.shape} {len(self)}".encode() + self.labels.tobytes())
        for part in self._contents():
            digest.update(part)
        return digest.hexdigest()[:16]

    def check_images(self, indices: Sequence[int], *, pixel_range: tuple[float, float] | None = None) -> None:
        """Read these images: refuse any that cannot be read, or whose pixels are outside the range of the model."""
        low, high = pixel_range or (-np.inf, np.inf)
        edge = 1e-6 * (high - low)  # rounding is no mistake
        for start in range(0, len(indices), _FEW):
            block = indices[start : start + _FEW]
            images = self.images(block).reshape(len(block), -1)
            is_outside = (images < low - edge) | (images > high + edge)
            if is_outside.any():
                i = int(is_outside.any(axis=1).argmax())
                value = float(images[i][is_outside[i]][0])
                raise DataError(
                    f"{self.name}: expected pixels in [{low:g}, {high:g}], as the model takes them, got {value:g} in "
                    f"input {block[i]}; scale the images"
                )


@final
class ArraySource(ImageSource):
    """A data set in memory. 8-bit pixels are divided by `levels` when read."""

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
        self.shape = pixels.shape[1:]
        self.levels = levels
        self._pixels = pixels
        outside = (self.labels < 0) | (self.labels >= len(class_names))
        if outside.any():
            got = f"label[{outside.argmax()}]={self.labels[outside.argmax()]}"
            raise DataError(f"{name}: expected labels in 0…{len(class_names) - 1}, got {got}")

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these indices."""
        pixels = self._pixels[np.asarray(indices, dtype=np.int64)].astype(np.float32)
        return pixels if self.levels is None else pixels / np.float32(self.levels)


@final
class SubsetSource(ImageSource):
    """Some images of another source, in the order of their indices there."""

    def __init__(self, source: ImageSource, indices: NDArray[np.int64]) -> None:
        self.name = source.name
        self.class_names = source.class_names
        self.labels = source.labels[indices]
        self.shape = source.shape
        self.levels = source.levels
        self._source = source
        self._indices = indices

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these indices of the subset."""
        return self._source.images(self._indices[np.asarray(indices, dtype=np.int64)].tolist())
