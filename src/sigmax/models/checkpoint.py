"""Load models: our checkpoints (safetensors with a card), published ones, ONNX files and users' factories.

Only tensors and plain containers are unpickled, so that a checkpoint cannot run code.
"""

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sigmax.cards import CARD, ZOO, ModelCard, card_entry, parse_card, zoo_file
from sigmax.errors import InvalidInputError, ModelError, one_line
from sigmax.files import write_atomically
from sigmax.models import normalisation
from sigmax.models.architectures import ARCHITECTURES, build_network, matching_architectures, network_sizes
from sigmax.models.contents import find_incomparable
from sigmax.models.ensemble import Ensemble
from sigmax.models.hub import HUBS, HubModel
from sigmax.models.levels import LevelChain, takes_level
from sigmax.models.normalisation import Normalize
from sigmax.models.onnx import OnnxModel
from sigmax.named import import_own

MODEL_FILE = "model.safetensors"
ONNX = ".onnx"
_PUBLISHED_NAMES = {"cifar_resnet20": "resnet20", "cifar_resnet110": "resnet110", "resnet50": "resnet50"}
_PREFIXES = ("module.", "1.", "network.")
_MEAN = ".running_mean"
_RENAMED = {"linear": "fc", "shortcut": "downsample"}  # what many others call these layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and what is known about it. A checkpoint gives a module in eval mode, a factory any callable."""

    model: Callable[[Tensor], Tensor]
    card: ModelCard | None = None  # None: the model comes from a factory or an ONNX file
    identity: str | None = None  # identifies the model where its weights alone do not
    num_classes: int | None = None  # None: unknown
    input_shape: tuple[int, ...] | None = None  # of one input; None: unknown
    preprocess: str | None = None  # how image files become its inputs; None: unknown


def with_normalisation(
    network: nn.Module, normalize: Normalize, *, level_range: tuple[float, float] | None = None
) -> nn.Module:
    """Put the normalisation before the network, so that its inputs are pixels.

    `level_range` is the range of noise levels that a noise-aware network was trained for. It then rounds what it is
    told to its nearest level; see `nearest_level`.
    """
    parts = OrderedDict(normalize=normalize, network=network)
    if not takes_level(network):
        return nn.Sequential(parts)
    chain = LevelChain(parts)
    chain.level_range = level_range
    return chain


def save_model(path: Path, network: nn.Module, card: ModelCard, *, in_half: bool = False) -> None:
    """Write weights and card to a file, atomically.

    `in_half` rounds the weights to 16 bits for half the size. That changes the network a little; once loaded, it
    computes in 32 bits as usual.
    """
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if in_half:
        state = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    write_atomically(path, save(state, metadata=card_entry(card)))


def load_model(spec: str, *, arch: str | None = None, normalize: str | None = None) -> LoadedModel:
    """Load a model from a checkpoint, a run folder, the zoo, an ONNX file or `package.module:factory`.

    A+B is the ensemble of A and B: the mean of their logits.

    Args:
        spec: A file in safetensors, torch or ONNX format; a folder with a model.safetensors; `zoo:NAME` for a network
            of this package; `hf:NAME` or `timm:NAME` for one of transformers or timm; or a factory, which takes no
            arguments and returns the model.
        arch: The architecture. Needed only if neither the file nor the shapes of its tensors identify it.
        normalize: The normalisation before the network. Needed only if the file does not record it.
    """
    if len(members := member_names(spec)) > 1:
        return _as_ensemble(spec, [load_model(member, arch=arch, normalize=normalize) for member in members])
    for prefix, load in HUBS.items():
        if spec.startswith(prefix):
            _refuse_options(spec, arch, normalize)
            return _from_hub(spec, load(spec.removeprefix(prefix)))
    path = zoo_file(spec.removeprefix(ZOO)) if spec.startswith(ZOO) else Path(spec)
    if path.is_dir():
        path = path / MODEL_FILE
        if not path.is_file():
            raise ModelError(f"expected {MODEL_FILE} in the folder {spec}, got none; is its training finished?")
    if path.is_file() and path.suffix != ONNX:
        return _load_file(path, arch, normalize)
    module, _, factory = spec.partition(":")
    if not path.is_file() and not all(name.isidentifier() for name in (*module.split("."), factory)):
        raise ModelError(
            f"expected a checkpoint, an ONNX file, a folder with {MODEL_FILE}, {ZOO}NAME, hf:NAME, timm:NAME or "
            f"package.module:factory, got {spec!r}; no such file"
        )
    _refuse_options(spec, arch, normalize)
    if path.is_file():
        box = OnnxModel(path)
        return LoadedModel(model=box, identity=box.identity, num_classes=box.num_classes, input_shape=box.input_shape)
    return _load_own(spec)


