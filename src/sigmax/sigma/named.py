"""Searches by the names that command lines and experiments use."""

from typing import Literal, get_args

from sigmax.errors import InvalidInputError
from sigmax.sigma.ascent import PAPER_STEP, AscentSearch
from sigmax.sigma.grid import GridSearch
from sigmax.sigma.halving import HalvingSearch
from sigmax.sigma.search import FixedSigma, SigmaSearch

SearchName = Literal["fixed", "halving", "ascent", "ascent-paper", "grid"]
SEARCHES: tuple[str, ...] = get_args(SearchName)
BOUNDED: tuple[SearchName, ...] = ("halving", "ascent")
ASCENTS: tuple[SearchName, ...] = ("ascent", "ascent-paper")


def named_search(
    name: str,
    *,
    initial: float,
    steps: int = 900,
    samples: int = 1,
    step_size: float | None = None,
    bounds: tuple[float, float] | None = None,
) -> SigmaSearch:
    """The search of this name.

    Args:
        name: "fixed": one sigma for all; "halving"; "ascent"; "ascent-paper": the paper's Algorithm 1;
            "grid": the paper's baseline.
        initial: sigma0.
        steps: K, ascent steps; the grid gets 2 K evaluations, as the paper counts.
        samples: Noise draws per ascent step or grid point.
        step_size: Of the ascents; by default the paper's.
        bounds: Of sigma, for halving and ascent; by default [sigma0 / 4, 2 sigma0].
    """
    if bounds is not None and not 0.0 < bounds[0] < bounds[1] < float("inf"):
        raise InvalidInputError(f"expected bounds 0 < low < high, got {bounds[0]:g} and {bounds[1]:g}")
    if bounds is not None and name not in BOUNDED:
        raise InvalidInputError(f"expected bounds only for {' and '.join(BOUNDED)}, got search={name!r}")
    if step_size is not None and name not in ASCENTS:
        raise InvalidInputError(f"expected step_size only for {' and '.join(ASCENTS)}, got search={name!r}")
    step_size = PAPER_STEP if step_size is None else step_size
    if name == "fixed":
        return FixedSigma(initial)
    if name == "halving":
        return HalvingSearch(initial=initial, bounds=bounds)
    if name == "ascent":
        return AscentSearch(initial=initial, steps=steps, samples=samples, step_size=step_size, bounds=bounds)
    if name == "ascent-paper":
        return AscentSearch.paper(initial=initial, steps=steps, samples=samples, step_size=step_size)
    if name == "grid":
        # A step of the ascent is a forward and a backward pass: two evaluations, as the paper counts.
        return GridSearch(
            initial=initial, evaluations=2 * steps * samples, samples=samples, upper=max(1.0, 2 * initial)
        )
    raise InvalidInputError(f"expected a search among {', '.join(SEARCHES)}, got search={name!r}")
