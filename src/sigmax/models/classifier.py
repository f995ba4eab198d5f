"""BaseClassifier: the function f that is smoothed. It checks what certification assumes of f."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError, one_line
from sigmax.models.architectures import takes_level, told
from sigmax.models.backends import FastModel, device_of

Outputs = Literal["logits", "probabilities"]
# Attributes of a module that the fingerprint leaves out: marks of torch.compile, and what the state dict covers.
_MARKS = {"_is_torch_compile", "_compile_kwargs"} | {
    name for name, value in vars(nn.Module()).items() if isinstance(value, dict)
}


@final
class BaseClassifier:
    """A fixed function from a batch of inputs to one score per class.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes).
        num_classes: Scores per input.
        outputs: Whether the scores are "logits" or "probabilities". They are never guessed from the values.
        identity: A text that identifies this function. A callable that is not a module needs one for its fingerprint.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Tensor],
        *,
        num_classes: int,
        outputs: Outputs = "logits",
        identity: str | None = None,
    ) -> None:
        if num_classes < 2:
            raise InvalidInputError(f"expected num_classes >= 2, got num_classes={num_classes}")
        if outputs not in ("logits", "probabilities"):
            raise InvalidInputError(f"expected outputs 'logits' or 'probabilities', got outputs={outputs!r}")
        self.model = model
        self.num_classes = num_classes
        self.outputs = outputs
        self.identity = identity
        self._takes_channels_last = True  # until it refuses them
        # Attributes that forward passes add later, such as kept feature maps, are no settings.
        self._settings = frozenset(_attributes(model)) if isinstance(model, nn.Module) else frozenset()
        self.check_fixed()

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters; the default device for a model without any."""
        return device_of(self.model) if isinstance(self.model, nn.Module) else torch.get_default_device()

    @property
    def backend(self) -> str | None:
        """What runs the model, with its version; None for a callable that is not a module."""
        if isinstance(self.model, FastModel):
            return self.model.backend_name
        return f"torch {torch.__version__}" if isinstance(self.model, nn.Module) else None

    def check_fixed(self) -> None:
        """Refuse a model whose output for an input depends on chance or on the rest of the batch."""
        if not isinstance(self.model, nn.Module):
            return
        for name, module in self.model.named_modules():
            where = f"{name or 'model'} ({type(module).__name__})"
            if isinstance(module, FastModel):
                module.check_fixed()
            if module.training:
                raise ModelError(f"expected a model in eval mode, got {where} in training mode; call model.eval()")
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
                raise ModelError(
                    f"expected inputs to be treated independently, got {where} without running statistics, "
                    "which mixes the inputs of a batch; use track_running_stats=True"
                )

    @property
    def takes_level(self) -> bool:
        """Whether the model takes a noise level for each row."""
        return takes_level(self.model)

    def scores(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The model's outputs, (batch, classes). `tau`, (batch,), is passed on if the model takes noise levels."""
        try:
            scores = self._run(x, tau)
        except ModelError:
            raise
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"expected {len(x)} inputs of shape {tuple(x.shape[1:])} to fit into memory, "
                f"got: {one_line(error)}; lower batch_size (--batch)"
            ) from error
        except Exception as error:  # the user's code can raise anything
            raise ModelError(
                f"expected a model that takes inputs of shape {tuple(x.shape[1:])}, got {type(error).__name__}: "
                f"{one_line(error)}; check channels, size and dtype ({x.dtype}) of the data against the model"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != (len(x), self.num_classes):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ModelError(
                f"expected model outputs of shape {(len(x), self.num_classes)}, got {got}; "
                f"check num_classes={self.num_classes} (--classes) against the model"
            )
        if scores.dtype == torch.bool:
            raise ModelError("expected one score per class, got booleans; return logits or probabilities")
        return scores

    def _run(self, x: Tensor, tau: Tensor | None) -> Tensor:
        """The model's outputs. A model that refuses channels-last inputs, as `view` does, then gets contiguous ones."""
        if self._takes_channels_last:
            try:
                return told(self.model, x, tau)
            except RuntimeError as error:
                if x.is_contiguous() or isinstance(error, torch.OutOfMemoryError):
                    raise
        scores = told(self.model, x.contiguous(), tau)
        self._takes_channels_last = False
        return scores

    def labels(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """The leading class of each input, (batch,)."""
        scores = self.scores(x, tau)
        if not torch.isfinite(scores).all():
            row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
            raise ModelError(
                f"expected finite model outputs, got {scores[row].tolist()[:4]}… for row {row} of a batch; "
                "check the weights and the input range"
            )
        return scores.argmax(dim=1)

    def probabilities(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """One probability per class, (batch, classes)."""
        scores = self.scores(x, tau)
        return scores.softmax(dim=1) if self.outputs == "logits" else scores

    @property
    def fingerprint(self) -> str:
        """A digest of the model's present structure, weights, settings and kind of output.

        Copies of a model have the same fingerprint. It changes with every parameter, buffer, layer and setting.
        Settings are the numbers, texts, tensors and arrays in the attributes that the modules had at first, also
        inside lists and dicts. It does not change with the code of the model: only `identity` can say that.
        """
        digest = hashlib.sha256(f"{self.outputs} {self.num_classes} {self.identity or ''}".encode())
        if isinstance(self.model, nn.Module):
            digest.update(repr(self.model).encode())
            state: dict[str, object] = {**self.model.state_dict(), **dict(self.model.named_buffers())}
            state |= {name: value for name, value in _attributes(self.model).items() if name in self._settings}
            for name, value in sorted(state.items()):
                if isinstance(value, Tensor):
                    array = value.detach().cpu().contiguous()
                    digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
                    digest.update(array.flatten().view(torch.uint8).numpy().tobytes())
                elif isinstance(value, np.ndarray):
                    digest.update(f"{name} numpy {value.dtype} {value.shape}".encode() + value.tobytes())
                else:
                    digest.update(f"{name} {value!r}".encode())
        elif self.identity is None:
            raise ModelError(
                "expected identity='…' for a model that is no torch.nn.Module, got none; "
                "name it, so that its memory can refuse other models"
            )
        return digest.hexdigest()


def _attributes(model: nn.Module) -> dict[str, object]:
    """All tensors and plain values in a model's attributes that are not in its state dict.

    For example, the normalisation layer of Cohen et al. keeps its means in a plain attribute.
    """
    return {
        place: part
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _MARKS
        for place, part in _values(f"{path}.{name}", value)
    }


def _values(name: str, value: object) -> Iterator[tuple[str, object]]:
    """The parts of an attribute that can be compared, by name; a plain value is one part."""
    if _is_plain(value) or isinstance(value, Tensor | np.ndarray | np.generic):
        yield name, value
    elif isinstance(value, Mapping | tuple | list):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _values(f"{name}[{key!r}]", part)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)
