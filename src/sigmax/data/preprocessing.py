"""How an image file becomes an input: one way for data sets, `predict` and services."""

import re
from dataclasses import dataclass
from typing import Literal, Self, final

from PIL import Image

from sigmax.errors import DataError, InvalidInputError

Resampling = Literal["bilinear", "bicubic"]
SPELLINGS = "none, imagenet, RESIZE/CROP such as 256/224, WIDTHxHEIGHT, each also with :bicubic"
_IMAGENET = "256/224"
_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """Resize and crop, before pixels are divided by 255. Normalisation belongs to the network.

    Args:
        short: New length of the shorter side, as in torchvision's Resize; None: as in the file.
        crop: Side of the square cut from the centre, as in torchvision's CenterCrop; None: the whole image.
        size: New width and height, whatever the proportions; None: they are kept.
        resampling: How it is resized.
    """

    short: int | None = None
    crop: int | None = None
    size: tuple[int, int] | None = None
    resampling: Resampling = "bilinear"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The preprocessing of this name or with these numbers; see `SPELLINGS`."""
        sizes, _, how = text.partition(":")
        sizes = {"imagenet": _IMAGENET, "none": ""}.get(sizes, sizes)
        cropped, stretched = re.fullmatch(r"(\d+)/(\d+)", sizes), re.fullmatch(r"(\d+)x(\d+)", sizes)
        numbers = [int(number) for found in (cropped, stretched) if found for number in found.groups()]
        if (sizes and not numbers) or 0 in numbers or how not in ("", *_FILTERS):
            raise InvalidInputError(f"expected a preprocessing ({SPELLINGS}), got {text!r}")
        resampling: Resampling = "bicubic" if how == "bicubic" else "bilinear"
        if cropped:
            return cls(short=numbers[0], crop=numbers[1], resampling=resampling)
        return cls(size=(numbers[0], numbers[1]) if stretched else None, resampling=resampling)

    @property
    def text(self) -> str:
        """What `parse` takes."""
        sizes = f"{self.short}/{self.crop}" if self.short else "{}x{}".format(*self.size) if self.size else "none"
        return sizes if self.resampling == "bilinear" else f"{sizes}:{self.resampling}"

    def apply(self, image: Image.Image) -> Image.Image:
        """The image, resized and cropped."""
        size = self.size
        if self.short is not None:
            least = min(image.size)
            width, height = (self.short * side // least for side in image.size)
            size = width, height
        if size is not None:
            image = image.resize(size, _FILTERS[self.resampling])
        if self.crop is None:
            return image
        if min(image.size) < self.crop:
            got = f"{image.width} x {image.height}"
            raise DataError(f"expected at least {self.crop} x {self.crop} pixels, got {got}")
        left, upper = round((image.width - self.crop) / 2), round((image.height - self.crop) / 2)
        return image.crop((left, upper, left + self.crop, upper + self.crop))


NONE = Preprocessing()
