"""Which runs belong together: over the same inputs, by one method, and against which baseline."""

import json
import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from math import inf
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, RecordError
from sigmax.records import NOTES, TABLE, Run, read_run
from sigmax.report.metrics import average_certified_radius, common_inputs

_SAMPLING = ("n0", "n", "alpha", "tolerance", "radii", "runner_up", "n_wrong")
FIXED, PER_INPUT = "fixed sigma", "per-input sigma"
ALGORITHM_1 = "Algorithm 1"
UNKNOWN = "-"  # the record does not say
_DRAWN = ("AscentSearch", "GridSearch")  # searches with a number of draws
_BOUNDED = ("AscentSearch", "HalvingSearch")  # searches that take limits of sigma
_USUAL_STEP = 1e-4  # of an ascent; others are said
_SEARCHES = {"FixedSigma": "", "HalvingSearch": "halving", "GridSearch": "grid"}
_Key = TypeVar("_Key", bound=Hashable)


def read_runs(paths: Sequence[Path]) -> dict[Path, Run]:
    """Read runs and logs, each by its place; a folder that is no run stands for the runs or else the logs in it.

    Runs whose folders have the same name are named by as much of their paths as tells them apart.
    """
    runs = {place: read_run(place) for path in paths for place in _places(path)}
    if len({run.name for run in runs.values()}) == len(runs):
        return runs
    root = os.path.commonpath([place.parent for place in runs])
    return {place: _named(run, place.relative_to(root).as_posix()) for place, run in runs.items()}


def _places(path: Path) -> list[Path]:
    path = path.resolve()
    if path.name == TABLE:
        return [path.parent]
    if not path.is_dir() or (path / TABLE).exists():
        return [path]
    found = sorted(table.parent for table in path.rglob(TABLE)) or sorted(path.glob("*.tsv"))
    if not found:
        raise RecordError(f"expected a run folder, a folder of runs or a table, got {path} without any")
    return found


def _named(run: Run, name: str) -> Run:
    return replace(run, table=replace(run.table, name=name))


def with_distinct_names(runs: Sequence[Run]) -> list[Run]:
    """The runs, those of a name that came before with a number; of names, too, that files could not tell apart."""
    taken: set[str] = set()
    named = []
    for run in runs:
        names = chain([run.name], (f"{run.name} ({number})" for number in count(2)))
        name = next(name for name in names if slug(name) not in taken)
        taken.add(slug(name))
        named.append(run if name == run.name else _named(run, name))
    return named


def search_of(run: Run) -> dict[str, Any]:
    """The settings of its search; empty where the record does not say."""
    said = run.config.get("search")
    return said if isinstance(said, dict) else {}


def slug(name: str) -> str:
    """The name as part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", name)


def is_per_input(run: Run) -> bool | None:
    """Whether sigma was chosen for each input: as its search says, else as its sigmas tell; None where nothing does."""
    if kind := search_of(run).get("kind"):
        return bool(kind != "FixedSigma")
    known = run.table.sigma[np.isfinite(run.table.sigma)]
    return len(np.unique(known)) > 1 if len(known) else None


def search_name(run: Run) -> str:
    """What people call its search; empty where one sigma is for all, or the record does not say."""
    search = search_of(run)
    kind = str(search.get("kind", ""))
    if kind == "AscentSearch":
        is_free = not search.get("fixes_class")
        if upper_bound(run) is None:
            name = ALGORITHM_1 if is_free else "unbounded ascent"
        else:
            name = "bounded ascent, class free" if is_free else "bounded ascent"
    else:
        name = _SEARCHES.get(kind, kind)
    if kind in _BOUNDED and search.get("bounds") and upper_bound(run) is not None:
        low, high = (float(bound) / float(search["initial"]) for bound in search["bounds"])
        name += f" within {low:g} to {high:g} sigma0"
    if kind == "AscentSearch" and search.get("step_size", _USUAL_STEP) != _USUAL_STEP:
        name += f", steps of {search['step_size']:g}"
    return with_draws(name, int(search["samples"]) if kind in _DRAWN and "samples" in search else 1)


def with_draws(search: str, draws: int) -> str:
    """A search that looks at each sigma with so many draws of noise: n in the paper's Algorithm 1."""
    return f"{search}, {draws} draws" if draws > 1 else search


def family_of(run: Run) -> str:
    """Training and certification as the paper calls them, as its notes say; else by how sigma was chosen.

    A log that says neither is a family of its own.
    """
    return run.note("method") or {True: PER_INPUT, False: FIXED, None: run.name}[is_per_input(run)]


def method_of(run: Run) -> str:
    """The method it belongs to: its family and its search. The best of two searches would be neither."""
    return _joined(family_of(run), search_name(run))


def _joined(family: str, search: str) -> str:
    return f"{family}, {search}" if search else family


