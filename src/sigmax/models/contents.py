"""Everything in a model that decides what it computes, wherever its attributes keep it; and a digest of it."""

import copyreg
import functools
import hashlib
import io
import re
import types
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_PLAIN = (
    *(types.NoneType, bool, int, float, complex, str, bytes, Enum, range, slice, np.generic, np.dtype, PurePath),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, types.EllipsisType),
)
_NAMED = (type, types.ModuleType, types.GenericAlias, types.UnionType)
_SCRIPTS = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # the only ones that change outputs
# Attributes that every module has and the walk reads in its own way, and marks of torch.compile.
_OWN = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set) or value is None} | {
    *("_is_torch_compile", "_compile_kwargs", "_compiled_call_impl")
}
_OLD_SETTING = "float32_matmul_precision"  # read by a function; the others are in torch.backends
# Settings of torch that change outputs by far more than rounding, with their usual values.
_ARITHMETIC = {
    _OLD_SETTING: "highest",
    "fp32_precision": "none",
    "cuda.matmul.fp32_precision": "none",
    "cudnn.conv.fp32_precision": "tf32",
    "mkldnn.matmul.fp32_precision": "none",
    "mkldnn.conv.fp32_precision": "none",
}


class Uncompared:
    """Keeps a value out of the contents of the module that holds it."""

    def __init__(self, value: Any) -> None:
        self.value = value


@final
class Contents:
    """What decides the outputs of a model, as it is whenever asked.

    Attributes that a module did not have at first are left out: forward passes add them, such as kept feature maps.
    """

    def __init__(self, model: object) -> None:
        self._model = model
        self._first = frozenset(place for place, _ in _parts(model))

    def digest(self, unknown: Callable[[str, object], str]) -> str:
        """A digest of all parts. `unknown` gives a text for a part that cannot be compared, or refuses it."""
        return _digest(_parts(self._model, first=self._first), unknown)


