"""A model by name, with all that decides its outputs: a small value that any process can load."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from torch import Tensor, nn

from sigmax.cards import ZOO
from sigmax.errors import InvalidInputError
from sigmax.models.backends import Backend, accelerate, place_model
from sigmax.models.checkpoint import MODEL_FILE, LoadedModel, load_model, member_names
from sigmax.models.classifier import BaseClassifier
from sigmax.models.denoisers import denoiser_identity, load_denoiser, with_denoiser
from sigmax.models.outputs import Outputs


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """Which model, and how it runs. `arch` to `classes` are needed only if the model does not record them.

    Args:
        name: A checkpoint, an ONNX file, a run folder, `zoo:NAME` or `package.module:factory`; A+B is the ensemble of
            A and B.
        arch: The architecture.
        normalize: The normalisation before the network.
        outputs: Whether the model returns "logits", the default, or "probabilities".
        classes: Number of classes.
        denoiser: What removes noise before the model: `ffdnet` or `package.module:factory`; None: nothing.
        backend: What runs the network, one of `BACKENDS`.
        device: Where it runs; by default an accelerator if there is one.
    """

    name: str
    arch: str | None = None
    normalize: str | None = None
    outputs: Outputs | None = None
    classes: int | None = None
    denoiser: str | None = None
    backend: Backend = "eager"
    device: str | None = None

    def load(self) -> LoadedModel:
        """Load the model and put it on its device."""
        loaded = load_model(self.name, arch=self.arch, normalize=self.normalize)
        if self.denoiser is not None:
            loaded = _denoised(loaded, self.denoiser)
        if isinstance(loaded.model, nn.Module):
            place_model(loaded.model, self.device)
        elif self.device is not None or self.backend != "eager":
            raise InvalidInputError(
                "expected --device and --backend only for a torch.nn.Module, "
                f"got device={self.device}, backend={self.backend}; leave them out"
            )
        return loaded

    def classifier(self, loaded: LoadedModel, *, classes: int | None = None) -> BaseClassifier:
        """The classifier on the eager backend. `classes`, from the data, is used if nothing else says it."""
        known = loaded.num_classes or self.classes or classes
        if known is None:
            raise InvalidInputError("expected --classes for a model of your own, got none")
        if self.classes not in (None, known):
            raise InvalidInputError(f"expected the model's {known} classes, got classes={self.classes}; leave it out")
        outputs = loaded.card.outputs if loaded.card else self.outputs or "logits"
        if self.outputs not in (None, outputs):
            raise InvalidInputError(f"expected the model's {outputs}, got outputs={self.outputs}; leave it out")
        return BaseClassifier(loaded.model, num_classes=known, outputs=outputs, identity=loaded.identity)

    def accelerated(self, model: Callable[..., Tensor], *, batch_shape: tuple[int, ...]) -> Callable[..., Tensor]:
        """The model run by its backend, for batches of this shape."""
        return accelerate(model, self.backend, batch_shape=batch_shape) if isinstance(model, nn.Module) else model

    @property
    def short_name(self) -> str:
        """The name of its file, folder or zoo entry; names of runs start with it."""
        if len(members := member_names(self.name)) > 1:
            return "+".join(replace(self, name=member).short_name for member in members)
        if self.name.startswith(ZOO):
            return self.name.removeprefix(ZOO)
        path = Path(self.name).parent if Path(self.name).name == MODEL_FILE else Path(self.name)
        return (path.stem if path.is_file() else path.name) or "model"


def _denoised(loaded: LoadedModel, name: str) -> LoadedModel:
    denoiser = load_denoiser(name)
    identity = loaded.identity
    if not isinstance(loaded.model, nn.Module):
        identity = f"{identity} behind {denoiser_identity(name, denoiser)}"
    return replace(loaded, model=with_denoiser(loaded.model, denoiser), identity=identity)
