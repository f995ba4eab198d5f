"""Training objectives by name. A file in this package that defines an `Objective` is one; nothing else to do."""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import cache, partial
from typing import Any, cast, get_type_hints

from sigmax.errors import InvalidInputError
from sigmax.files import import_own
from sigmax.train.objectives.objective import Batch, Network, Objective, Outcome

__all__ = ["Batch", "Network", "Objective", "Outcome", "make_objective", "method_spec", "objectives"]


@cache
def objectives() -> dict[str, type[Objective]]:
    """Every objective of this package, by what `--method` calls it."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        for _, kind in inspect.getmembers(importlib.import_module(f"{__name__}.{module.name}"), inspect.isclass):
            if issubclass(kind, Objective) and not inspect.isabstract(kind):
                found[kind.name] = kind
    return found


def make_objective(method: str, options: dict[str, Any] | None = None) -> Objective:
    """The objective of this name; options may be texts, as a command line gives them.

    A name like `package.module:Class` is an objective of the user's own.
    """
    kind = _own_objective(method) if ":" in method else objectives().get(method)
    if kind is None:
        raise InvalidInputError(f"expected a method among {', '.join(sorted(objectives()))}, got method={method!r}")
    hints = get_type_hints(kind)
    known = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for name, value in (options or {}).items():
        if name not in known:
            shown = ", ".join(f"{option}={default}" for option, default in known.items())
            raise InvalidInputError(f"expected an option of {method} ({shown}), got {name}={value}")
        try:
            values[name] = _READERS[hints[name]](value) if hints[name] in _READERS else value
        except (TypeError, ValueError, OverflowError, KeyError):
            raise InvalidInputError(f"expected {name} to be {_KINDS[hints[name]]}, got {name}={value}") from None
    missing = [field.name for field in fields(kind) if _is_needed(field) and field.name not in values]  # type: ignore[arg-type]
    if missing:
        raise InvalidInputError(f"expected --option {missing[0]}=… for {method}, got none")
    made = kind(**values)
    if made.draws < 1:
        raise InvalidInputError(f"expected draws >= 1, got draws={made.draws}")
    for name, value in asdict(made).items():  # type: ignore[call-overload]
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise InvalidInputError(f"expected {name} >= 0, got {name}={value}")
    return made


def method_spec(objective: Objective) -> str:
    """What `make_objective` calls it: its name, or where it is if it is not of this package."""
    kind = type(objective)
    is_own = objectives().get(objective.name) is not kind
    return f"{kind.__module__}:{kind.__qualname__}" if is_own else objective.name


def _number(kind: type[int] | type[float], value: Any) -> int | float:
    """The number that a text or another number says; `int` alone would cut 2.5 to 2 and take true for 1."""
    if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return kind(value)


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


_READERS: dict[type, Callable[[Any], Any]] = {int: partial(_number, int), float: partial(_number, float), bool: _truth}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def _own_objective(spec: str) -> type[Objective]:
    module, _, name = spec.partition(":")
    try:
        kind: Any = getattr(import_own(module), name)
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise InvalidInputError(f"expected an objective at {spec}, got {type(error).__name__}: {error}") from error
    is_objective = inspect.isclass(kind) and issubclass(kind, Objective) and not inspect.isabstract(kind)
    if not (is_objective and is_dataclass(kind) and hasattr(kind, "name")):
        raise InvalidInputError(
            f"expected {spec} to be a dataclass derived from Objective with a name and a __call__, got {kind!r}"
        )
    return cast(type[Objective], kind)
