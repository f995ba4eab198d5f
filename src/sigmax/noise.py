"""Smoothing distributions: how noise is drawn and added, and what radius it certifies.

A new distribution is one class: noise at sigma = 1, the certified radius and its differentiable form. With `masses` its
certificates are exact for inputs on a grid. Only a distribution adds noise to an input.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
import torch
from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr, ndtri
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.lattice import MOST_SCALE, PIXEL_DEFECT, IntegerNoise, Masses
from sigmax.named import Named, find_class, named_classes
from sigmax.rounding import round_down
from sigmax.streams import Stream


class SmoothingDistribution(Named, ABC):
    """Additive noise sigma * eps, with eps drawn independently of sigma (the reparameterisation trick)."""

    parameter: ClassVar[str] = "sigma"  # what the field calls its parameter
    norm: ClassVar[int]  # the norm of the balls it certifies

    @abstractmethod
    def draw(self, stream: Stream, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """The next n samples of noise at sigma = 1, (n, *shape)."""

    def masses(self, scale: float) -> Masses | None:  # noqa: ARG002
        """P(Z = i) for i = -m … m, where Z is noise at sigma = `scale` rounded to integers; None: not known.

        m is where the mass falls below 2**-66.
        """
        return None

    def defect(self, size: int, *, is_exact: bool) -> float:
        """Bound on the total variation between the noise drawn, of `size` numbers, and the true distribution.

        No probability under the noise differs by more. The default holds for numbers from 31 bits or more.
        """
        return min(1.0, size * (PIXEL_DEFECT if is_exact else 2.0**-30))

    @abstractmethod
    def radius(self, p_lower: float, *, sigma: float, p_upper: float | None = None) -> float:
        r"""Certified radius, rounded down.

        Args:
            p_lower: $\underline{p_A}$, lower bound on the probability of the answered class.
            sigma: The distribution's own parameter.
            p_upper: $\overline{p_B}$, upper bound on the probability of any other class; by default
                1 - p_lower, which always holds.
        """

    @abstractmethod
    def probability(self, radius: float, *, sigma: float) -> float:
        """The probability of the class above which this radius is certified, rounded up; 1: it never is."""

    @abstractmethod
    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        """Differentiable radius of mean probabilities (batch, classes), each strictly inside (0, 1).

        With `label` (batch,) the class is fixed, and the radius is negative where it does not lead;
        without, it is the leading class of each row.
        """

    def write(self, out: Tensor, x: Tensor, *, sigma: float, stream: Stream, levels: int | None = None) -> None:
        """Overwrite `out`, (rows, *dims), with noisy copies of one input x, (*dims).

        With `levels` the noise is exact: x then has integers, in units of the grid, and `out` the noisy copies in units
        of 1.
        """
        if levels is None:
            noise = self.draw(stream, len(out), x.shape, dtype=out.dtype)
            torch.add(x, noise, alpha=sigma, out=out)
        else:
            scratch = out.view(torch.int32) if out.element_size() == 4 else None
            integers = _integers(self, levels * sigma, x.device).draw(stream, len(out), x.numel(), scratch=scratch)
            out.copy_(integers.view(out.shape).add_(x)).div_(levels)

    def add(self, x: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
        """Return x + sigma * eps, (batch, n, *dims), for x (batch, *dims), sigma (batch,) and n draws eps each."""
        scale = sigma.reshape(-1, *[1] * (eps.ndim - 1))  # batch 1 1…
        return x.unsqueeze(1) + scale * eps  # batch n *dims

    def perturb(self, x: Tensor, sigma: Tensor, *, n: int, streams: Sequence[Stream]) -> Tensor:
        """Draw n noisy copies of each input from its own stream, (batch, n, *dims); differentiable in sigma."""
        eps = torch.stack([self.draw(stream, n, x.shape[1:], dtype=x.dtype) for stream in streams])
        return self.add(x, sigma, eps)


@lru_cache(maxsize=64)  # the sigmas of a search, an eighth of a MB each
def _integers(noise: SmoothingDistribution, scale: float, device: torch.device) -> IntegerNoise:
    if scale > MOST_SCALE:
        raise InvalidInputError(
            f"expected noise of at most {MOST_SCALE:g} steps of the grid, got levels * sigma={scale:g}; lower sigma, "
            "set bounds, or leave out levels (--float)"
        )
    masses = noise.masses(scale)
    if masses is None:
        raise InvalidInputError(f"expected noise with `masses` for inputs on a grid, got {noise!r}; leave out levels")
    return IntegerNoise(masses, device)


@final
@dataclass(frozen=True, slots=True)
class Gaussian(SmoothingDistribution):
    """Noise N(0, sigma^2 I), certifying l2 balls."""

    name = "gaussian"
    norm = 2

    def draw(self, stream: Stream, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """N(0, 1)."""
        return stream.normal(n, shape, dtype=dtype)

    def masses(self, scale: float) -> Masses:
        r"""$\Phi((i + 1/2)/s) - \Phi((i - 1/2)/s)$ for scale s, each with a relative error of a few 2**-53.

        Differences of $\Phi$ would lose digits, so the density is integrated over each cell: by 8 Gauss-Legendre nodes,
        which are exact in float64 on pieces of width 1/4.
        """
        if scale < 0.5 / 9.5:
            return np.ones(1)  # the other cells have less than 2**-66 together
        cells = np.arange(int(9.5 * scale) + 2)  # beyond 9.5 sigma the mass is below 2**-66
        nodes, weights = leggauss(8)
        pieces = int(np.ceil(4 / scale))
        inside = ((np.arange(pieces)[:, None] + (nodes + 1) / 2) / pieces - 0.5).ravel()  # in a cell of width 1
        x = (cells[:, None] + inside) / scale  # cells nodes
        half = np.exp(-0.5 * x * x) @ np.tile(weights, pieces) / (2 * pieces * scale * np.sqrt(2 * np.pi))
        return np.concatenate([half[:0:-1], half])

    def radius(self, p_lower: float, *, sigma: float, p_upper: float | None = None) -> float:
        r"""Certified radius $R = \frac{\sigma}{2}(\Phi^{-1}(p_A) - \Phi^{-1}(p_B))$ (paper, Eq. 1)."""
        _check_probabilities(p_lower, p_upper)
        if p_upper is None:
            return round_down(sigma * float(ndtri(p_lower)))
        return round_down(sigma / 2 * (round_down(float(ndtri(p_lower))) - float(ndtri(p_upper))))

    def probability(self, radius: float, *, sigma: float) -> float:
        r"""$\Phi(R / \sigma)$."""
        return _round_up(float(ndtr(radius / sigma))) if radius else 0.5

    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        r"""$\frac{\sigma}{2}(\Phi^{-1}(\psi^A) - \Phi^{-1}(\psi^B))$ (paper, Algorithm 1 and Eq. 3)."""
        top, runner_up = _leading_two(probs, label)
        gap: Tensor = torch.special.ndtri(top) - torch.special.ndtri(runner_up)
        return sigma / 2 * gap


@final
@dataclass(frozen=True, slots=True)
class Uniform(SmoothingDistribution):
    """Noise U[-sigma, sigma]^d, certifying l1 balls; sigma is the half-width that the paper calls lambda."""

    name = "uniform"
    parameter = "lambda"
    norm = 1

    def draw(self, stream: Stream, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        """U[-1, 1]."""
        return stream.uniform(n, shape, dtype=dtype).mul_(2).sub_(1)

    def masses(self, scale: float) -> Masses:
        """The share of each cell [i - 1/2, i + 1/2] in [-scale, scale]."""
        cells = np.arange(int(scale + 0.5) + 1)
        half = np.clip(scale + 0.5 - cells, 0.0, 1.0) / (2 * scale)
        half[0] = min(1.0, 0.5 / scale)
        return np.concatenate([half[:0:-1], half])

    def radius(self, p_lower: float, *, sigma: float, p_upper: float | None = None) -> float:
        r"""Certified radius $R = \lambda (p_A - p_B)$ (paper, section on l1 certificates)."""
        _check_probabilities(p_lower, p_upper)
        return round_down(sigma * round_down(p_lower - (1 - p_lower if p_upper is None else p_upper)))

    def probability(self, radius: float, *, sigma: float) -> float:
        r"""$(1 + R / \lambda) / 2$."""
        return _round_up((1 + radius / sigma) / 2) if radius else 0.5

    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        r"""$\lambda (\psi^A - \psi^B)$ (paper, Eq. 4)."""
        top, runner_up = _leading_two(probs, label)
        return sigma * (top - runner_up)


def find_noise(name: str) -> SmoothingDistribution:
    """The noise of this name. "l2" and "l1" stand for Gaussian and uniform noise."""
    by_norm = {f"l{kind.norm}": kind for kind in named_classes(SmoothingDistribution).values()}  # type: ignore[type-abstract]
    return (by_norm.get(name) or find_class(SmoothingDistribution, name))()  # type: ignore[type-abstract]


def _round_up(p: float) -> float:
    """A few units in the last place more: the functions above are good to about as much."""
    return min(1.0, p + 2.0**-50)


def _check_probabilities(p_lower: float, p_upper: float | None) -> None:
    if p_upper is None and not 0.5 < p_lower < 1.0:
        raise InvalidInputError(f"expected 0.5 < p_lower < 1, got p_lower={p_lower}; abstain at or below 0.5")
    if p_upper is not None and not 0.0 < p_upper < p_lower < 1.0:
        raise InvalidInputError(
            f"expected 0 < p_upper < p_lower < 1, got p_lower={p_lower}, p_upper={p_upper}; abstain otherwise"
        )


def _leading_two(probs: Tensor, label: Tensor | None) -> tuple[Tensor, Tensor]:
    """The probability of the class and of the strongest other class, each (batch,)."""
    if label is None:
        top, runner_up = probs.topk(2, dim=-1).values.unbind(-1)
        return top, runner_up
    column = label.unsqueeze(-1)  # batch 1
    others = probs.scatter(-1, column, -torch.inf)
    return probs.gather(-1, column).squeeze(-1), others.max(dim=-1).values