def modules_in(model: object) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model by place, also those in lists, dicts, partials and other attributes."""
    for place, part in _parts(model):
        if isinstance(part, torch.jit.ScriptModule):
            yield from ((f"{place}.{name}".strip("."), module) for name, module in part.named_modules())
        elif isinstance(part, nn.Module):
            yield place, part


def find_incomparable(model: object) -> tuple[str, object] | None:
    """The first part that cannot be compared with that of another model, and its place."""
    return next(((place, part) for place, part in _parts(model) if _text(part) is None), None)


def arithmetic() -> str:
    """Global settings of torch that change the outputs of a network; empty if all have their usual values."""
    found = list[str]()
    for name, usual in _ARITHMETIC.items():
        try:
            value = torch.get_float32_matmul_precision() if name == _OLD_SETTING else attrgetter(name)(torch.backends)
        except (AttributeError, RuntimeError):  # not in this version of torch, or unreadable because a newer one is set
            continue
        if value not in (usual, "ieee" if usual == "none" else usual):  # "ieee" says "none" aloud
            found.append(f"{name}={value}")
    return ", ".join(found)


def _parts(
    value: object, place: str = "", *, first: frozenset[str] | None = None, seen: dict[int, object] | None = None
) -> Iterator[tuple[str, object]]:
    """A value and all that it holds, by place. What is met again is not entered again, so that cycles end."""
    seen = {} if seen is None else seen
    yield place, value
    if isinstance(value, (Tensor, np.ndarray, RemovableHandle, *_PLAIN, *_NAMED)) or id(value) in seen:
        return
    if not isinstance(value, tuple):
        seen[id(value)] = value  # kept alive, so that no other value gets its id
    for name, part in _held(value):
        inner = f"{place}.{name}" if place else name
        is_later = first is not None and inner not in first and isinstance(value, nn.Module)
        if not (is_later and name in vars(value)):
            yield from _parts(part, inner, first=first, seen=seen)


def _held(value: object) -> Iterator[tuple[str, object]]:
    """What a value holds directly, by name."""
    if isinstance(value, Uncompared):
        return
    if isinstance(value, torch.jit.ScriptModule):
        yield from (*value.named_parameters(), *value.named_buffers())
        for name, module in value.named_modules():
            kind: Any = torch._C.ConcreteModuleType.from_jit_type(module._c._type())
            attributes = sorted(kind.get_attributes())
            yield from ((f"{name}.{attribute}", getattr(module, attribute)) for attribute in attributes)
    elif isinstance(value, nn.Module):
        if "_orig_mod" in value._modules:  # torch.compile wraps the network in a module
            yield "_orig_mod", value._modules["_orig_mod"]
            return
        yield from value._modules.items()
        yield from value._parameters.items()
        yield from value._buffers.items()
        for kind in _HOOKS:
            yield from ((f"{kind}[{i}]", hook) for i, hook in enumerate(getattr(value, kind).values()))
        yield from ((name, part) for name, part in sorted(vars(value).items()) if name not in _OWN)
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("func", value.__func__), ("self", value.__self__))
    elif isinstance(value, types.FunctionType):
        if not _is_importable(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            yield from (("closure", cells), ("defaults", value.__defaults__), ("kwdefaults", value.__kwdefaults__))
    else:
        if isinstance(value, Mapping):
            for i, (key, part) in enumerate(value.items()):
                yield from ((f"key{i}", key), (f"[{key if isinstance(key, str | int) else i}]", part))
        elif isinstance(value, AbstractSet):
            ordered = sorted(value, key=lambda part: _digest(_parts(part), lambda *_: ""))
            yield from ((f"{{{i}}}", part) for i, part in enumerate(ordered))
        elif isinstance(value, tuple | list | deque):
            yield from ((f"[{i}]", part) for i, part in enumerate(value))
        yield from sorted(_attributes(value).items())


def _attributes(value: object) -> dict[str, object]:
    """The attributes of an object, in a dict of its own or in slots."""
    slots = [name for kind in type(value).__mro__ for name in copyreg._slotnames(kind)]  # type: ignore[attr-defined]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _digest(parts: Iterator[tuple[str, object]], unknown: Callable[[str, object], str]) -> str:
    digest, seen = hashlib.sha256(), dict[int, str]()
    for place, part in parts:
        text = _text(part)
        if text is None:
            text = unknown(place, part)
        digest.update(f"{place}\0{text}\0".encode())
        if isinstance(part, Tensor):
            # Strided and plain, in which every tensor can be written down.
            part = part.detach().dequantize() if part.is_quantized else part.detach()
            part = (part if part.layout == torch.strided else part.to_dense()).cpu().contiguous()
            digest.update(part.flatten().view(torch.uint8).numpy().data)
        elif isinstance(part, np.ndarray):
            digest.update(np.ascontiguousarray(part).tobytes())
        elif not isinstance(part, (tuple, *_PLAIN)):
            digest.update(seen.setdefault(id(part), place).encode())  # one thing in two places, or two equal things
    return digest.hexdigest()


def _text(part: object) -> str | None:
    """What a part is, without what it holds; None if nothing says it."""
    kind = type(part).__qualname__
    if isinstance(part, Tensor):
        return f"tensor {part.dtype} {tuple(part.shape)} {part.layout}"
    if isinstance(part, np.ndarray):
        return None if part.dtype.hasobject else f"numpy {part.dtype} {part.shape}"
    if isinstance(part, _PLAIN):
        return f"{kind} {part!r}"
    if isinstance(part, types.FunctionType):
        return f"{part.__module__}.{part.__qualname__} {'' if _is_importable(part) else _code(part.__code__)}"
    if isinstance(part, types.BuiltinFunctionType) and isinstance(part.__self__, types.ModuleType | type | None):
        return f"{part.__module__}.{part.__qualname__}"
    if isinstance(part, types.MethodDescriptorType | types.WrapperDescriptorType | np.ufunc):
        return repr(part)
    if isinstance(part, type | types.ModuleType):
        return f"{getattr(part, '__module__', '')} {getattr(part, '__qualname__', part.__name__)}"
    if isinstance(part, types.GenericAlias | types.UnionType):
        return repr(part)
    if isinstance(part, _SCRIPTS):
        return f"script {_script_code(part)}"
    if isinstance(part, Mapping | AbstractSet | tuple | list | deque):
        return f"{kind} {len(part)}"
    is_known = isinstance(part, nn.Module | Uncompared | RemovableHandle | functools.partial | types.MethodType)
    return kind if is_known or _is_of_python(part) else None


def _is_of_python(value: object) -> bool:
    """Whether its attributes are all that it holds. The rules of pickle tell objects with a state in C."""
    kind = type(value)
    is_usual = kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__
    if not is_usual or not isinstance(kind.__getstate__, types.FunctionType | type(object.__getstate__)):
        return False
    try:
        object.__reduce_ex__(value, 2)
    except Exception:  # it refuses, or the user's own code does
        return False
    return True


def _is_importable(function: types.FunctionType) -> bool:
    """Whether its name identifies it: lambdas and functions inside functions share names."""
    return "<" not in function.__qualname__ and not function.__closure__


def _code(code: types.CodeType) -> str:
    constants = [_code(value) if isinstance(value, types.CodeType) else repr(value) for value in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names}"


def _script_code(script: Any) -> str:
    """A digest of TorchScript code and its constants.

    torch numbers classes of the same name as they come; here they are numbered by their order in the code.
    """
    digest, numbers = hashlib.sha256(), dict[str, int]()

    def renumber(found: re.Match[str]) -> str:
        return f"mangle_{numbers.setdefault(found[0], len(numbers))}"

    with zipfile.ZipFile(io.BytesIO(script.save_to_buffer())) as archive:
        for name in archive.namelist():
            _, _, inner = name.partition("/")
            if inner.startswith("code/") and inner.endswith(".py"):
                text = re.sub(r"___torch_mangle_\d+", renumber, f"{inner} {archive.read(name).decode()}")
                digest.update(text.encode())
            elif inner.startswith("constants"):
                digest.update(archive.read(name))
    return digest.hexdigest()
