"""Checkpoints: ours (safetensors with a card), and those that others have published.

Nothing is ever unpickled but tensors and plain containers: a checkpoint cannot run code.
"""

import importlib
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sigmax.errors import ModelError
from sigmax.files import write_atomically
from sigmax.models import normalisation
from sigmax.models.architectures import build_network, matching_architectures
from sigmax.models.classifier import Outputs
from sigmax.models.normalisation import Normalize

MODEL_FILE = "model.safetensors"
_CARD = "sigmax"
_PUBLISHED_NAMES = {"cifar_resnet20": "resnet20", "cifar_resnet110": "resnet110", "resnet50": "resnet50"}
_PREFIXES = ("module.", "1.", "network.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What must be known beside the weights to certify a network."""

    arch: str
    num_classes: int
    input_shape: tuple[int, ...] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    sigma: float | None = None  # the noise level it was trained with
    noise: str | None = None
    outputs: Outputs = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model in eval mode and what is known about it; None where its source does not say."""

    model: Callable[[Tensor], Tensor]
    card: ModelCard | None


def with_normalisation(network: nn.Module, normalize: Normalize) -> nn.Module:
    """The network on inputs in pixel space."""
    model = nn.Sequential()
    model.add_module("normalize", normalize)
    model.add_module("network", network)
    return model


def save_model(path: Path, network: nn.Module, card: ModelCard) -> None:
    """Write weights and card: wholly, or not at all."""
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    write_atomically(path, save(state, metadata={_CARD: json.dumps(asdict(card))}))


def load_model(
    spec: str,
    *,
    arch: str | None = None,
    normalize: str | None = None,
) -> LoadedModel:
    """Load a model by checkpoint, by run folder or by `package.module:factory`.

    Args:
        spec: A file in safetensors or torch format, a folder with a model.safetensors, or a factory that
            takes no arguments and returns the model.
        arch: The architecture, where the file does not say it and its tensors do not tell.
        normalize: The normalisation in front of the network, where the file does not say it.
    """
    path = Path(spec)
    if path.is_dir():
        path = path / MODEL_FILE
    if path.is_file():
        return _load_file(path, arch, normalize)
    module, colon, factory = spec.partition(":")
    if colon and not path.suffix:
        return LoadedModel(model=_call_factory(module, factory), card=None)
    raise ModelError(
        f"expected a checkpoint, a folder with {MODEL_FILE} or package.module:factory, got {spec!r}; no such file"
    )


def _load_file(path: Path, arch: str | None, normalize: str | None) -> LoadedModel:
    state, card, says_no_normalisation = _read(path)
    if card is None:
        state = _strip_prefixes(state)
        arch = arch or _published_arch(path) or _arch_of(state, path)
        if normalize is None and not says_no_normalisation:
            raise ModelError(
                f"{path}: expected the normalisation in front of the network, got none in the file; "
                f"say --normalize {normalisation.SPELLINGS}"
            )
        layer = Normalize.parse(normalize or "none")
        matrices = [tensor for tensor in state.values() if tensor.ndim >= 2]
        if not matrices:
            raise ModelError(f"{path}: expected the weights of a network, got {len(state)} tensors")
        num_classes, in_channels = matrices[-1].shape[0], matrices[0].shape[1]
        mean, std = layer.values
        card = ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std)
    else:
        layer = Normalize(card.mean, card.std)
        in_channels = card.input_shape[0] if card.input_shape else 3
    network = build_network(card.arch, num_classes=card.num_classes, in_channels=in_channels)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:300]
        raise ModelError(f"{path}: expected the weights of {card.arch}, got: {problem}; check --arch") from error
    return LoadedModel(model=with_normalisation(network, layer).eval(), card=card)


def _read(path: Path) -> tuple[dict[str, Tensor], ModelCard | None, bool]:
    """Tensors, card, and whether the file is of a kind that is known to have no normalisation."""
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: expected a whole safetensors file, got: {error}; it may be cut off") from error
        return state, _parse_card(metadata[_CARD], path) if _CARD in metadata else None, False
    content = _torch_load(path)
    if "state_dict" in content:  # Cohen et al., SmoothAdv
        return content["state_dict"], None, False
    if "net" in content:  # MACER: pixels go in as they are
        return content["net"], None, True
    return content, None, False


def _torch_load(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = "something other than tensors" if "Unsupported global" in str(error) else "a broken file"
        raise ModelError(
            f"{path}: expected tensors only, got {reason}; it was not loaded, because a pickle can run code"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: expected a whole torch checkpoint, got: {error}; it may be cut off") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a dict of tensors, got {type(content).__name__}")
    return content


def _published_arch(path: Path) -> str | None:
    if path.suffix == ".safetensors":
        return None
    name = _torch_load(path).get("arch")
    return _PUBLISHED_NAMES.get(name, name) if isinstance(name, str) else None


def _strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop what wrappers put before every name, such as `1.module.`."""
    for prefix in _PREFIXES * 2:
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _arch_of(state: dict[str, Tensor], path: Path) -> str:
    found = matching_architectures(state)
    if len(found) == 1:
        return found[0]
    got = f"{' or '.join(found)} by its tensors" if found else "tensors of none that is known"
    raise ModelError(f"{path}: expected the architecture, got {got}; say --arch NAME")


def _parse_card(text: str, path: Path) -> ModelCard:
    try:
        fields = json.loads(text)
        for name in ("input_shape", "mean", "std", "class_names"):
            fields[name] = tuple(fields[name]) if fields[name] is not None else None
        return ModelCard(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path}: expected a card that this version reads, got: {error}") from error


def _call_factory(module: str, factory: str) -> Callable[[Tensor], Tensor]:
    if "" not in sys.path:
        sys.path.insert(0, "")  # the user's own module beside the command, as `python -m` finds it
    try:
        model = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ModelError(f"expected package.module:factory, got {module}:{factory}: {error}") from error
    if not callable(model):
        raise ModelError(f"expected {module}:{factory} to return a model, got {type(model).__name__}")
    return model  # type: ignore[no-any-return]
