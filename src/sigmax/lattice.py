"""Integer noise for inputs on a grid, such as 8-bit pixels: certificates that hold in floating point.

Let x and x' be multiples of 1 / levels, and let Z be the noise in units of the grid, rounded to integers. Then
f((levels x + Z) / levels) is the smoothing of f after rounding to the grid. The network sees a function of one integer
per pixel, so no low bits of a sum can tell it which x the noise was added to (Voracek and Hein 2023).
"""

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.streams import Stream

Masses = NDArray[np.float64]

# The largest noise level in units of the grid. Noise then takes at most 2**17 values, each with a probability that is
# rounded to 64 bits, so that all of them are off by at most 2**-49 together.
MOST_SCALE = 2.0**12
# Bound on the total variation between the integers drawn and the true ones, for one pixel: masses also have a relative
# error of a few 2**-53. Measured against mpmath it is below 2**-50.
PIXEL_DEFECT = 2.0**-48
_FIRST = 16  # bits that decide most draws
_RESERVE = 16  # one word of further bits per this many pixels; a side stream has more, for very large sigma


@final
class IntegerNoise:
    """Draws integers with given probabilities from 64 random bits each.

    The draw is the number of thresholds at or below the bits. A table on the first 16 bits decides about 99 % of the
    draws.

    Args:
        masses: P(Z = i) for i = -m … m.
        device: Where to draw.
    """

    def __init__(self, masses: Masses, device: torch.device) -> None:
        weights = [round(mass * 2.0**64) for mass in masses.tolist()]
        middle = len(weights) // 2
        weights[middle] += 2**64 - sum(weights)
        cut = next(i for i, weight in enumerate(weights) if weight)  # symmetric tails below 2**-65
        self.low = cut - middle
        sums = np.cumsum(np.array(weights[cut : len(weights) - cut], dtype=object))
        # Signed, as torch compares integers.
        self.thresholds = torch.tensor([int(total) - 2**63 for total in sums[:-1]], dtype=torch.int64)
        dtype = torch.int16 if -self.low < 2**14 else torch.int32
        self.open = torch.iinfo(dtype).min  # in the table: further bits decide
        starts = torch.arange(-(2**15), 2**15) << 64 - _FIRST
        first, last = (torch.searchsorted(self.thresholds, ends, right=True) for ends in (starts, starts + (2**48 - 1)))
        self.table = torch.where(first == last, first + self.low, self.open).to(dtype=dtype, device=device)
        self.thresholds = self.thresholds.to(device)

    def draw(self, stream: Stream, n: int, size: int, *, scratch: Tensor | None = None) -> Tensor:
        """The next n samples of `size` integers each, (n, size); `scratch` is n * size int32 to work in."""
        main, reserve = -(-size // 4), size // _RESERVE + 4
        words = stream.words(n, main + reserve)
        first = words.view(torch.int16)[:, :size]  # n size
        entries = (first.new_empty(n * size, dtype=torch.int32) if scratch is None else scratch).flatten()
        entries.view(n, size).copy_(first).add_(2**15)
        drawn = self.table.index_select(0, entries)
        places = _places_of(self.open, drawn)
        if len(places):
            rows = places // size
            starts = torch.searchsorted(rows, torch.arange(n, device=rows.device))
            rank = torch.arange(len(places), device=rows.device) - starts[rows]  # within its sample
            further = words.take(rows * words.shape[1] + main + rank.clamp(max=reserve - 1))
            if int(rank.max()) >= reserve:
                further = torch.where(rank < reserve, further, stream.side(n).words(n, size)[rows, rank])
            bits = entries.take(places).long() - 2**15 << 48 | further >> 16 & 2**48 - 1
            cells = torch.searchsorted(self.thresholds, bits, right=True) + self.low
            drawn[places] = cells.to(drawn.dtype)
        return drawn.view(n, size)


def _places_of(value: int, flat: Tensor) -> Tensor:
    """Where a flat tensor has this value; NumPy is many times as fast where it can read the tensor."""
    if flat.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(flat.numpy() == value))
    return (flat == value).nonzero().squeeze(1)


def to_pixels(x: Tensor, levels: int) -> Tensor:
    """The inputs in units of the grid, as integers; refuses inputs off the grid."""
    pixels = (x * levels).round()
    # A tensor as the divisor: some devices multiply by the reciprocal of a number, which rounds otherwise.
    is_on = (pixels / pixels.new_full((1,), levels) == x) & (pixels.abs() < 2**13)
    if not is_on.all():
        value = float(x[~is_on][0])
        raise InvalidInputError(
            f"expected multiples of 1/{levels} below {2**13 // levels} for exact noise, got a pixel of {value!r}; "
            "leave out levels (--float) for noise in floating point"
        )
    return pixels.to(torch.int16)


def grid_slack(x: Tensor, levels: int) -> float:
    """How much shorter, as a share, a distance from x on the grid can look in the rounded numbers of its dtype.

    Pixels k / levels are rounded to floats: by at most u |k| / levels each, where u is half the dtype's epsilon. Two
    pixels that differ are 1 / levels or more apart. If x_i is one of them, their distance d_i looks shorter by at most
    u (2 |x_i| + d_i) <= u (2 levels |x_i| + 1) d_i.
    """
    unit = torch.finfo(x.dtype).eps / 2
    return unit * (2 * levels * float(x.abs().max()) + 1) * (1 + 2.0**-10)
