"""What a search can choose of one network: its sigmas, and the levels that it is told if it takes any."""

from typing import final

import numpy as np

from sigmax.errors import InvalidInputError
from sigmax.experts import Expert
from sigmax.search.base import resolved_bounds
from sigmax.search.curve import Numbers

# Points of the fine grid per sigma that is sampled.
_FINER = 4
# Bounds on tau are those on sigma, but for rounding.
_SLACK = 1 + 1e-9


@final
class Candidates:
    """Pairs of sigma and tau for one network: those that are sampled, and a finer grid on which radii are predicted.

    Sigmas are spaced evenly on a logarithmic scale between the bounds of the network.

    Args:
        expert: The network.
        sigmas: How many sigmas are sampled.
        taus: The levels that a noise-aware network is told, as multiples of sigma. Those outside the bounds are left
            out.
    """

    def __init__(self, expert: Expert, *, sigmas: int, taus: tuple[float, ...]) -> None:
        low, high = resolved_bounds(expert.sigma, expert.bounds)
        levels = np.geomspace(low, high, _FINER * (sigmas - 1) + 1)
        told = np.outer(taus if expert.classifier.takes_level else (1.0,), levels)  # taus levels
        is_inside = (told >= low / _SLACK) & (told <= high * _SLACK)
        is_sampled = np.broadcast_to(np.arange(len(levels)) % _FINER == 0, told.shape)
        self.fine: Numbers = np.stack([np.broadcast_to(levels, told.shape)[is_inside], told[is_inside]], axis=1)
        self.places = np.flatnonzero(is_sampled[is_inside])  # of the sampled ones in the fine grid
        self.grid = self.fine[self.places]
        if len(self.grid) < 2:
            raise InvalidInputError(f"expected tau = ratio * sigma inside [{low:g}, {high:g}], got taus={taus}; add 1")
