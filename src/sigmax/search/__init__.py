"""Searches: how sigma is chosen, one for all inputs or per input."""

import inspect
from collections.abc import Callable
from typing import Any

from sigmax.errors import InvalidInputError, did_you_mean
from sigmax.named import accepted_settings, find_class, named_classes
from sigmax.plain import make_named, typed_arguments
from sigmax.search.ascent import AscentSearch
from sigmax.search.base import Choice, FixedSigma, SearchTask, SigmaSearch
from sigmax.search.grid import GridSearch
from sigmax.search.halving import HalvingSearch

__all__ = [
    "AscentSearch",
    "Choice",
    "FixedSigma",
    "GridSearch",
    "HalvingSearch",
    "SearchTask",
    "SigmaSearch",
    "make_search",
    "search_names",
]
# Names for a class with preset settings: the paper's Algorithm 1 and its baseline.
_VARIANTS: dict[str, Callable[..., SigmaSearch]] = {"ascent-paper": AscentSearch.paper, "grid": GridSearch.like_ascent}


def search_names() -> list[str]:
    """The names that `make_search` knows."""
    return list(dict.fromkeys((*named_classes(SigmaSearch), *_VARIANTS)))  # type: ignore[type-abstract]


def make_search(name: str, *, initial: float, **given: Any) -> SigmaSearch:
    """Make a search by name.

    Args:
        name: "fixed", one sigma for all; "halving"; "ascent"; "ascent-paper", the paper's Algorithm 1; "grid", its
            baseline of the same cost; or `package.module:Class` for a class of the user's own.
        initial: sigma0.
        given: Other settings of the search.
    """
    if name in _VARIANTS:
        known = list(inspect.signature(_VARIANTS[name]).parameters)
        if unknown := [key for key in given if key not in known]:
            raise InvalidInputError(
                f"expected a setting of {name} ({', '.join(known)}), got {unknown[0]}={given[unknown[0]]!r}"
            )
        return _VARIANTS[name](initial=initial, **typed_arguments(_VARIANTS[name], given))
    if name not in named_classes(SigmaSearch) and ":" not in name:  # type: ignore[type-abstract]
        known = search_names()
        raise InvalidInputError(
            f"expected one of {', '.join(known)} or package.module:Class, "
            f"got search={name!r}{did_you_mean(name, known)}"
        )
    takes_initial = "initial" in accepted_settings(find_class(SigmaSearch, name))
    return make_named(SigmaSearch, name, ({"initial": initial} if takes_initial else {}) | given)  # type: ignore[type-abstract]
