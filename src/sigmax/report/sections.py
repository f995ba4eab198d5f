"""Runs over the same inputs, and the series of one method among them: tables and figures show the same series."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sigmax.named import name_of
from sigmax.report.entries import Entry, describe_named, group_by, joined, slug
from sigmax.rounding import format_whole
from sigmax.search import AscentSearch, GridSearch

_OF_A_METHOD = ("noise", "backend", "n", "alpha", "stop", "n_wrong", "runner_up")  # the same in all runs of a method
_STEPS = {AscentSearch: "steps", GridSearch: "evaluations"}  # K: a method is the best over it


class Section(NamedTuple):
    """Runs over the same inputs in one norm: only these share a table of the best and an envelope."""

    name: str  # tells its files from those of other sections; empty where there is only one
    title: str
    norm: int
    runs: list[Entry]

    def file(self, kind: str) -> str:
        """The name of its table or figure of this kind."""
        return f"{kind}-{self.name}" if self.name else kind

    def label(self, run: Entry) -> str:
        """The name of a run, with a backend other than PyTorch where not all have it."""
        return joined(run.name, "" if shared_backend(self.runs) else run.special_backend)

    @property
    def series(self) -> dict[tuple[str, str], list[Entry]]:
        """The runs of each method, by family and search: at each radius it has the best of them, over sigma0 and K."""
        told = differences(self.runs)
        return group_by(self.runs, lambda run: (joined(run.family, told[run]), run.search))


def sections(runs: Sequence[Entry]) -> list[Section]:
    """The runs by data set, inputs and norm."""
    groups = list(group_by(runs, lambda run: (run.table.norm, run.data, _inputs(run))).values())
    found: list[Section] = []
    for group in groups:
        norm, data = group[0].table.norm, group[0].kind or "data not recorded"
        name = slug(f"{data}-l{norm}")
        same = sum(section.name.startswith(name) for section in found)
        name = "" if len(groups) == 1 else f"{name}-{same + 1}" if same else name
        found.append(Section(name, f"{data}, {len(group[0].table):,} inputs, l{norm}", norm, group))
    return found


def _inputs(run: Entry) -> bytes:
    """Its inputs and their labels, whatever their order."""
    order = np.argsort(run.table.idx, kind="stable")
    return np.stack([run.table.idx[order], run.table.label[order]]).tobytes()


def differences(runs: Sequence[Entry]) -> dict[Entry, str]:
    """What must be said of each run beside its method; mostly nothing.

    The best of two networks, seeds or settings of a search at one sigma0 would be neither. The same holds for two
    noises, backends or ways of sampling at any sigma0.
    """
    facts = {run: _facts(run) for run in runs}
    places = group_by(runs, lambda run: (run.method, run.sigma0))

    def differs(key: str, method: str) -> bool:
        at = [list(runs)] if key in _OF_A_METHOD else [group for (of, _), group in places.items() if of == method]
        return any(len({facts[run].get(key, "") for run in group} - {""}) > 1 for group in at)

    said = {run: {key: fact for key, fact in facts[run].items() if differs(key, run.method)} for run in runs}
    backends = {} if shared_backend(runs) else {run: {"backend": run.special_backend} for run in runs}
    return {run: joined(*(backends.get(run, {}) | said[run]).values()) for run in runs}


def shared_backend(runs: Sequence[Entry]) -> str:
    """The backend that all runs have, where it is not PyTorch: then it is said once."""
    names = {run.special_backend for run in runs}
    return names.pop() if len(names) == 1 else ""


def _facts(run: Entry) -> dict[str, str]:
    """What may tell a run from others of its method, in phrases by name."""
    if run.spec is None:
        return {"n": f"n = {run.samples}"}
    search, budget = run.spec.search, run.spec.budget
    settings = {key: value for key, value in search.settings().items() if key != _STEPS.get(type(search))}
    return {
        "model": ", ".join(model.short_name for model in run.spec.models),
        "n0": f"n0 = {budget.n0}",
        "seed": f"seed {budget.seed}",
        "search": name_of(type(search)),
        **{f"search.{key}": f"{key} {value}" for key, value in settings.items()},
        "noise": describe_named(run.spec.noise),
        "exactness": f"{run.noise} noise" if run.noise else "",
        "backend": run.backend,
        "n": f"n = {budget.n:,}",
        "alpha": f"alpha = {format_whole(budget.alpha)}",
        "stop": "--at" if budget.radii else f"tolerance {budget.tolerance:g}" if budget.tolerance else "all samples",
        "n_wrong": "" if budget.n_wrong in (None, budget.n) else f"n_wrong = {budget.n_wrong:,}",
        "runner_up": "runner-up bounded" if budget.runner_up else "top class bounded",
    }


def telling_runs(section: Section) -> list[Entry]:
    """The per-input run with the largest ACR of each family at each sigma0, by sigma0; all of them say their sigmas."""
    groups = group_by((run for run in section.runs if run.is_per_input), lambda run: (run.family, run.sigma0)).values()
    best = (max(group, key=lambda run: run.acr) for group in groups)
    return sorted((run for run in best if np.isfinite(run.table.sigma).all()), key=lambda run: run.sigma0 or 0.0)


def by_steps(section: Section) -> list[list[Entry]]:
    """Runs of a series at one sigma0, which differ in the steps K of their ascent only, by K."""
    stepped = [[run for run in series if run.steps is not None] for series in section.series.values()]
    groups = [group for runs in stepped for group in group_by(runs, lambda run: run.sigma0).values()]
    ordered = [sorted(group, key=lambda run: run.steps or 0) for group in groups]
    return [group for group in ordered if group[0].steps != group[-1].steps]
