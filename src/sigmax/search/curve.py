"""A smooth curve through the hit rates at several sigmas: the few samples of each also inform its neighbours.

For a noise-aware network it is a surface over sigma and tau, the level that the network is told.

For example, if a network hits the class always at one sigma and rarely at the next but one, its hit rate must be
falling at the sigma between, even if the few samples there all hit.
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

# The curve z(log sigma), where z is the probit of the hit rate, is a Gaussian process with this mean. Its covariance is
# squared exponential, with deviation _WANDER and length scale _LENGTH, plus a constant offset of deviation _LEVEL. Of
# the few settings tried on a CIFAR-10 network at 16 sigmas, this was slightly the best (benchmarks/sigma_search.py).
_MEAN, _WANDER, _LENGTH, _LEVEL = 2.0, 2.0, 0.4, 1.0
# Length scale of the surface along log(tau / sigma).
_TOLD_LENGTH = 1.0
# Newton's method on a concave function, with each step halved until it climbs; it ends when nothing moves by _STILL.
_NEWTON, _HALVINGS, _STILL = 100, 30, 1e-9
# Radii are computed at these probits and interpolated linearly. Beyond them, certification sees no difference.
_PROBITS = np.linspace(0.0, 6.0, 121)
# Gauss-Hermite quadrature for means over a normal distribution: exact for polynomials of degree 17.
_NODES, _WEIGHTS = hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def fit_probits(
    hits: NDArray[np.int64], draws: NDArray[np.int64], sigmas: Numbers, grid: Numbers
) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation (inputs, grid) of the probit of the hit rate at each sigma of the grid.

    Laplace's method: a normal approximation around the curve of largest posterior probability (Rasmussen and Williams
    2006, chapter 3).

    Args:
        hits: Hits of each input at each sigma, (inputs, sigmas).
        draws: Samples of each input at each sigma, (inputs, sigmas).
        sigmas: Where they were drawn: sigmas, (sigmas,), or sigmas and taus, (sigmas, 2).
        grid: Where to predict, (grid,) or (grid, 2).
    """
    here, there = _coordinates(sigmas), _coordinates(grid)
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
    """J at each sigma of a grid: the expected radius of the certification, under an uncertain hit rate."""

    def __init__(self, noise: SmoothingDistribution, grid: Sequence[float], *, n: int, alpha: float) -> None:
        lower = [clopper_pearson_lower(p * n, n, alpha=alpha) for p in ndtr(_PROBITS).tolist()]
        sigmas, places = np.unique(np.asarray(grid), return_inverse=True)
        radii = [[noise.radius(p, sigma=sigma) if p > 0.5 else 0.0 for p in lower] for sigma in sigmas.tolist()]
        self._radii = np.array(radii)[places]  # grid probits

    def __call__(self, mean: Numbers, deviation: Numbers) -> Numbers:
        """J (inputs, grid) for probits of this mean and standard deviation, both (inputs, grid)."""
        z = mean[..., None] + deviation[..., None] * _NODES  # inputs grid nodes
        radii = [np.interp(z[:, j], _PROBITS, row) @ _WEIGHTS for j, row in enumerate(self._radii)]
        return np.stack(radii, axis=1)


def _coordinates(places: Numbers) -> Numbers:
    """Log sigma and log(tau / sigma) of sigmas, or of sigmas and taus, (2, places)."""
    sigma, tau = (places, places) if places.ndim == 1 else places.T
    return np.stack([np.log(sigma), np.log(tau / sigma)])


def _covariance(a: Numbers, b: Numbers) -> Numbers:
    along, across = (np.subtract.outer(*values) for values in zip(a, b, strict=True))
    distance = (along / _LENGTH) ** 2 + (across / _TOLD_LENGTH) ** 2
    covariance: Numbers = _WANDER**2 * np.exp(-0.5 * distance) + _LEVEL**2
    return covariance


def _whitened(root: Numbers, prior: Numbers) -> Numbers:
    """I + R K R for each input, where R is the diagonal matrix of its roots; well conditioned."""
    whitened: Numbers = np.eye(len(prior)) + root[..., :, None] * prior * root[..., None, :]
    return whitened


def _climb(
    weights: Numbers, step: Numbers, prior: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]
) -> Numbers:
    """The weights after a step that is halved, for each input, until it does not lower the posterior probability."""
    height = _log_posterior(weights, prior, hits, draws)
    share = np.ones((len(weights), 1))
    for _ in range(_HALVINGS):
        tried = weights + share * step
        # The tolerance is for rounding.
        falls = _log_posterior(tried, prior, hits, draws) < height - 1e-12 * np.abs(height)
        if not falls.any():
            break
        share[falls] /= 2
    return tried


def _log_posterior(weights: Numbers, prior: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]) -> Numbers:
    """Log posterior probability of the curve with these weights, up to a constant, (inputs,)."""
    wander = weights @ prior
    likelihood = hits * log_ndtr(_MEAN + wander) + (draws - hits) * log_ndtr(-_MEAN - wander)
    height: Numbers = (likelihood - 0.5 * weights * wander).sum(axis=1)
    return height


def _likelihood(z: Numbers, hits: NDArray[np.int64], draws: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
    """First and negative second derivative in z of the log-likelihood of these counts."""
    density = -0.5 * z * z - 0.5 * math.log(2 * math.pi)
    up, down = np.exp(density - log_ndtr(z)), np.exp(density - log_ndtr(-z))
    misses = draws - hits
    slope = hits * up - misses * down
    curvature = hits * up * (up + z) + misses * down * (down - z)
    return slope, np.maximum(curvature, 1e-12)
