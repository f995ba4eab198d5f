"""Tables of a TOML file into dataclasses: what is unknown or of the wrong kind is refused by its name."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sigmax.errors import InvalidInputError, did_you_mean

T = TypeVar("T")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "a table"}


def read_table(kind: type[T], table: Any, where: str) -> T:
    """The dataclass that a table describes."""
    values = read_values({f.name: hint for f, hint in _hinted(kind)}, table, where)
    for field, _ in _hinted(kind):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise InvalidInputError(f"expected {where}.{field.name}, got none")
    return kind(**values)


def read_values(hints: Mapping[str, Any], table: Any, where: str) -> dict[str, Any]:
    """The values of a table whose keys are all known, each of the kind that its hint says."""
    if not isinstance(table, dict):
        raise InvalidInputError(f"expected {where} to be a table, got {table!r}")
    for key in table:
        if key not in hints:
            raise InvalidInputError(
                f"expected {where} to have only {', '.join(hints)}, got {key}={table[key]!r}{did_you_mean(key, hints)}"
            )
    return {key: _read(hints[key], value, f"{where}.{key}") for key, value in table.items()}


def hints_of(kind: type) -> dict[str, Any]:
    """The fields of a dataclass and what they may be."""
    return {field.name: hint for field, hint in _hinted(kind)}


def _hinted(kind: Any) -> list[tuple[Any, Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in fields(kind)]


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (argument for argument in arguments if argument is not NoneType)
        return _read(hint, value, where)
    if origin is Literal:
        if value not in arguments:
            raise InvalidInputError(f"expected {where} to be {' or '.join(map(str, arguments))}, got {value!r}")
        return value
    if origin is tuple:  # one value alone is a list of one
        parts = value if isinstance(value, list) else [value]
        return tuple(_read(arguments[0], part, where) for part in parts)
    kind = origin or hint
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInputError(f"expected {where} to be {_KINDS[kind]}, got {value!r}")
    return value
