"""The 1,797 handwritten digits of 8 x 8 pixels in scikit-learn, which need no download."""

from sklearn.datasets import load_digits

from sigmax.data.source import ArraySource

_HELD_OUT = 500  # the last ones: few of their writers wrote any of the others


def digits(split: str) -> ArraySource:
    """The first 1,297 digits to train on, the last 500 to test."""
    bunch = load_digits()
    part = slice(-_HELD_OUT, None) if split == "test" else slice(None, -_HELD_OUT)
    pixels = bunch.images[part, None].astype("uint8")  # n 1 8 8, values 0…16
    return ArraySource("digits", pixels, bunch.target[part], [str(d) for d in range(10)], levels=16)