def member_names(spec: str) -> list[str]:
    """The names of the members of an ensemble, or the only name; a file may have a + in its name."""
    return [spec] if Path(spec).exists() else spec.split("+")


def _as_ensemble(spec: str, members: list[LoadedModel]) -> LoadedModel:
    """The members as one model; its card says what all of their cards say."""
    networks = [member.model for member in members if isinstance(member.model, nn.Module)]
    cards = [member.card for member in members if member.card is not None]
    if len(networks) < len(members) or any(card.outputs != "logits" for card in cards):
        raise ModelError(f"{spec}: expected an ensemble of torch.nn.Modules that return logits, got others")
    for name in ("num_classes", "input_shape"):
        if len(found := {getattr(member, name) for member in members} - {None}) > 1:
            raise ModelError(f"{spec}: expected members with the same {name}, got {' and '.join(map(str, found))}")
    if len({card.class_names for card in cards} - {()}) > 1:
        raise ModelError(f"{spec}: expected members with the same classes, got different names or orders")
    first, named = members[0], [member.identity for member in members if member.identity]
    card = None
    if len(cards) == len(members):
        ranges = [card.sigma_range for card in cards if card.sigma_range]
        low, high = (max(low for low, _ in ranges), min(high for _, high in ranges)) if ranges else (0.0, 0.0)
        card = replace(
            cards[0],
            arch="+".join(card.arch for card in cards),
            mean=(),  # each member normalises its inputs itself
            std=(),
            sigma_range=(low, high) if low < high else None,
            **{name: _shared([getattr(card, name) for card in cards]) for name in ("sigma", "noise", "method")},
        )
    return replace(first, model=Ensemble(networks), card=card, identity="+".join(named) or None)


def _shared(values: list[Any]) -> Any:
    """The value that all have, else None."""
    return values[0] if len(set(values)) == 1 else None


def _refuse_options(spec: str, arch: str | None, normalize: str | None) -> None:
    if arch is not None or normalize is not None:
        raise ModelError(
            f"expected --arch and --normalize only for a checkpoint, got arch={arch}, normalize={normalize}; "
            f"put both into {spec}"
        )


def _from_hub(spec: str, found: HubModel) -> LoadedModel:
    return LoadedModel(
        model=with_normalisation(found.network, found.normalize).eval(),
        identity=spec,
        num_classes=found.num_classes,
        input_shape=found.input_shape,
        preprocess=found.preprocess,
    )


def _load_file(path: Path, arch: str | None, normalize: str | None) -> LoadedModel:
    state, said = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    state = _usual_names(state)
    card = parse_card(path, said[CARD]) if CARD in said else _make_card(path, state, said, arch, normalize)
    layer = Normalize(card.mean, card.std)
    is_other = normalize is not None and Normalize.parse(normalize).values != layer.values
    if arch not in (None, card.arch) or is_other:
        raise ModelError(
            f"{path}: expected what its card says, arch={card.arch} and {layer}, "
            f"got arch={arch}, normalize={normalize}; leave them out"
        )
    _, in_channels = _sizes(path, card.arch, state)
    if card.mean and len(card.mean) != in_channels:
        raise ModelError(f"{path}: expected a normalisation of {in_channels} channels, got {layer}; check --normalize")
    network = build_network(card.arch, num_classes=card.num_classes, in_channels=in_channels)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        got = one_line(error)
        raise ModelError(f"{path}: expected the weights of {card.arch}, got: {got}; check --arch") from error
    model = with_normalisation(network, layer, level_range=card.sigma_range).eval()
    return LoadedModel(
        model=model,
        card=card,
        num_classes=card.num_classes,
        input_shape=card.input_shape,
        preprocess=card.preprocess or ARCHITECTURES[card.arch].preprocess,
    )