def initial_sigma(run: Run) -> float | None:
    """sigma0: where its search started, or the one sigma of all inputs; None where the record does not say."""
    if "initial" in search_of(run):
        return float(search_of(run)["initial"])
    sigmas = np.unique(run.table.sigma)
    return float(sigmas[0]) if len(sigmas) == 1 and np.isfinite(sigmas[0]) else None


def samples_of(run: Run) -> int | None:
    """n, the most samples that an input got; None where the record does not say."""
    return int(run.config.get("n") or run.table.samples.max(initial=0)) or None


def describe_samples(run: Run, unknown: str = UNKNOWN) -> str:
    """The samples of an input in words: n, and all that made an input have fewer or its radius another."""
    n, fewer, radii = samples_of(run), run.config.get("n_wrong"), run.config.get("radii")
    more = [f"{fewer:,} where the selected class is wrong"] if fewer else []
    if radii:
        more.append(f"at most, asked only at {', '.join(f'{r:g}' for r in radii)}: radii are rounded down to these")
    if tolerance := run.config.get("tolerance"):
        more.append(f"at most, stopping where going on would gain less than {100 * tolerance:g} %")
    if run.config.get("runner_up"):
        more.append("with the runner-up bounded")
    said = unknown if n is None else f"{n:,}"
    return f"{said} ({'; '.join(more)})" if more else said


def describe_sampling(run: Run) -> str:
    """How its inputs were sampled, in words."""
    alpha = run.config.get("alpha")
    said = f"n = {describe_samples(run, 'not recorded')}"
    return said if alpha is None else f"{said}, alpha = {alpha:g}"


def upper_bound(run: Run) -> float | None:
    """The largest sigma that its search may take; None where there is none, or the record does not say."""
    search = search_of(run)
    if search.get("kind") == "GridSearch":
        return float(search["upper"])
    if search.get("kind") not in _BOUNDED or "bounds" not in search:
        return None
    upper = 2 * float(search["initial"]) if search["bounds"] is None else float(search["bounds"][1])
    return upper if upper < inf else None


