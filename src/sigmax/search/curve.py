"""A smooth curve through few answers at several sigmas: what they say together about every sigma between.

A network that hits a class always at one sigma and rarely at the next but one is on its way down at the one between,
whatever luck a few samples had there.
"""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from sigmax.bounds import clopper_pearson_lower
from sigmax.noise import SmoothingDistribution

Numbers = NDArray[np.float64]

# The curve z(log sigma), with z the probit of the hit rate, is a Gaussian process: around _MEAN, wandering by _WANDER
# within _LENGTH, on the whole higher or lower by _LEVEL. Of few settings that were tried on the answers of a CIFAR-10
# network at 16 sigmas, this was the best by little; benchmarks/sigma_search.py shows what it gives there.
_MEAN, _WANDER, _LENGTH, _LEVEL = 2.0, 2.0, 0.4, 1.0
# Newton's method on a concave function, each step halved until it climbs: it ends where nothing moves by _STILL.
_NEWTON, _HALVINGS, _STILL = 100, 30, 1e-9
# Radii are taken at these probits, and between them by straight lines; beyond, certification sees no difference.
_PROBITS = np.linspace(0.0, 6.0, 121)
# The mean over a normal distribution, by Gauss and Hermite: exact for polynomials of degree 17.
_NODES, _WEIGHTS = hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def fit_probits(
    hits: NDArray[np.int64], draws: NDArray[np.int64], sigmas: Numbers, grid: Numbers
) -> tuple[Numbers, Numbers]:
    """Mean and deviation (inputs, grid) of the probit of the hit rate at each sigma of the grid.

    Laplace's method: the curve of largest posterior probability, and the normal distribution that is curved alike
    there (Rasmussen and Williams 2006, chapter 3).

    Args:
        hits: Of each input at each sigma, (inputs, sigmas).
        draws: The samples there.
        sigmas: Where they were drawn, (sigmas,).
        grid: Where to say what is known.
    """
    here, there = np.log(sigmas), np.log(grid)
    prior = _covariance(here, here)  # sigmas sigmas
    z, weights = np.full(hits.shape, _MEAN), np.zeros(hits.shape)
    for _ in range(_NEWTON):
        slope, curvature = _likelihood(z, hits, draws)
        target = curvature * (z - _MEAN) + slope
        root = np.sqrt(curvature)
        solved = np.linalg.solve(_whitened(root, prior), (root * (target @ prior))[..., None])[..., 0]
        weights = _climb(weights, target - root * solved - weights, prior, hits, draws)
        before, z = z, _MEAN + weights @ prior
        if np.abs(z - before).max(initial=0.0) < _STILL:
            break
    root = np.sqrt(_likelihood(z, hits, draws)[1])
    cross = _covariance(here, there)  # sigmas grid
    spread = root[..., None] * cross  # inputs sigmas grid
    known = np.einsum("isg,isg->ig", spread, np.linalg.solve(_whitened(root, prior), spread))
    return _MEAN + weights @ cross, np.sqrt(np.maximum(_WANDER**2 + _LEVEL**2 - known, 0.0))


@final
class ExpectedRadii:
    """J at each sigma of a grid: the radius to expect of the certification to come, when the hit rate is not sure."""

    def __init__(self, noise: SmoothingDistribution, grid: Sequence[float], *, n: int, alpha: float) -> None:
        lower = [clopper_pearson_lower(p * n, n, alpha=alpha) for p in ndtr(_PROBITS).tolist()]
        self._radii = np.array(
            [[noise.radius(p, sigma=sigma) if p > 0.5 else 0.0 for p in lower] for sigma in grid]
        )  # grid probits

    def __call__(self, mean: Numbers, deviation: Numbers) -> Numbers:
        """Of probits with this mean and deviation, both (inputs, grid)."""
        z = mean[..., None] + deviation[..., None] * _NODES  # inputs grid nodes
        radii = [np.interp(z[:, j], _PROBITS, row) @ _WEIGHTS for j, row in enumerate(self._radii)]
        return np.stack(radii, axis=1)


def _covariance(a: Numbers, b: Numbers) -> Numbers:
    covariance: Numbers = _WANDER**2 * np.exp(-0.5 * (np.subtract.outer(a, b) / _LENGTH) ** 2) + _LEVEL**2
    return covariance


def _whitened(root: Numbers, prior: Numbers) -> Numbers:
    """I + R K R for each input, R the diagonal matrix of its roots: as well conditioned as can be."""
    whitened: Numbers = np.eye(len(prior)) + root[..., :, None] * prior * root[..., None, :]
    return whitened


def _climb(
    weights: Numbers, step: Numbers, prior: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]
) -> Numbers:
    """The weights after as much of each input's step, by halving, as does not lower its posterior probability."""
    height = _log_posterior(weights, prior, hits, draws)
    share = np.ones((len(weights), 1))
    for _ in range(_HALVINGS):
        tried = weights + share * step
        # Rounding may lower it too.
        falls = _log_posterior(tried, prior, hits, draws) < height - 1e-12 * np.abs(height)
        if not falls.any():
            break
        share[falls] /= 2
    return tried


def _log_posterior(weights: Numbers, prior: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]) -> Numbers:
    """Of the curve with these weights, but for a constant, (inputs,)."""
    wander = weights @ prior
    likelihood = hits * log_ndtr(_MEAN + wander) + (draws - hits) * log_ndtr(-_MEAN - wander)
    height: Numbers = (likelihood - 0.5 * weights * wander).sum(axis=1)
    return height


def _likelihood(z: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """Slope and curvature (downwards) of the logarithm of the probability of these counts."""
    density = -0.5 * z * z - 0.5 * math.log(2 * math.pi)
    up, down = np.exp(density - log_ndtr(z)), np.exp(density - log_ndtr(-z))
    misses = draws - hits
    slope = hits * up - misses * down
    curvature = hits * up * (up + z) + misses * down * (down - z)
    return slope, np.maximum(curvature, 1e-12)
