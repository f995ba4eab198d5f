"""Checkpoints: ours (safetensors with a card), and those that others have published.

Nothing is ever unpickled but tensors and plain containers: a checkpoint cannot run code.
"""

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sigmax.errors import ModelError, one_line
from sigmax.files import import_own, write_atomically
from sigmax.models import normalisation
from sigmax.models.architectures import (
    LevelChain,
    build_network,
    matching_architectures,
    network_sizes,
    takes_level,
)
from sigmax.models.classifier import Outputs
from sigmax.models.normalisation import Normalize
from sigmax.models.onnx import OnnxModel

MODEL_FILE = "model.safetensors"
ZOO = "zoo:"
ONNX = ".onnx"
_CARD = "sigmax"
_ZOO_FOLDER = Path(__file__).parent / "zoo"
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
    sigma_range: tuple[float, float] | None = None  # the levels, where they were many
    noise: str | None = None
    method: str | None = None  # how it was trained
    outputs: Outputs = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and what is known about it. A checkpoint gives a module in eval mode, a factory what it likes."""

    model: Callable[[Tensor], Tensor]
    card: ModelCard | None  # None: the model comes from a factory or an ONNX file
    identity: str | None = None  # what tells it from others where its weights alone do not

    @property
    def num_classes(self) -> int | None:
        """How many classes it tells apart; None where it does not say."""
        return told.num_classes if (told := self._told) else None

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one input; None where it does not say."""
        return told.input_shape if (told := self._told) else None

    @property
    def _told(self) -> ModelCard | OnnxModel | None:
        return self.model if isinstance(self.model, OnnxModel) else self.card


def with_normalisation(network: nn.Module, normalize: Normalize) -> nn.Module:
    """The network on inputs in pixel space."""
    model = (LevelChain if takes_level(network) else nn.Sequential)()
    model.add_module("normalize", normalize)
    model.add_module("network", network)
    return model


def save_model(path: Path, network: nn.Module, card: ModelCard, *, in_half: bool = False) -> None:
    """Write weights and card: wholly, or not at all.

    With `in_half` the weights are rounded to 16 bits: half the size, and another network by a little, that
    computes in 32 bits like any other when it is loaded.
    """
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if in_half:
        state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    write_atomically(path, save(state, metadata=card_entry(card)))


def card_entry(card: ModelCard) -> dict[str, str]:
    """How a file carries its card, be it safetensors or a checkpoint of a training."""
    return {_CARD: json.dumps(asdict(card))}


