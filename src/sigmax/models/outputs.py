"""What models return, as one score per class; and what to do where a model or an input does not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sigmax.errors import ModelError

Outputs = Literal["logits", "probabilities"]
_FEW_CHANNELS = (1, 3, 4)


def as_scores(found: Any, rows: int, num_classes: int, outputs: Outputs) -> Tensor:
    """One score per class, (batch, classes), from what a model returned.

    Taken are such a tensor or array; the only one in a tuple, a list or a dict; the `logits` of an object; one
    number per input for two classes, which is the logit or the probability of class 1; and integer labels.
    """
    scores = _unwrapped(found, rows, num_classes)
    if scores is None:
        raise ModelError(
            f"expected model outputs of shape {(rows, num_classes)}, got {_described(found)}; "
            f"{_hint_for_outputs(found, rows, num_classes)}"
        )
    if scores.dtype == torch.bool:
        raise ModelError("expected one score per class, got booleans; return logits or probabilities")
    if scores.shape == (rows, num_classes):
        return scores
    if not scores.is_floating_point():
        if bool(((scores < 0) | (scores >= num_classes)).any()):
            got = f"labels from {int(scores.min())} to {int(scores.max())}"
            raise ModelError(f"expected labels in 0…{num_classes - 1}, got {got}; check num_classes (--classes)")
        return one_hot(scores.flatten().long(), num_classes).float()
    one = scores.flatten()
    return torch.stack([torch.zeros_like(one) if outputs == "logits" else 1 - one, one], dim=1)


def _unwrapped(found: Any, rows: int, num_classes: int) -> Tensor | None:
    """The tensor that has the scores; None where it is not clear which."""
    if not isinstance(found, Tensor) and (logits := getattr(found, "logits", None)) is not None:
        found = logits
    elif isinstance(found, Mapping):
        found = found.get("logits", list(found.values()))
    if isinstance(found, tuple | list):
        parts = [part for part in map(_tensor, found) if part is not None and part.shape == (rows, num_classes)]
        return parts[0] if len(parts) == 1 else None
    tensor = _tensor(found)
    if tensor is None or tensor.shape == (rows, num_classes):
        return tensor
    is_one_number = tensor.shape in ((rows,), (rows, 1)) and (num_classes == 2 or not tensor.is_floating_point())
    return tensor if is_one_number else None


def _hint_for_outputs(found: Any, rows: int, num_classes: int) -> str:
    """What to do where the scores of such outputs are not clear."""
    one = _tensor(found)
    if one is None:
        return "wrap the model in a function that returns the scores alone"
    if one.shape in ((rows,), (rows, 1)):
        return "one number per input is the score of two classes: num_classes=2 (--classes 2)"
    return f"check num_classes={num_classes} (--classes) against the model"


def _tensor(found: Any) -> Tensor | None:
    if isinstance(found, np.ndarray) and found.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(found))
    return found if isinstance(found, Tensor) else None


def _described(found: Any) -> str:
    if isinstance(found, Tensor):
        return str(tuple(found.shape))
    if isinstance(found, np.ndarray):
        return f"an array of {found.dtype} {found.shape}"
    if isinstance(found, Mapping):
        return f"{type(found).__name__} of {', '.join(f'{key}: {_described(part)}' for key, part in found.items())}"
    if isinstance(found, tuple | list):
        return f"{type(found).__name__} of {', '.join(map(_described, found[:4])) or 'nothing'}"
    return type(found).__name__


def check_callable(model: object) -> None:
    """Refuse what cannot be called, and say what to call instead."""
    if callable(model):
        return
    hint = "wrap it in a function from (batch, …) to (batch, classes)"
    if isinstance(model, str | Path):
        hint = f"load it: sigmax.models.load_model({str(model)!r}).model"
    elif hasattr(model, "predict_proba"):
        hint = 'pass its method predict_proba, with outputs="probabilities"'
    elif isinstance(model, Mapping):
        hint = "it looks like a state dict: load it into its network first"
    raise ModelError(f"expected a model that can be called, got {type(model).__name__}; {hint}")


def hint_for(x: Tensor) -> str:
    """What to try after a model failed on inputs like x, (batch, …)."""
    shape = tuple(x.shape[1:])
    if torch.is_grad_enabled() and x.requires_grad:
        return "an ascent needs gradients through the model; use HalvingSearch (--search halving)"
    if len(shape) == 2:
        return "a single image is a batch of one: x[None]"
    if len(shape) == 3 and shape[-1] in _FEW_CHANNELS and shape[0] not in _FEW_CHANNELS:
        return "channels come first: x.permute(0, 3, 1, 2)"
    if x.dtype == torch.float64:
        return "most models take float32: x.float()"
    return f"check channels, size and dtype ({x.dtype}) of the data against the model"
