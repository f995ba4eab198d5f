"""The Open Inference Protocol, version 2, as pure functions: bytes of a request in, bytes of a reply out.

Tensors come as JSON, or as bytes after the JSON (the binary data extension), which Triton's client sends by default.
"""

import math
import struct
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sigmax.errors import InvalidInputError, did_you_mean, one_line
from sigmax.serve.answer import Answer

INPUT = "image"
VERSION = "1"
EXTENSIONS = ("binary_tensor_data", "binary_data")
ABSTAIN = -1  # the label of an abstention
HEADER = "Inference-Header-Content-Length"

Pixels = NDArray[np.float32]
Decoder = Callable[[bytes], Pixels]  # an image file -> (*dims)

_NUMBERS = {"FP32": "<f4", "UINT8": "u1"}
# Parameters of the protocol that decide nothing here; clients send them unasked.
_IGNORED = {"binary_data_output", "priority", "timeout"}
_QUESTION = ("n", "alpha", "deadline")


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class _Wanted(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Tensor]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Wanted] | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for."""

    images: Pixels  # batch *dims
    id: str
    n: int | None
    alpha: float | None
    deadline: float | None  # seconds
    outputs: tuple[tuple[str, bool], ...]  # names, and whether as bytes


@final
@dataclass(frozen=True, slots=True)
class _Output:
    datatype: str
    of: Callable[[Answer], Any]


# What is answered of each input.
_OUTPUTS = {
    "label": _Output("INT64", lambda answer: ABSTAIN if answer.label is None else answer.label),
    "radius": _Output("FP64", lambda answer: answer.radius),
    "sigma": _Output("FP64", lambda answer: answer.sigma),
    "rule": _Output("BYTES", lambda answer: answer.rule),
    "p_lower": _Output("FP64", lambda answer: answer.p_lower),
    "alpha": _Output("FP64", lambda answer: answer.alpha),
    "n": _Output("INT64", lambda answer: answer.n),
    "recalled": _Output("BOOL", lambda answer: answer.is_recalled),
    "expert": _Output("INT64", lambda answer: answer.expert or 0),
    "tau": _Output("FP64", lambda answer: answer.tau or 0.0),  # 0: this network takes none
}
_KINDS = {"INT64": "<i8", "FP64": "<f8", "BOOL": "?"}


def output_names(*, takes_level: bool) -> tuple[str, ...]:
    """The outputs of a model; only where a network is told a noise level is there a tau."""
    return tuple(name for name in _OUTPUTS if name != "tau" or takes_level)


def model_metadata(name: str, shape: Sequence[int], outputs: Sequence[str]) -> dict[str, Any]:
    """What the protocol says of a model."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "sigmax",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *shape]}],
        "outputs": [{"name": each, "datatype": _OUTPUTS[each].datatype, "shape": [-1]} for each in outputs],
    }


def decode_request(
    body: bytes,
    *,
    header_length: int | None,
    shape: tuple[int, ...],
    outputs: Sequence[str],
    most: int,
    decode_image: Decoder,
) -> Asked:
    """The request in these bytes.

    Args:
        body: JSON, and after it the bytes of tensors.
        header_length: How many bytes the JSON has; None: all.
        shape: Of an image that the model takes.
        outputs: The outputs that there are.
        most: Images that a request may have.
        decode_image: Makes an array of an image file, for inputs of type BYTES.
    """
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise InvalidInputError(f"expected {HEADER} of at most {len(body)}, got {length}; it counts the bytes of JSON")
    try:
        request = msgspec.json.decode(body[:length], type=_Request)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"expected an inference request in JSON, got: {one_line(error)}") from error
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT:
        names = [tensor.name[:40] for tensor in request.inputs[:5]]
        raise InvalidInputError(f"expected one input named {INPUT}, got {names}; see the model's metadata")
    (tensor,) = request.inputs
    images = _images(tensor, memoryview(body)[length:], shape=shape, most=most, decode_image=decode_image)
    n, alpha, deadline = _parameters(request.parameters)
    return Asked(
        images=images, id=request.id, n=n, alpha=alpha, deadline=deadline, outputs=_wanted(request, tuple(outputs))
    )


