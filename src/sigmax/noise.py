"""Smoothing distributions: how noise is drawn and added, and what radius it certifies.

A new distribution is one class: noise at sigma = 1, the certified radius and its differentiable form. Only a
distribution adds noise to an input.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from sigmax.errors import InvalidInputError
from sigmax.named import Named, find_class, named_classes
from sigmax.rounding import round_down


class SmoothingDistribution(Named, ABC):
    """Additive noise sigma * eps, with eps drawn independently of sigma (the reparameterisation trick)."""

    parameter: ClassVar[str] = "sigma"  # what the field calls its parameter
    norm: ClassVar[int]  # the norm of the balls it certifies

    @abstractmethod
    def fill(self, out: Tensor, *, generator: torch.Generator) -> Tensor:
        """Overwrite `out` with noise at sigma = 1 and return it."""

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
        """The probability of the answered class above which this radius is certified, rounded up; 1: none is."""

    @abstractmethod
    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        """Differentiable radius of mean probabilities (batch, classes), each strictly inside (0, 1).

        With `label` (batch,) the class is fixed, and the radius is negative where it does not lead;
        without, it is the leading class of each row.
        """

    def write(self, out: Tensor, x: Tensor, *, sigma: float, generator: torch.Generator, scratch: Tensor) -> None:
        """Overwrite `out`, (rows, *dims), with noisy copies of one input x, (*dims).

        Noise is drawn in the shape of `scratch` where that has more rows, so that the stream advances by whole tiles.
        """
        drawn = self.fill(scratch if len(out) < len(scratch) else out, generator=generator)
        torch.add(x, drawn[: len(out)], alpha=sigma, out=out)

    def add(self, x: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
        """Return x + sigma * eps, (batch, n, *dims), for x (batch, *dims), sigma (batch,) and n draws eps each."""
        scale = sigma.reshape(-1, *[1] * (eps.ndim - 1))  # batch 1 1…
        return x.unsqueeze(1) + scale * eps  # batch n *dims

    def perturb(self, x: Tensor, sigma: Tensor, *, n: int, streams: Sequence[torch.Generator]) -> Tensor:
        """Draw n noisy copies of each input from its own stream, (batch, n, *dims); differentiable in sigma."""
        eps = torch.stack([self.fill(x.new_empty((n, *x.shape[1:])), generator=s) for s in streams])
        return self.add(x, sigma, eps)


@final
@dataclass(frozen=True, slots=True)
class Gaussian(SmoothingDistribution):
    """Noise N(0, sigma^2 I), certifying l2 balls."""

    name = "gaussian"
    norm = 2

    def fill(self, out: Tensor, *, generator: torch.Generator) -> Tensor:
        """Overwrite `out` with N(0, 1)."""
        return out.normal_(generator=generator)

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

    def fill(self, out: Tensor, *, generator: torch.Generator) -> Tensor:
        """Overwrite `out` with U[-1, 1]."""
        return out.uniform_(-1.0, 1.0, generator=generator)

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
    """The noise of this name; "l2" and "l1" name the one of this package that certifies that norm."""
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
