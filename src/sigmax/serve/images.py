"""Image files from requests: their size is checked before a pixel is decoded."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sigmax.data.folder import read_image
from sigmax.errors import DataError, InvalidInputError, one_line

FORMATS = ("PNG", "JPEG", "BMP")


def decode_image(content: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The pixels of an image file, (channels, height, width), if it has this shape."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InvalidInputError(f"expected numbers, because the model's inputs of shape {shape} are not images")
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as file:
            width, height = file.size
    except Exception as error:  # a broken image can raise anything
        raise InvalidInputError(f"expected an image file ({', '.join(FORMATS)}), got: {_plainly(error)}") from error
    if (height, width) != shape[1:]:
        raise InvalidInputError(
            f"expected an image of {shape[2]} x {shape[1]} pixels, got {width} x {height}; resize it"
        )
    try:
        return read_image(BytesIO(content), channels=shape[0])
    except DataError as error:
        raise InvalidInputError(one_line(error)) from error


def _plainly(error: Exception) -> str:
    """Without the address of an object."""
    return "something else" if isinstance(error, OSError) else one_line(error)
