"""Things that users ask for by name: searches, noises, objectives. Each names itself.

One's own is `package.module:Class`.
"""

import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from sigmax.errors import InvalidInputError, did_you_mean

_OURS = __name__.partition(".")[0]
N = TypeVar("N", bound="Named")


class Named:
    """Something with a name and settings. A subclass outside this package is named `package.module:Class`."""

    name: ClassVar[str]
    revision: ClassVar[int] = 1  # grows when the same settings give other results

    def settings(self) -> dict[str, Any]:
        """All that decides what it does: the fields of a dataclass, else the attributes of the object."""
        if is_dataclass(self):
            return {field.name: getattr(self, field.name) for field in fields(self)}
        return dict(getattr(self, "__dict__", {}))

    @classmethod
    def description(cls) -> str:
        """What it is, in one line: the first of its docstring."""
        return (inspect.getdoc(cls) or cls.__name__).splitlines()[0]


def name_of(kind: type[Named]) -> str:
    """What users call it."""
    is_ours = kind.__module__.partition(".")[0] == _OURS
    return kind.name if is_ours else f"{kind.__module__}:{kind.__qualname__}"


def named_classes(base: type[N]) -> dict[str, type[N]]:
    """The concrete classes of this package below `base`, by name."""
    found: dict[str, type[N]] = {}
    for kind in base.__subclasses__():
        if not inspect.isabstract(kind) and ":" not in name_of(kind):
            found[kind.name] = kind
        found |= named_classes(kind)
    return found


def find_class(base: type[N], name: str) -> type[N]:
    """The class below `base` that has this name."""
    known = named_classes(base)
    if name in known:
        return known[name]
    what = base.__name__
    if ":" not in name:
        raise InvalidInputError(
            f"expected one of {', '.join(known)} or package.module:Class, got {name!r}{did_you_mean(name, known)}"
        )
    found = import_own(name)
    if not (inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found)):
        raise InvalidInputError(f"expected {name} to be a class derived from {what}, got {found!r}")
    return found


def import_own(name: str) -> Any:
    """What `package.module:attribute` names."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (Exception, SystemExit) as error:  # the user's code can raise anything
        raise InvalidInputError(
            f"expected {attribute} in module {module}, got {type(error).__name__}: {error}"
        ) from error


def import_module(name: str) -> ModuleType:
    """A module of the user's own, found also in the current folder, as `python -m` finds it."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def accepted_settings(kind: type[Named]) -> list[str]:
    """What may be set when one is made."""
    if is_dataclass(kind):
        return [field.name for field in fields(kind) if field.init]
    return list(inspect.signature(kind).parameters)


def check_settings(kind: type[Named], given: Mapping[str, Any]) -> None:
    """Refuse settings that this class does not take."""
    known = accepted_settings(kind)
    for key in given:
        if key not in known:
            raise InvalidInputError(
                f"expected a setting of {name_of(kind)} ({', '.join(known) or 'it has none'}), "
                f"got {key}={given[key]!r}{did_you_mean(key, known)}"
            )
