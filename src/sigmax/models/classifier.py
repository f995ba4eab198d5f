"""BaseClassifier: the function f that is smoothed, with its promises checked."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from sigmax.errors import InvalidInputError, ModelError
from sigmax.models.backends import FastModel, device_of

Outputs = Literal["logits", "probabilities"]
# What torch notes on a module without changing what it computes, and where it keeps what the state dict has.
_MARKS = {"_is_torch_compile", "_compile_kwargs"} | {
    name for name, value in vars(nn.Module()).items() if isinstance(value, dict)
}


@final
class BaseClassifier:
    """A fixed function from a batch of inputs to one score per class.

    Args:
        model: A `torch.nn.Module` in eval mode, or any callable from (batch, …) to (batch, classes).
        num_classes: How many scores the model gives for each input.
        outputs: Whether the scores are "logits" or "probabilities". It is never guessed.
        identity: What tells this function from others; needed only where a callable is no module and
            its certificates go into a durable memory.
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
        self._identity = identity
        self._takes_channels_last = True  # until it refuses them
        # What forward passes add later, as maps kept to be looked at, is no setting.
        self._settings = frozenset(_attributes(model)) if isinstance(model, nn.Module) else frozenset()
        self.check_fixed()

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live; the default device for a model without any."""
        return device_of(self.model) if isinstance(self.model, nn.Module) else torch.get_default_device()

    @property
    def engine(self) -> str | None:
        """What runs the model, for people; None: a function of one's own, which may be anything."""
        if isinstance(self.model, FastModel):
            return self.model.engine_name
        return f"torch {torch.__version__}" if isinstance(self.model, nn.Module) else None

    def check_fixed(self) -> None:
        """Refuse a model whose answer for one input depends on chance or on the rest of the batch."""
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

    def scores(self, x: Tensor) -> Tensor:
        """The model's own outputs, (batch, classes)."""
        try:
            scores = self._run(x)
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"expected {len(x)} inputs of shape {tuple(x.shape[1:])} to fit into memory, "
                f"got: {_first_line(error)}; lower batch_size (--batch)"
            ) from error
        except ModelError:
            raise
        except Exception as error:  # the user's code can raise anything
            raise ModelError(
                f"expected a model that takes inputs of shape {tuple(x.shape[1:])}, got {type(error).__name__}: "
                f"{_first_line(error)}; "
                f"check channels, size and dtype ({x.dtype}) of the data against the model"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != (len(x), self.num_classes):
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ModelError(
                f"expected model outputs of shape {(len(x), self.num_classes)}, got {got}; "
                f"check num_classes={self.num_classes} (--classes) against the model"
            )
        if scores.dtype == torch.bool:
            raise ModelError("expected a number for each class, got true and false: which leads cannot be told")
        return scores

    def _run(self, x: Tensor) -> Tensor:
        """The model's answer; with the usual layout, from then on, for one that takes no other: which calls view."""
        if not self._takes_channels_last:
            return self.model(x.contiguous())
        try:
            return self.model(x)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if x.is_contiguous():
                raise
            scores = self.model(x.contiguous())
            self._takes_channels_last = False
            return scores

    def labels(self, x: Tensor) -> Tensor:
        """The leading class of each input, (batch,)."""
        scores = self.scores(x)
        if not torch.isfinite(scores).all():
            row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
            raise ModelError(
                f"expected finite model outputs, got {scores[row].tolist()[:4]}… for row {row} of a batch; "
                "a class cannot be told from NaN or infinity: check the weights and the input range"
            )
        return scores.argmax(dim=1)

    def probabilities(self, x: Tensor) -> Tensor:
        """One probability per class, (batch, classes)."""
        scores = self.scores(x)
        return scores.softmax(dim=1) if self.outputs == "logits" else scores

    @property
    def fingerprint(self) -> str:
        """A digest of structure, numbers and kind of output, as they are now.

        Equal for copies of a model; different where a parameter, a buffer, a setting or a layer differs: numbers,
        text, tensors and arrays in the attributes that it came with, also inside lists and dicts. What computes
        something else with the same of these, as other code does, is told apart only by `identity`.
        """
        digest = hashlib.sha256(f"{self.outputs} {self.num_classes} {self._identity or ''}".encode())
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
        elif self._identity is None:
            raise ModelError(
                "expected identity='…' for a model that is no torch.nn.Module, got none; "
                "name it so that its memory can refuse another model"
            )
        return digest.hexdigest()


def _attributes(model: nn.Module) -> dict[str, object]:
    """All tensors and plain values of a module that its state dict leaves out.

    The normalisation layer of Cohen et al., for one, keeps its means in a plain attribute.
    """
    state: dict[str, object] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _MARKS:
                state |= _values(f"{path}.{name}", value)
    return state


def _values(name: str, value: object) -> dict[str, object]:
    """What of an attribute can be compared, by name: all of it where it is plain, else what is inside."""
    if _is_plain(value) or isinstance(value, Tensor | np.ndarray | np.generic):
        return {name: value}
    parts: dict[str, object] = {}
    if isinstance(value, Mapping):
        for key, part in value.items():
            parts |= _values(f"{name}[{key!r}]", part)
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            parts |= _values(f"{name}[{i}]", part)
    return parts


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