def encode_reply(
    name: str, asked: Asked, answers: Sequence[Answer], parameters: Mapping[str, Any]
) -> tuple[bytes, int | None]:
    """The reply, and how many of its bytes are JSON; None: all."""
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for output, is_binary in asked.outputs:
        kind = _OUTPUTS[output]
        values = [kind.of(answer) for answer in answers]
        said: dict[str, Any] = {"name": output, "shape": [len(values)], "datatype": kind.datatype}
        if is_binary:
            tail.append(_to_bytes(values, kind.datatype))
            said["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            said["data"] = values
        outputs.append(said)
    reply: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if asked.id:
        reply["id"] = asked.id
    reply |= {"parameters": dict(parameters), "outputs": outputs}
    head = msgspec.json.encode(reply)
    return b"".join([head, *tail]), len(head) if tail else None


def check_parameters(n: object, alpha: object, deadline: object) -> tuple[int | None, float | None, float | None]:
    """The parameters of a question, where they are given."""
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise InvalidInputError(f"expected a whole number n >= 1, got n={n!r:.40}; leave it out for the default")
    for name, value in (("alpha", alpha), ("deadline", deadline)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < float(value) < math.inf):  # type: ignore[arg-type]
            raise InvalidInputError(f"expected {name} > 0, got {name}={value!r:.40}; leave it out for the default")
    return n, _number(alpha), _number(deadline)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _parameters(given: Mapping[str, Any]) -> tuple[int | None, float | None, float | None]:
    for name in given:
        if name not in _QUESTION and name not in _IGNORED and not name.startswith("sequence_"):
            raise InvalidInputError(
                f"expected the parameters {', '.join(_QUESTION)}, got {name[:40]!r}{did_you_mean(name[:40], _QUESTION)}"
            )
    return check_parameters(*(given.get(name) for name in _QUESTION))


def _wanted(request: _Request, known: tuple[str, ...]) -> tuple[tuple[str, bool], ...]:
    """The outputs that are asked for, by default all, and whether as bytes."""
    usual = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return tuple((name, usual) for name in known)
    found = []
    for wanted in request.outputs:
        if wanted.name not in known:
            name = wanted.name[:40]
            raise InvalidInputError(
                f"expected outputs among {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
            )
        if "classification" in wanted.parameters:
            raise InvalidInputError("expected outputs without classification, got one with it; take the label")
        found.append((wanted.name, wanted.parameters.get("binary_data", usual) is True))
    return tuple(dict(found).items())


def _images(tensor: _Tensor, tail: memoryview, *, shape: tuple[int, ...], most: int, decode_image: Decoder) -> Pixels:
    """The images (batch, *dims) of an input."""
    is_encoded = tensor.datatype == "BYTES"
    if not is_encoded and tensor.datatype not in _NUMBERS:
        raise InvalidInputError(f"expected datatype FP32, UINT8 or BYTES, got {tensor.datatype[:40]!r}")
    expected = () if is_encoded else shape
    if len(tensor.shape) != 1 + len(expected) or tuple(tensor.shape[1:]) != expected:
        raise InvalidInputError(f"expected shape [batch{''.join(f', {s}' for s in expected)}], got {tensor.shape[:8]}")
    batch = tensor.shape[0]
    if not 1 <= batch <= most:
        raise InvalidInputError(f"expected 1 to {most} images in a request, got {batch}; send several requests")
    size = tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is None) or (size is not None and size != len(tail)):
        raise InvalidInputError(
            f"expected either data, or binary_data_size as the {len(tail)} bytes after the JSON, got size={size!r:.40}"
        )
    if is_encoded:
        files = _strings(bytes(tail)) if tensor.data is None else _base64(tensor.data)
        if len(files) != batch:
            raise InvalidInputError(f"expected {batch} images, got {len(files)}")
        return np.stack([decode_image(file) for file in files])
    return _numbers(tensor, tail, (batch, *shape))


def _numbers(tensor: _Tensor, tail: memoryview, shape: tuple[int, ...]) -> Pixels:
    """Pixels given as numbers: FP32 as the model takes them, UINT8 as 8-bit images."""
    kind = np.dtype(_NUMBERS[tensor.datatype])
    count = math.prod(shape)
    if tensor.data is None:
        if len(tail) != count * kind.itemsize:
            raise InvalidInputError(f"expected {count * kind.itemsize} bytes of {tensor.datatype}, got {len(tail)}")
        values = np.frombuffer(tail, kind)
    else:
        try:
            values = np.asarray(tensor.data)
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(f"expected data of numbers, got: {one_line(error)}") from error
        is_whole = values.dtype.kind in "iu"
        if not (is_whole or (values.dtype.kind == "f" and tensor.datatype == "FP32")) or values.size != count:
            raise InvalidInputError(f"expected {count} numbers of {tensor.datatype}, got {values.size} of another kind")
        if tensor.datatype == "UINT8" and (values.min() < 0 or values.max() > 255):
            raise InvalidInputError("expected UINT8 from 0 to 255, got others")
        with np.errstate(over="ignore"):  # to infinity, which is refused later
            values = values.astype(kind)
    pixels = values.reshape(shape)
    return pixels.astype(np.float32) / np.float32(255) if tensor.datatype == "UINT8" else pixels.astype(np.float32)


def _strings(tail: bytes) -> list[bytes]:
    """Byte strings, each after its length in four bytes."""
    found, place = [], 0
    while place < len(tail):
        if place + 4 > len(tail):
            raise InvalidInputError("expected byte strings after their lengths, got some bytes too few")
        (length,) = struct.unpack_from("<I", tail, place)
        place += 4 + length
        if place > len(tail):
            raise InvalidInputError("expected byte strings after their lengths, got some bytes too few")
        found.append(tail[place - length : place])
    return found


def _base64(data: object) -> list[bytes]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise InvalidInputError("expected a list of image files in base64, got something else")
    try:
        return [b64decode(text, validate=True) for text in data]
    except (Base64Error, ValueError) as error:
        raise InvalidInputError(f"expected image files in base64, got: {one_line(error)}") from error


def _to_bytes(values: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(text)) + text for text in (str(value).encode() for value in values))
    return np.array(values, dtype=_KINDS[datatype]).tobytes()
