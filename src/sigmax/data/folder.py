"""Folders of images, one folder a class: ImageNet and anything laid out like it."""

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image, UnidentifiedImageError

from sigmax.data.source import Images, ImageSource
from sigmax.errors import DataError

_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}


@final
class FolderSource(ImageSource):
    """Images decoded on demand from ROOT/<class>/<image>.

    Class folders that are all named by numbers give those numbers as labels; other names are numbered
    in alphabetical order. With `resize` the shorter side is scaled to it; with `crop` the centre is cut
    out. Without either, all images must have the size of the first.
    """

    levels = 255

    def __init__(self, name: str, root: Path, *, resize: int | None = None, crop: int | None = None) -> None:
        if not root.is_dir():
            raise DataError(f"{name}: expected a folder of class folders, got {root}; check the path")
        folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
        files = {f: sorted(p for p in f.iterdir() if p.suffix.lower() in _SUFFIXES) for f in folders}
        self.name = name
        self.paths = [path for folder in folders for path in files[folder]]
        if not self.paths:
            raise DataError(f"{name}: expected images in {root}/<class>/, got none")
        if all(folder.name.isdigit() for folder in folders):
            numbers = {folder: int(folder.name) for folder in folders}
            self.class_names = tuple(str(i) for i in range(max(numbers.values()) + 1))
        else:
            numbers = {folder: i for i, folder in enumerate(folders)}
            self.class_names = tuple(folder.name for folder in folders)
        self.labels = np.array([numbers[path.parent] for path in self.paths], dtype=np.int64)
        self._resize = resize
        self._crop = crop
        self._shape = read_image(self.paths[0], resize=resize, crop=crop).shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image."""
        return self._shape

    def images(self, indices: Sequence[int]) -> Images:
        """The images at these places."""
        return np.stack([self._image(self.paths[i]) for i in indices])

    def _image(self, path: Path) -> Images:
        image = read_image(path, resize=self._resize, crop=self._crop)
        if image.shape != self._shape:
            raise DataError(
                f"{path}: expected an image of shape {self._shape} like {self.paths[0].name}, "
                f"got {image.shape}; use imagenet:DIR to resize and crop"
            )
        return image


def read_image(
    path: Path, *, resize: int | None = None, crop: int | None = None, channels: int | None = None
) -> Images:
    """One image as float32 (channels, height, width) in [0, 1]; RGB unless `channels` is 1."""
    try:
        with Image.open(path) as file:
            mode = "L" if channels == 1 or (channels is None and file.mode in ("1", "L")) else "RGB"
            if resize is not None or crop is not None:
                mode = "L" if channels == 1 else "RGB"
            image = file.convert(mode)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: expected an image, got: {error}") from error
    if resize is not None:
        scale = resize / min(image.size)
        size = (max(resize, round(image.width * scale)), max(resize, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BILINEAR)
    if crop is not None:
        if min(image.size) < crop:
            raise DataError(f"{path}: expected at least {crop} x {crop} pixels, got {image.width} x {image.height}")
        left, upper = (image.width - crop) // 2, (image.height - crop) // 2
        image = image.crop((left, upper, left + crop, upper + crop))
    pixels = np.asarray(image, dtype=np.float32) / np.float32(255)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
