"""Searches: how sigma is chosen, one for all inputs or per input."""

import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

from sigmax.errors import InvalidInputError, did_you_mean
from sigmax.named import accepted_settings, find_class, named_classes
from sigmax.plain import from_plain, make_named, typed_arguments
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
    "search_for",
    "search_names",
    "start_of",
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
    takes_initial = "initial" in _settings_of(name)
    return make_named(SigmaSearch, name, ({"initial": initial} if takes_initial else {}) | given)  # type: ignore[type-abstract]


def _settings_of(name: str) -> Collection[str]:
    """The settings that the search of this name takes."""
    if name not in named_classes(SigmaSearch) and ":" not in name:  # type: ignore[type-abstract]
        known = search_names()
        raise InvalidInputError(
            f"expected one of {', '.join(known)} or package.module:Class, "
            f"got search={name!r}{did_you_mean(name, known)}"
        )
    return accepted_settings(find_class(SigmaSearch, name))


def search_for(
    trained: float | None,
    sigma_range: tuple[float, float] | None,
    name: str,
    *,
    initial: float | None = None,
    **given: Any,
) -> SigmaSearch:
    """Make a search by name. The training of the network decides the bounds and sigma0 that are not given.

    The bounds are the range of sigma of the training. sigma0 is the sigma of the training, or a quarter of the way up
    its range (`start_of`). The paper's own algorithms, "ascent-paper" and "grid", have no bounds, and take only sigma0.

    Args:
        trained: The sigma of the training; None: unknown.
        sigma_range: The range of sigma of the training; None: it had one sigma, or is unknown.
        name: Of the search; see `make_search`.
        initial: sigma0.
        given: Other settings of the search.
    """
    if sigma_range is not None and name not in _VARIANTS and "bounds" in _settings_of(name):
        given = {"bounds": sigma_range} | given
        if initial is None:
            initial = start_of(from_plain(tuple[float, float], given["bounds"], where="bounds"))
    initial = trained if initial is None else initial
    if initial is None:
        raise InvalidInputError(
            "expected sigma, got none; give --sigma, because the model does not record its training"
        )
    return make_search(name, initial=initial, **given)


def start_of(sigma_range: tuple[float, float]) -> float:
    """sigma0 for a range of sigma: a quarter of the way up on a logarithmic scale, to two digits.

    The class is fixed there. The lower sigma0, the more often that class is right; but at the very end of the range a
    network is trained least. The range 0.06 to 1.0 gives 0.12.
    """
    low, high = sigma_range
    if not 0 < low < high < math.inf:
        raise InvalidInputError(f"expected bounds 0 < low < high, got [{low}, {high}]")
    return float(f"{low**0.75 * high**0.25:.2g}")
