"""Folders of images, one folder per class: ImageNet and anything laid out like it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest
from pathlib import Path
from typing import BinaryIO, final

import numpy as np
from PIL import Image

from sigmax.data.preprocessing import NONE, Preprocessing
from sigmax.data.source import Images, ImageSource
from sigmax.errors import DataError

_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}


@final
class FolderSource(ImageSource):
    """Images decoded on demand from ROOT/<class>/<image>.

    If all class folders are named by numbers, these are the labels. Other names are numbered in alphabetical order.
    `read` decodes an image; all must come out in the shape of the first. `how` names its preprocessing where that is
    not the usual one.
    """

    levels = 255

    def __init__(self, name: str, root: Path, read: Callable[[Path], Images], *, how: str = "") -> None:
        if not root.is_dir():
            raise DataError(f"{name}: expected a folder of class folders, got {root}; check the path")
        folders = [path for path in _visible(root) if path.is_dir()]
        self.name = name
        self._root = root
        self.paths = [path for folder in folders for path in _visible(folder) if path.suffix.lower() in _SUFFIXES]
        if not self.paths:
            raise DataError(f"{name}: expected images in {root}/<class>/, got none")
        if all(folder.name.isdecimal() for folder in folders):
            numbers = {folder: int(folder.name) for folder in folders}
            self.class_names = tuple(str(i) for i in range(max(numbers.values()) + 1))
        else:
            self.needs_all_classes = True
            numbers = {folder: i for i, folder in enumerate(folders)}
            self.class_names = tuple(folder.name for folder in folders)
        self.labels = np.array([numbers[path.parent] for path in self.paths], dtype=np.int64)
        self._read, self._how = read, how
        self.shape = read(self.paths[0]).shape

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these indices."""
        images = np.empty((len(indices), *self.shape), dtype=np.float32)
        # Threads help: decoding is most of the work, and it releases the lock of the interpreter.
        with ThreadPoolExecutor() as pool:
            for row, image in enumerate(pool.map(self._image, [self.paths[i] for i in indices])):
                images[row] = image
        return images

    def _contents(self) -> Iterator[bytes]:
        """Names and bytes of all files, and their preprocessing. The pixels of two images show the decoder."""
        with ThreadPoolExecutor() as pool:
            for path, content in zip(self.paths, pool.map(_file_digest, self.paths), strict=True):
                yield f"{path.relative_to(self._root).as_posix()}\0".encode() + content
        yield self.images([0, len(self) - 1]).tobytes() + self._how.encode()

    def _image(self, path: Path) -> Images:
        image = self._read(path)
        if image.shape != self.shape:
            raise DataError(
                f"{path}: expected an image of shape {self.shape} like {self.paths[0].name}, "
                f"got {image.shape}; resize and crop, such as --preprocess 256/224"
            )
        return image


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").digest()
    except OSError as error:
        raise DataError(f"{path}: expected a readable image, got: {error}") from error


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def read_image(path: Path | BinaryIO, preprocessing: Preprocessing = NONE, *, channels: int | None = None) -> Images:
    """One image as float32 (channels, height, width) in [0, 1].

    Args:
        path: An image of 8 bits per channel, or the open file of one.
        preprocessing: How it is resized and cropped.
        channels: 1 for gray, 3 for RGB; by default as in the file.
    """
    name = path if isinstance(path, Path) else "image"
    try:
        with Image.open(path) as file:
            mode = file.mode
            is_gray = channels == 1 or (channels is None and mode in ("1", "L", "LA"))
            image = file.convert("L" if is_gray else "RGB")
    except Exception as error:  # a broken image can raise anything
        raise DataError(f"{name}: expected an image, got: {error}") from error
    if mode.startswith(("I", "F")):  # more bits would be clipped to white
        raise DataError(f"{name}: expected 8 bits per channel, got mode {mode}; convert it")
    try:
        image = preprocessing.apply(image)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
