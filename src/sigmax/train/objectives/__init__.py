"""Training objectives by name. A file in this package that defines an `Objective` is one; nothing else to do."""

import importlib
import inspect
import pkgutil
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from sigmax.errors import InvalidInputError
from sigmax.train.objectives.objective import Batch, Network, Objective, Outcome

__all__ = ["Batch", "Network", "Objective", "Outcome", "make_objective", "objectives"]


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
            values[name] = hints[name](value) if hints[name] in (int, float) else value
        except ValueError:
            raise InvalidInputError(f"expected {name} to be {hints[name].__name__}, got {name}={value}") from None
    made = kind(**values)
    if made.draws < 1:
        raise InvalidInputError(f"expected draws >= 1, got draws={made.draws}")
    return made


def _own_objective(spec: str) -> type[Objective]:
    module, _, name = spec.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidInputError(f"expected an objective at {spec}, got: {error}") from error
    if not (inspect.isclass(kind) and issubclass(kind, Objective)):
        raise InvalidInputError(f"expected {spec} to be a subclass of Objective, got {kind!r}")
    return kind