def load_model(
    spec: str,
    *,
    arch: str | None = None,
    normalize: str | None = None,
) -> LoadedModel:
    """Load a model by checkpoint, by run folder, from the zoo, by ONNX file or by `package.module:factory`.

    Args:
        spec: A file in safetensors, torch or ONNX format, a folder with a model.safetensors, `zoo:NAME` for a
            network that comes with this package, or a factory that takes no arguments and returns the model.
        arch: The architecture, where the file does not say it and its tensors do not tell.
        normalize: The normalisation in front of the network, where the file does not say it.
    """
    path = _zoo_file(spec.removeprefix(ZOO)) if spec.startswith(ZOO) else Path(spec)
    if path.is_dir():
        path = path / MODEL_FILE
        if not path.is_file():
            raise ModelError(f"expected {MODEL_FILE} in the folder {spec}, got none; is its training finished?")
    if path.is_file() and path.suffix != ONNX:
        return _load_file(path, arch, normalize)
    module, _, factory = spec.partition(":")
    is_factory = all(name.isidentifier() for name in (*module.split("."), factory))
    if not path.is_file() and not is_factory:
        raise ModelError(
            f"expected a checkpoint, an ONNX file, a folder with {MODEL_FILE}, {ZOO}NAME or package.module:factory, "
            f"got {spec!r}; no such file"
        )
    if arch is not None or normalize is not None:
        raise ModelError(
            f"expected --arch and --normalize only for a checkpoint, got arch={arch}, normalize={normalize}; "
            f"put both into {spec}"
        )
    if path.is_file():
        box = OnnxModel(path)
        return LoadedModel(model=box, card=None, identity=box.identity)
    model = _call_factory(module, factory)
    if isinstance(model, nn.Module):
        return LoadedModel(model=model, card=None, identity=spec)
    identity = getattr(model, "identity", None)
    if not isinstance(identity, str) or not identity:
        raise ModelError(
            f"expected {spec} to return a torch.nn.Module, or a callable with an attribute identity, a text that "
            f"changes whenever its answers do, got {type(model).__name__} without; records and memories know it by that"
        )
    return LoadedModel(model=model, card=None, identity=f"{spec} {identity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What a file says; None where it does not."""

    state: dict[str, Tensor]
    card: ModelCard | None = None
    arch: str | None = None
    normalize: str | None = None


def zoo() -> list[str]:
    """The networks that come with this package."""
    return sorted(path.stem for path in _ZOO_FOLDER.glob("*.safetensors"))


def _zoo_file(name: str) -> Path:
    if name not in zoo():
        raise ModelError(f"expected a network of the zoo ({', '.join(zoo())}), got {name!r}")
    return _ZOO_FOLDER / f"{name}.safetensors"


def _load_file(path: Path, arch: str | None, normalize: str | None) -> LoadedModel:
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    card = content.card or _make_card(path, content, arch, normalize)
    layer = Normalize(card.mean, card.std)
    if (arch is not None and arch != card.arch) or (
        normalize is not None and Normalize.parse(normalize).values != layer.values
    ):
        raise ModelError(
            f"{path}: expected what its card says, arch={card.arch} and {layer}, "
            f"got arch={arch}, normalize={normalize}; leave them out"
        )
    _, in_channels = _sizes(path, card.arch, content.state)
    if card.mean and len(card.mean) != in_channels:
        raise ModelError(f"{path}: expected a normalisation of {in_channels} channels, got {layer}; check --normalize")
    network = build_network(card.arch, num_classes=card.num_classes, in_channels=in_channels)
    try:
        network.load_state_dict(content.state)
    except RuntimeError as error:
        got = one_line(error)
        raise ModelError(f"{path}: expected the weights of {card.arch}, got: {got}; check --arch") from error
    return LoadedModel(model=with_normalisation(network, layer).eval(), card=card)


def _make_card(path: Path, content: _Content, arch: str | None, normalize: str | None) -> ModelCard:
    """The card of a checkpoint that brings none, from what it says and what the user says."""
    arch = arch or content.arch or _arch_of(content.state, path)
    normalize = normalize or content.normalize
    if normalize is None:
        raise ModelError(
            f"{path}: expected the normalisation in front of the network, got none in the file; "
            f"say --normalize {normalisation.SPELLINGS}"
        )
    mean, std = Normalize.parse(normalize).values
    num_classes, _ = _sizes(path, arch, content.state)
    return ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std)


def _read_safetensors(path: Path) -> _Content:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: expected a whole safetensors file, got: {error}; it may be cut off") from error
    card = _parse_card(metadata[_CARD], path) if _CARD in metadata else None
    return _Content(state=_strip_prefixes(state), card=card)


def _read_torch(path: Path) -> _Content:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        code = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if code:
            raise ModelError(
                f"{path}: expected tensors only, got {code[1]}; it was not loaded, because a pickle can run code"
            ) from error
        # Not in torch's words: it advises to load what can run code.
        got = f"{type(error).__name__}; it may be another kind of file, or cut off"
        raise ModelError(f"{path}: expected a torch checkpoint, got {got}") from error
    said = content if isinstance(content, dict) else {}
    state = said.get("state_dict", said.get("net", content))
    if not isinstance(state, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in state.items()):
        got = f"a dict of {[str(key) for key in said][:8]}" if said else type(content).__name__
        raise ModelError(f"{path}: expected a state dict, alone or under 'state_dict' or 'net', got {got}")
    return _Content(
        state=_strip_prefixes(state),
        card=_parse_card(said[_CARD], path) if _CARD in said else None,  # of a training under way
        arch=_PUBLISHED_NAMES.get(str(said.get("arch"))),  # Cohen et al. and SmoothAdv say it
        normalize="none" if "net" in said else None,  # MACER: pixels go in as they are
    )


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


def _sizes(path: Path, arch: str, state: dict[str, Tensor]) -> tuple[int, int]:
    sizes = network_sizes(arch, state)
    if sizes is None:
        raise ModelError(
            f"{path}: expected the weights of {arch}, got {len(state)} tensors without its first or last layer; "
            "check --arch"
        )
    return sizes


def _parse_card(text: str, path: Path) -> ModelCard:
    try:
        fields = json.loads(text)
        for name in ("input_shape", "mean", "std", "class_names", "sigma_range"):
            fields[name] = tuple(fields[name]) if fields.get(name) is not None else None
        return ModelCard(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path}: expected a card that this version reads, got: {error}") from error


def _call_factory(module: str, factory: str) -> Callable[[Tensor], Tensor]:
    try:
        model = getattr(import_own(module), factory)()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected {module}:{factory} to return a model, got {got}") from error
    if not callable(model):
        raise ModelError(f"expected {module}:{factory} to return a model, got {type(model).__name__}")
    return model  # type: ignore[no-any-return]
