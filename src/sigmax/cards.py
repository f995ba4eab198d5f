"""The card of a network, and the networks of this package. Nothing here imports torch, so lists print at once."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sigmax.errors import ModelError
from sigmax.files import write_atomically
from sigmax.plain import from_plain, to_plain

ZOO = "zoo:"
CARD = "sigmax"  # the entry of a file's metadata that holds the card
# Other names for networks of the zoo. `cifar10-aware` is the best noise-aware one.
ZOO_ALIASES = {"cifar10-aware": "cifar10-aware-cohen"}
_FOLDER = Path(__file__).parent / "models" / "zoo"
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What certification and readers need to know about a network, beside its weights."""

    arch: str
    num_classes: int
    input_shape: tuple[int, ...] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] = ()
    sigma: float | None = None  # noise level of the training
    sigma_range: tuple[float, float] | None = None  # noise levels of the training, if it had several
    noise: str | None = None
    method: str | None = None  # training method
    outputs: Literal["logits", "probabilities"] = "logits"
    data: str | None = None  # the data set of the training
    noisy_accuracy: tuple[tuple[float, float], ...] = ()  # (sigma, share of images right under one draw of noise)
    licence: str | None = None
    preprocess: str | None = None  # how image files become its inputs, as in `sigmax.data.preprocessing`


def card_entry(card: ModelCard) -> dict[str, str]:
    """The entry that holds the card in a safetensors file or a training checkpoint."""
    return {CARD: json.dumps(to_plain(card))}


def parse_card(path: Path, text: str) -> ModelCard:
    """The card in an entry of this file."""
    try:
        return from_plain(ModelCard, json.loads(text), where="card")
    except ValueError as error:
        raise ModelError(f"{path}: expected a card that this version reads, got: {error}") from error


def read_card(path: Path) -> ModelCard | None:
    """The card of a safetensors file; None if it has none. Only its header is read."""
    header, _ = _read_header(path)
    entry = header.get("__metadata__", {}).get(CARD)
    return None if entry is None else parse_card(path, entry)


def replace_card(path: Path, card: ModelCard) -> None:
    """Give a safetensors file another card, atomically. Its tensors keep their bytes."""
    header, size = _read_header(path)
    header["__metadata__"] = header.get("__metadata__", {}) | card_entry(card)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    write_atomically(path, len(text).to_bytes(8, "little") + text + path.read_bytes()[size:])


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and how many bytes it takes."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return json.loads(file.read(min(size, path.stat().st_size))), 8 + size
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: expected a whole safetensors file, got: {error}; it may be cut off") from error


def zoo() -> list[str]:
    """The names of the networks in this package, without aliases."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in _FOLDER.glob(f"*{_SUFFIX}"))


def zoo_file(name: str, *, is_new: bool = False) -> Path:
    """The file of a network of the zoo; of one that is still to be written if `is_new`."""
    name = ZOO_ALIASES.get(name, name)
    if name not in zoo() and not is_new:
        raise ModelError(
            f"expected a network of the zoo ({', '.join(zoo())}), got {name!r}; `sigmax models` lists them"
        )
    return _FOLDER / f"{name}{_SUFFIX}"
