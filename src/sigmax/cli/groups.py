"""Commands from typed functions: options.toml describes their options, and a dataclass is a group of options."""

import functools
import inspect
import math
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

_TEXTS = tomllib.loads(Path(__file__).with_name("options.toml").read_text())
_NONE = inspect.Parameter.empty


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as typer takes it: an option for each parameter, and for each field of a dataclass among these.

    A parameter that is `Annotated` already is taken as it is.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    options: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            kinds = get_type_hints(groups[name])
            defaults = {f.name: _NONE if f.default is MISSING else f.default for f in fields(groups[name])}
            options += [_option(groups[name], *field, kinds[field[0]]) for field in defaults.items()]
        elif get_origin(hints[name]) is Annotated:
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
        else:
            options.append(_option(function, name, parameter.default, hints[name]))

    @functools.wraps(function)
    def run(**values: Any) -> None:
        made = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        function(**made, **values)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    del run.__wrapped__  # its signature is not that of the options
    return run


def _option(owner: Any, name: str, default: Any, kind: Any) -> inspect.Parameter:
    """An option, or an argument where there is no default; without `--no-…` unless options.toml names it."""
    entry = _TEXTS[owner.__name__].get(name) or _TEXTS["all"][name]
    said = {"help": entry} if isinstance(entry, str) else dict(entry)
    make: Any = typer.Argument if said.pop("is_argument", default is _NONE) else typer.Option
    flags = said.pop("flags", [f"--{name.replace('_', '-')}"] if kind is bool else [])
    if kind in (int, int | None):
        said |= {"parser": _whole, "metavar": "INTEGER"}
    kind = Annotated[kind, make(*flags, **said)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _whole(text: str | int) -> int:
    """A whole number, also as 1e5 or 100_000."""
    try:
        value = float(text)
        whole = int(text) if str(text).lstrip("+-").replace("_", "").isdigit() else int(value)
    except (ValueError, OverflowError):
        value, whole = math.nan, 0
    if whole != value:
        raise typer.BadParameter(f"expected a whole number such as 1000 or 1e5, got {text!r}")
    return whole
