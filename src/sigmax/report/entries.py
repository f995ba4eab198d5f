"""Runs as a report sees them: records of this library and logs of others become values of one kind."""

import re
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, count
from typing import TypeVar, final

import numpy as np

from sigmax import metrics
from sigmax.budget import Budget
from sigmax.data import ImageSource
from sigmax.named import Named, name_of
from sigmax.rounding import format_whole
from sigmax.runs import CertificationSpec, Run
from sigmax.search import AscentSearch

_Key = TypeVar("_Key", bound=Hashable)


@final
class Entry:
    """What a run says. None and "" stand for what its record does not say; a log of others says little."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.table, self.spec, self.orders = name, run.table, run.spec, run.orders
        spec, table, found = run.spec, run.table, run.spec.found if run.spec else None
        sigmas = np.unique(table.sigma[np.isfinite(table.sigma)])
        one_sigma = float(sigmas[0]) if len(sigmas) == 1 and np.isfinite(table.sigma).all() else None
        self.is_per_input = spec.is_per_input if spec else len(sigmas) > 1 if len(sigmas) else None
        self.sigma0 = spec.search.initial if spec else one_sigma
        # Training and certification as the paper calls them, else how sigma was chosen, else its own name.
        families = {True: "per-input sigma", False: "fixed sigma", None: name}
        several = "routed" if spec and spec.route else "experts" if spec and spec.experts else None
        self.family = several or (spec and spec.method) or families[self.is_per_input]
        self.search = spec.search.label() if spec and spec.search.is_per_input else ""
        self.steps = spec.search.steps if spec and isinstance(spec.search, AscentSearch) else None  # K
        self.upper = spec.search.upper if spec else None  # the largest sigma that the search may choose
        self.n = spec.budget.n if spec else int(table.samples.max(initial=0)) or None  # the most that an input got
        # n in words, with all that gave some inputs fewer samples or other radii.
        self.samples = _describe_samples(spec.budget) if spec else f"{self.n:,}" if self.n else "not recorded"
        self.is_at = bool(spec and spec.budget.radii)  # radii were rounded down to these, and so was the ACR
        self.sampling = f"n = {self.samples}" + (f", alpha = {format_whole(spec.budget.alpha)}" if spec else "")
        self.backend = (found and found.backend) or ""  # what ran the network, with its version
        self.special_backend = metrics.special_backend(self.backend)
        self.noise = run.noise  # "exact" or "float"
        self.network = found.fingerprint if found else ""  # of the network, its backend and the noise
        self.data = found.data if found else ""  # digest of the data set
        self.kind = spec.data.kind if spec else ""  # of data set, such as cifar10

    @property
    def method(self) -> str:
        """Family and search."""
        return joined(self.family, self.search)

    @property
    def acr(self) -> float:
        """Average certified radius."""
        return metrics.average_certified_radius(self.table)

    @property
    def acr_text(self) -> str:
        """ACR, marked where it was rounded down with the radii."""
        return metrics.format_acr(self.acr, is_at=self.is_at)

    @property
    def has_times(self) -> bool:
        """Whether the record says how long every input took."""
        return bool(np.isfinite(self.table.seconds).all())

    def fits(self, source: ImageSource) -> bool:
        """Whether the run was made from this data set, as far as its record tells."""
        if self.data:
            return self.data == source.digest()
        idx = self.table.idx
        is_inside = idx.min(initial=0) >= 0 and idx.max(initial=0) < len(source)
        return bool(is_inside and np.array_equal(source.labels[idx], self.table.label))


def entries(runs: Iterable[Run]) -> list[Entry]:
    """The runs as a report sees them, numbered where the names of their files would be the same."""
    made: dict[str, Entry] = {}
    for run in runs:
        names = chain([run.name], (f"{run.name} ({number})" for number in count(2)))
        name = next(name for name in names if slug(name) not in made)
        made[slug(name)] = Entry(name, run)
    return list(made.values())


def _describe_samples(budget: Budget) -> str:
    more = {
        f"{budget.n_wrong or 0:,} for misclassified inputs": budget.n_wrong is not None,
        f"at most; radii are rounded down to {', '.join(map(format_whole, budget.radii))}": budget.radii,
        f"at most; stops when more samples would gain less than {100 * budget.tolerance:g} %": budget.tolerance,
        "runner-up bounded": budget.runner_up,
    }
    said = "; ".join(text for text, is_said in more.items() if is_said)
    return f"{budget.n:,} ({said})" if said else f"{budget.n:,}"


def describe_named(thing: Named) -> str:
    """Its name and its settings, but for sigma0, which has a place of its own."""
    settings = {key: value for key, value in thing.settings().items() if key != "initial" and value is not None}
    said = (f"{key} {list(value) if isinstance(value, tuple) else value}" for key, value in settings.items())
    return ": ".join(filter(None, (name_of(type(thing)), ", ".join(said))))


def describe_choice(spec: CertificationSpec) -> str:
    """How the sigma of an input follows from sigma0, without the names that settings have in code."""
    if not spec.is_per_input:
        return "for all inputs"
    if spec.route is not None:
        return "and sigma by a router"
    search = spec.search
    words = []
    for key, value in search.settings().items():
        if key == "fixes_class":
            words.append("class of sigma0 kept" if value else "class free")
        elif key != "initial" and value is not None:
            shown = " to ".join(f"{limit:g}" for limit in value) if isinstance(value, tuple) else value
            words.append(f"{key.replace('_', ' ')} {shown}")
    return f"and sigma by {name_of(type(search))}" + (f" ({', '.join(words)})" if words else "")


def kinds_of_answers(runs: Iterable[Entry]) -> str:
    """Which kinds of certificate the runs show."""
    return " and ".join(sorted({metrics.kind_of_answers(run.table) for run in runs}))


def joined(*parts: str) -> str:
    """The parts that say something, between commas."""
    return ", ".join(filter(None, parts))


def slug(name: str) -> str:
    """The name as part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", name)


def group_by(runs: Iterable[Entry], key: Callable[[Entry], _Key]) -> dict[_Key, list[Entry]]:
    """The runs by a key of theirs, in order of appearance."""
    groups: dict[_Key, list[Entry]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups
