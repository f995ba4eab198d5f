"""Typed values as plain JSON values and back. msgspec checks and converts; this adds names and strictness."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from sigmax.errors import InvalidInputError, did_you_mean
from sigmax.named import Named, check_settings, find_class, name_of

T = TypeVar("T")
N = TypeVar("N", bound=Named)


def to_plain(value: Any) -> Any:
    """The value in dicts, lists, texts and numbers; a named thing says its name and revision first.

    Infinity becomes the text "inf": JSON has no such number.
    """
    if isinstance(value, Named):
        return {"name": name_of(type(value)), "revision": value.revision, **to_plain(value.settings())}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidInputError(
        f"expected plain values (numbers, texts, lists) as settings, got {value!r}; let settings() return such values, "
        "such as a digest"
    )


def from_plain(kind: type[T], value: Any, *, where: str = "") -> T:
    """The value of this type. Unknown keys and wrong types are refused by their place; texts may stand for numbers."""
    try:
        _check_keys(kind, value, where)
        return msgspec.convert(value, kind, strict=False, dec_hook=_named)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$").lstrip(".")
        place = ".".join(filter(None, (where, place)))
        raise InvalidInputError(f"{place}: {problem[:1].lower()}{problem[1:]}" if place else problem) from error


def make_named(base: type[N], name: str, given: Mapping[str, Any], *, where: str = "") -> N:
    """The named thing below `base` with these settings."""
    kind = find_class(base, name)
    check_settings(kind, given)
    if is_dataclass(kind):
        return from_plain(kind, dict(given), where=where)
    return kind(**typed_arguments(kind.__init__, given, where=where))


def typed_arguments(function: Callable[..., Any], given: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
    """Plain arguments as the types that this function declares."""
    hints = get_type_hints(function)
    return {
        key: from_plain(hints.get(key, Any), value, where=f"{where}.{key}" if where else key)
        for key, value in given.items()
    }


def _named(kind: type, value: Any) -> Any:
    """What msgspec does not know: a named thing, as `to_plain` wrote it."""
    if not issubclass(kind, Named):
        raise TypeError(f"expected a type that plain values describe, got {kind}")
    if isinstance(value, str):  # a name alone: all settings as they are by default
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InvalidInputError(f"expected a name, alone or with settings, got {value!r}")
    settings = dict(value)
    name, revision = settings.pop("name"), settings.pop("revision", None)
    made = make_named(kind, name, settings)
    if revision not in (None, made.revision):
        raise InvalidInputError(f"expected revision {made.revision} of {name}, got revision={revision}; start anew")
    return made


def _check_keys(hint: Any, value: Any, where: str) -> None:
    """Refuse unknown keys at any depth, which msgspec would drop, and wrong choices, with those that there are."""
    options = [option for option in get_args(hint) if option is not NoneType] if NoneType in get_args(hint) else [hint]
    for kind in options if value is not None else []:
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise InvalidInputError(f"expected {where} to be {' or '.join(map(str, get_args(kind)))}, got {value!r}")
        if is_dataclass(kind) and isinstance(value, Mapping):
            hints = get_type_hints(kind)
            known = {field.name: hints[field.name] for field in fields(kind)}
            for key, part in value.items():
                if key not in known:
                    raise InvalidInputError(
                        f"expected {where or 'settings'} to have only {', '.join(known)}, "
                        f"got {key}={part!r}{did_you_mean(str(key), known)}"
                    )
                _check_keys(known[key], part, f"{where}.{key}" if where else str(key))
        if get_origin(kind) is tuple and isinstance(value, list | tuple):
            for place, part in enumerate(value):
                _check_keys(get_args(kind)[0], part, f"{where}[{place}]")