def group_by(runs: Sequence[Run], key: Callable[[Run], _Key]) -> dict[_Key, list[Run]]:
    """The runs by a key of theirs, in order of appearance."""
    groups: dict[_Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Runs over the same inputs in one norm: only these share a table of the best and an envelope."""

    name: str  # tells its files from those of others; empty where there are no others
    title: str
    runs: tuple[Run, ...]

    def file(self, kind: str) -> str:
        """The name of its table or figure of this kind."""
        return f"{kind}-{self.name}" if self.name else kind

    @property
    def ways(self) -> dict[str, str]:
        """What of network, engine, sampling and search must be said of each run, by its name; mostly nothing.

        That of which one method has several at one sigma0 (of engines and samplings, anywhere): the best of both would
        be neither.
        """

        def place(run: Run) -> Hashable:
            return method_of(run), initial_sigma(run)

        told = [what for what in (_network_of, _draws_of, _details_of) if _varied(self.runs, what, at=place)]
        told += [what for what in (engine_of, describe_sampling) if len(set(map(what, self.runs)) - {""}) > 1]
        return {run.name: ", ".join(filter(None, (what(run) for what in told))) for run in self.runs}

    @property
    def families(self) -> dict[str, str]:
        """The family of each run, by its name, and what must be said of it."""
        ways = self.ways
        return {run.name: _joined(family_of(run), ways[run.name]) for run in self.runs}

    @property
    def methods(self) -> dict[str, list[Run]]:
        """The runs of each method: its family and its search."""
        families = self.families
        return group_by(self.runs, lambda run: _joined(families[run.name], search_name(run)))


def _network_of(run: Run) -> str:
    return run.note("model") or ""


def engine_of(run: Run) -> str:
    """What ran its network; empty where the record does not say."""
    return run.note("engine") or ""


def _draws_of(run: Run) -> str:
    """What the noise of its samples was drawn for and from."""
    said = {"n0 =": run.config.get("n0"), "seed": run.config.get("seed")}
    return ", ".join(f"{name} {value}" for name, value in said.items() if value is not None)


def _details_of(run: Run) -> str:
    """The settings of its search that its name does not tell."""
    told = {"kind", "initial", "fixes_class", "steps", "bounds", "upper"}
    told |= {"samples", "evaluations", "step_size"} if search_of(run).get("kind") in _DRAWN else set()
    return ", ".join(f"{name} {value}" for name, value in search_of(run).items() if name not in told)


def _varied(runs: Sequence[Run], what: Callable[[Run], str], *, at: Callable[[Run], Hashable]) -> bool:
    """Whether this differs among runs that are otherwise at one place."""
    return any(len({what(run) for run in group}) > 1 for group in group_by(runs, at).values())


def sections(runs: Sequence[Run]) -> list[Section]:
    """The runs by their inputs and norm."""
    groups = list(group_by(runs, inputs_of).values())
    found: list[Section] = []
    for group in groups:
        table = group[0].table
        data = next((said for run in group if (said := run.note("data"))), "data not recorded").partition(":")[0]
        name = slug(f"{data}-l{table.norm}")
        same = sum(section.name.startswith(name) for section in found)
        found.append(
            Section(
                name="" if len(groups) == 1 else f"{name}-{same + 1}" if same else name,
                title=f"{data}, {len(table):,} inputs, l{table.norm}",
                runs=tuple(group),
            )
        )
    return found


def inputs_of(run: Run) -> tuple[int, str | None, bytes]:
    """Norm, data set and inputs, whatever their order: what runs must have in common to share a curve or a best."""
    order = np.argsort(run.table.idx, kind="stable")
    rows = np.stack([run.table.idx[order], run.table.label[order]])
    return run.table.norm, run.config.get("data"), rows.tobytes()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run with per-input sigma and the run with one sigma that it is measured against."""

    run: Run
    baseline: Run


def pairs(runs: Sequence[Run], *, named: Run | None = None) -> list[Pair]:
    """Each run with the one that was named, else each per-input run with the fixed-sigma run of its model and sigma0.

    The latter must have been sampled alike: other n give other radii. Logs of others name no model: theirs is the
    only such log with one sigma, or that does not say its sigma. A run without such a baseline is in no pair; nor is
    one that shares no input with the baseline.
    """
    found = []
    for run in (run for run in runs if run is not named):
        others = [other for other in runs if other is not run]
        baselines = [other for other in others if _is_baseline(other, run) and _is_comparable(run, other)]
        logs = [other for other in others if not (run.config or other.config) and not is_per_input(other)]
        logs = [log for log in logs if _is_comparable(run, log)]
        if named is not None:
            baselines = [named] if _is_comparable(run, named) else []
        elif len(logs) == 1:
            baselines = logs
        if baselines and (is_per_input(run) or baselines[0] is named):
            found.append(Pair(run=run, baseline=max(baselines, key=partial(_likeness, run))))
    return found


def _likeness(run: Run, other: Run) -> tuple[int, bool]:
    """How many inputs they share, and whether their seeds are the same: of several baselines the one with the most."""
    return len(common_inputs(run.table, other.table)[0]), run.config.get("seed") == other.config.get("seed")


def _is_baseline(other: Run, run: Run) -> bool:
    if is_per_input(other) is not False or initial_sigma(run) != initial_sigma(other):
        return False
    if any(run.config.get(key) != other.config.get(key) for key in _SAMPLING):
        return False
    if "fingerprint" in run.config and "fingerprint" in other.config:
        return bool(run.config["fingerprint"] == other.config["fingerprint"])
    return run.note("model") is not None and run.note("model") == other.note("model")


def has_same_data(run: Run, other: Run) -> bool:
    """Whether both were made from one data set, as far as their records tell."""
    digests = {run.config.get("data"), other.config.get("data")} - {None}
    return len(digests) < 2


def _is_comparable(run: Run, other: Run) -> bool:
    if not has_same_data(run, other):
        return False
    try:
        common_inputs(run.table, other.table)
    except InvalidInputError:
        return False
    return True


def fits(source: ImageSource, run: Run) -> bool:
    """Whether the run was made from this data set, as far as its record tells."""
    if "data" in run.config:
        return bool(run.config["data"] == source.digest())
    idx = run.table.idx
    is_inside = idx.min(initial=0) >= 0 and idx.max(initial=0) < len(source)
    return bool(is_inside and np.array_equal(source.labels[idx], run.table.label))


def telling_runs(runs: Sequence[Run]) -> list[Run]:
    """Of each family at each sigma0 the per-input run with the largest ACR, by sigma0: what figures show."""
    groups = group_by([run for run in runs if is_per_input(run)], lambda run: (family_of(run), initial_sigma(run)))
    best = [max(group, key=lambda run: average_certified_radius(run.table)) for group in groups.values()]
    return sorted(best, key=lambda run: initial_sigma(run) or 0.0)


def by_steps(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in the steps K of their search only, each series by K."""
    stepped = [run for run in runs if search_of(run).get("kind") == "AscentSearch" and "steps" in search_of(run)]
    series = group_by(stepped, _all_but_steps).values()
    ordered = [sorted(group, key=steps_of) for group in series]
    return [group for group in ordered if steps_of(group[0]) < steps_of(group[-1])]


def steps_of(run: Run) -> int:
    """K, the steps of its search."""
    return int(search_of(run)["steps"])


def _all_but_steps(run: Run) -> str:
    search = {key: value for key, value in search_of(run).items() if key != "steps"}
    rest = {key: value for key, value in run.config.items() if key not in (NOTES, "memory")}
    return json.dumps(rest | {"search": search}, sort_keys=True)
