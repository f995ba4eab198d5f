"""Image files from requests: their size is checked before a pixel is decoded."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sigmax.data.folder import read_image
from sigmax.data.preprocessing import NONE, Preprocessing
from sigmax.errors import DataError, InvalidInputError, one_line

FORMATS = ("PNG", "JPEG", "BMP")
MOST_PIXELS = 2**25  # of a file that is resized: a photograph of 32 megapixels


def decode_image(content: bytes, shape: tuple[int, ...], preprocessing: Preprocessing = NONE) -> NDArray[np.float32]:
    """The pixels of an image file, (channels, height, width), if it has this shape once it is preprocessed."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InvalidInputError(f"expected numbers, because the model's inputs of shape {shape} are not images")
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as file:
            width, height = file.size
    except Exception as error:  # a broken image can raise anything
        raise InvalidInputError(f"expected an image file ({', '.join(FORMATS)}), got: {_plainly(error)}") from error
    if preprocessing == NONE:
        _check_size((height, width), shape)
    elif width * height > MOST_PIXELS:
        raise InvalidInputError(f"expected at most {MOST_PIXELS:,} pixels, got {width} x {height}; resize it")
    try:
        pixels = read_image(BytesIO(content), preprocessing, channels=shape[0])
    except DataError as error:
        raise InvalidInputError(one_line(error)) from error
    _check_size(pixels.shape[1:], shape)
    return pixels


def _check_size(size: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if size != shape[1:]:
        got = f"{size[1]} x {size[0]}"
        raise InvalidInputError(f"expected an image of {shape[2]} x {shape[1]} pixels, got {got}; resize it")


def _plainly(error: Exception) -> str:
    """Without the address of an object."""
    return "something else" if isinstance(error, OSError) else one_line(error)