def _usual_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that our architectures use."""
    for prefix in _PREFIXES * 2:  # wrappers put these before every name, such as `1.module.`
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    state = {".".join(_RENAMED.get(part, part) for part in name.split(".")): t for name, t in state.items()}
    for name in [name for name in state if name.endswith(_MEAN)]:  # batch norm counts batches since torch 0.4.1
        state.setdefault(name.removesuffix(_MEAN) + ".num_batches_tracked", torch.tensor(0))
    return state


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, and the card if it has one."""
    try:
        with safe_open(path, framework="pt") as file:
            said = {key: text for key, text in (file.metadata() or {}).items() if key == CARD}
            return {name: file.get_tensor(name) for name in file.keys()}, said  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: expected a whole safetensors file, got: {error}; it may be cut off") from error


def _read_torch(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, and what else the checkpoint says."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        code = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if code:
            raise ModelError(
                f"{path}: expected tensors only, got {code[1]}; it was not loaded, because a pickle can run code"
            ) from error
        # torch's own message is left out: it recommends a way of loading that can run code.
        got = f"{type(error).__name__}; it may be another kind of file, or cut off"
        raise ModelError(f"{path}: expected a torch checkpoint, got {got}") from error
    said = content if isinstance(content, dict) else {}
    state = said.get("state_dict", said.get("net", content))
    if not isinstance(state, dict) or not all(isinstance(n, str) and isinstance(t, Tensor) for n, t in state.items()):
        got = f"a dict of {[str(key) for key in said][:8]}" if said else type(content).__name__
        raise ModelError(f"{path}: expected a state dict, alone or under 'state_dict' or 'net', got {got}")
    return state, said


def _make_card(
    path: Path, state: dict[str, Tensor], said: dict[str, Any], arch: str | None, normalize: str | None
) -> ModelCard:
    """The card of a checkpoint without one, from the user's options and the checkpoint."""
    arch = arch or _PUBLISHED_NAMES.get(str(said.get("arch")))  # Cohen et al. and SmoothAdv say it
    if arch is None:
        found = matching_architectures(state)
        if len(found) != 1:
            got = f"{' or '.join(found)} by its tensors" if found else "tensors of no known one"
            raise ModelError(f"{path}: expected one architecture, got {got}; say --arch NAME")
        arch = found[0]
    # MACER does not normalise. Its files have "net", and no accuracy beside it as some others do.
    normalize = normalize or ("none" if "net" in said and "acc" not in said else None)
    if normalize is None:
        raise ModelError(
            f"{path}: expected the normalisation before the network, got none in the file; "
            f"say --normalize {normalisation.SPELLINGS}"
        )
    mean, std = Normalize.parse(normalize).values
    num_classes, _ = _sizes(path, arch, state)
    return ModelCard(arch=arch, num_classes=num_classes, mean=mean, std=std)


def _sizes(path: Path, arch: str, state: dict[str, Tensor]) -> tuple[int, int]:
    """Classes and input channels."""
    sizes = network_sizes(arch, state)
    if sizes is None:
        raise ModelError(
            f"{path}: expected the weights of {arch}, got {len(state)} tensors without its first or last layer; "
            "check --arch"
        )
    return sizes


def _load_own(spec: str) -> LoadedModel:
    """The model that a factory of the user's own returns."""
    try:
        factory = import_own(spec)
    except InvalidInputError as error:
        raise ModelError(f"{spec}: {error}") from error
    try:
        model = factory()
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        got = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(f"expected {spec} to return a model, got {got}") from error
    if not callable(model):
        raise ModelError(f"expected {spec} to return a model, got {type(model).__name__}")
    identity, preprocess = getattr(model, "identity", None), getattr(model, "preprocess", None)
    if isinstance(identity, str) and identity:
        return LoadedModel(model=model, identity=f"{spec} {identity}", preprocess=preprocess)
    unknown = find_incomparable(model) if isinstance(model, nn.Module) else ("", model)
    if unknown is not None:
        place, part = unknown
        got = f"{type(part).__qualname__} in {place}" if place else type(part).__qualname__
        raise ModelError(
            f"expected {spec} to return a torch.nn.Module of parts that a fingerprint can cover, got {got}; "
            "add an attribute identity, a text that changes whenever its answers do"
        )
    return LoadedModel(model=model, identity=spec, preprocess=preprocess if isinstance(preprocess, str) else None)
