"""Networks that are told a noise level: how they take it, and the modules that use it."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

LEVEL_PARTS = {"level", "film"}  # modules that only noise-aware networks have
_MIDDLE, _PER_OCTAVE = 0.25, 8  # levels are 0.25 times powers of 2 ** (1 / 8)
_CODE = 64  # features that encode the noise level inside a network


def takes_level(network: object) -> bool:
    """Whether a network takes the noise level of each row beside the inputs."""
    return bool(getattr(network, "takes_level", False))


def level_range(network: object) -> tuple[float, float] | None:
    """The noise levels that a network was trained for; None: unknown."""
    return getattr(network, "level_range", None)


def nearest_level(tau: Tensor, bounds: tuple[float, float]) -> Tensor:
    """The levels of a network with this range that act for tau: within 4.5 % of it, or the ends of the range.

    There are only eight to an octave, because a backend builds a network for each. The slope in tau is kept.
    """
    steps = (tau.clamp(*bounds) / _MIDDLE).log2() * _PER_OCTAVE
    level = (_MIDDLE * 2.0 ** (steps.round() / _PER_OCTAVE)).clamp(*bounds).detach()
    return level * (tau / tau.detach())


def told(network: Callable[..., Tensor], x: Tensor, tau: Tensor | None) -> Tensor:
    """f(x, tau) for a noise-aware network, f(x) for any other."""
    return network(x, tau) if takes_level(network) else network(x)


@final
class LevelCode(nn.Module):
    """A small network on log tau: noise levels (batch,) to codes (batch, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, _CODE)
        self.out = nn.Linear(_CODE, _CODE)

    def forward(self, tau: Tensor) -> Tensor:
        """Encode in full precision, because bfloat16 hardly separates nearby levels."""
        with torch.autocast(tau.device.type, enabled=False):
            u = (tau.float() / _MIDDLE).log().unsqueeze(-1)  # batch 1: around 0 for the usual levels
            return silu(self.out(silu(self.hidden(u))))


@final
class LevelNorm(nn.BatchNorm2d):
    """Batch norm whose scale and shift depend on the noise level; initialised as plain batch norm."""

    takes_level = True

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps)
        self.film = nn.Linear(_CODE, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise, scale and shift. `code` has one row per input, or a single row for all."""
        scale, shift = self.film(code).chunk(2, dim=-1)  # codes channels
        scale = 1 + scale
        if not self.training:
            # Both maps are affine. As one they cost no more than batch norm alone.
            assert self.running_mean is not None
            assert self.running_var is not None
            weight = self.weight * torch.rsqrt(self.running_var + self.eps)
            scale, shift = weight * scale, (self.bias - self.running_mean * weight) * scale + shift
            return torch.addcmul(shift[..., None, None], x, scale[..., None, None])
        return torch.addcmul(shift[..., None, None], super().forward(x), scale[..., None, None])


@final
class LevelChain(nn.Sequential):
    """`nn.Sequential` that passes the noise level, or its code, to the modules that take one.

    A chain with a `level_range` passes the nearest level of a network that was trained for this range.
    """

    takes_level = True
    level_range: tuple[float, float] | None = None

    def forward(self, x: Tensor, level: Tensor) -> Tensor:  # type: ignore[override]
        """Map x through all modules."""
        if self.level_range is not None:
            level = nearest_level(level, self.level_range)
        for module in self:
            x = told(module, x, level)
        return x


def chain(*modules: nn.Module) -> nn.Sequential:
    """The modules one after the other, with the noise level if one of them takes it."""
    return (LevelChain if any(map(takes_level, modules)) else nn.Sequential)(*modules)
