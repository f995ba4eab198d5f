"""The paper's numbers beside ours, with both settings, so that a smaller run is not taken for a replication.

A row is the best of several runs at each radius: of a method, over sigma0 and K. Taking the maximum over more runs
biases it upward. So both sides of a difference are the best over the same sigma0s, and beside ours stands the paper's
best over the same K.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import final

from sigmax.metrics import certified_accuracy
from sigmax.paper.experiment import Experiment, Network, level_name
from sigmax.paper.published import Curve, Published, Steps, published_settings
from sigmax.report.entries import Entry, entries, group_by, joined
from sigmax.report.results import format_signed
from sigmax.report.sections import differences
from sigmax.report.tables import ResultTable
from sigmax.rounding import format_nearest, format_whole
from sigmax.runs import Run
from sigmax.search.ascent import ALGORITHM_1
from sigmax.search.base import with_draws

Row = tuple[tuple[str, ...], Curve, str]  # what it shows, its numbers, and ACR in the table that has it

_OURS, _PAPER, _NONE = "ours", "paper", "-"


def compare_with_paper(experiment: Experiment, runs: Sequence[Run]) -> list[ResultTable]:
    """Settings first, then the tables that the report asks for, then times; runs of unknown training are left out."""
    known = [run for run in entries(runs) if run.spec and run.spec.method]
    if not known:
        return []
    tables = [_settings(experiment, known)]
    for norm, of_norm in sorted(group_by(known, lambda run: run.table.norm).items(), reverse=True):
        sheet = _Sheet(experiment, of_norm, norm, _scope(experiment, known))
        make = {"best": sheet.best, "gain": sheet.gain, "per-sigma": sheet.per_sigma}
        tables += [make[kind]() for kind in experiment.report.tables]
    return [table for table in (*tables, _runtime(experiment, known)) if table.rows]


def _settings(experiment: Experiment, runs: Sequence[Entry]) -> ResultTable:
    networks, budgets = _networks(experiment, runs), [run.spec.budget for run in runs if run.spec]
    epochs = [f"{network.family} {network.recipe.epochs}" for network in networks if network.recipe]
    if existing := _list(network.model.name for network in networks if not network.recipe):
        epochs.append(f"not recorded for {existing}")
    paper = published_settings(experiment.report.paper)
    return ResultTable(
        name="paper-settings",
        caption="Settings of this experiment and of the paper. Where they differ, our numbers do not replicate it.",
        header=("setting", _OURS, _PAPER),
        rows=(
            ("data", experiment.data.kind, paper.said["data"]),
            ("images certified", f"{len(runs[0].table):,}", paper.said["images"]),
            ("network", _list(network.arch for network in networks), paper.said["network"]),
            ("backend", _list(run.backend or "not recorded" for run in runs), "not said"),
            ("epochs of training", _list(epochs), paper.said["epochs"]),
            ("sigma0 (l2)", _family_levels(experiment, runs, 2), _levels(paper.sigmas["l2"])),
            ("lambda (l1)", _family_levels(experiment, runs, 1), _levels(paper.sigmas["l1"])),
            ("search", _list((_search(run) for run in runs if run.search), "; ") or _NONE, paper.said["search"]),
            ("n0", _list(f"{budget.n0:,}" for budget in budgets), "100"),
            ("n", _list(run.samples for run in runs), "100,000"),
            ("alpha", _list(format_whole(budget.alpha) for budget in budgets), "0.001"),
            ("early stopping tolerance", _list(f"{budget.tolerance:g}" for budget in budgets), "0"),
        ),
    )


def _networks(experiment: Experiment, runs: Sequence[Entry]) -> list[Network]:
    """The networks of these runs, each once."""
    networks = [experiment.certifications[run.name].network for run in runs]
    return list({network.name: network for network in networks}.values())


def _family_levels(experiment: Experiment, runs: Sequence[Entry], norm: int) -> str:
    """The sigma0s in this norm; of each family, where they differ."""
    networks = _networks(experiment, [run for run in runs if run.table.norm == norm])
    found = {each.family: _levels(n.sigma for n in networks if n.family == each.family) for each in networks}
    if len(set(found.values())) > 1:
        return "; ".join(f"{family} {levels}" for family, levels in found.items())
    return _list(found.values()) or _NONE


def _scope(experiment: Experiment, runs: Sequence[Entry]) -> str:
    networks = _list(network.arch for network in _networks(experiment, runs))
    names = _list((run.backend.partition(" ")[0] for run in runs if run.backend), " or ")
    backends = f" run by {names}" if any(run.special_backend for run in runs) else ""
    return (
        f"Ours: {len(runs[0].table):,} inputs of {experiment.data.kind}, "
        f"{_list((run.sampling for run in runs), ' or ')}, {networks}{backends}; "
        f"per-input answers are settled by a memory. Paper: {published_settings(experiment.report.paper).scope}."
    )


def _runtime(experiment: Experiment, runs: Sequence[Entry]) -> ResultTable:
    """Seconds per input of each search, over the runs whose records say how long they took."""
    has_several = len({run.backend for run in runs}) > 1
    timed = group_by(
        (run for run in runs if run.has_times),
        lambda run: joined(_search(run), run.backend if has_several else run.special_backend),
    )
    means = {search: fmean(float(run.table.seconds.mean()) for run in group) for search, group in timed.items()}
    ours = [(search, _OURS, format_nearest(seconds, 2)) for search, seconds in means.items()]
    theirs = [(search, _PAPER, said) for search, said in published_settings(experiment.report.paper).seconds.items()]
    return ResultTable(
        name="paper-runtime",
        caption="Mean seconds per input over the runs of each search. The paper's are with n = 100,000 on an NVIDIA "
        "Quadro RTX-6000, its memory included. Networks, n and machines differ, so ratios between the two say nothing.",
        header=("search", "whose", "seconds"),
        rows=(*ours, *theirs) if ours else (),
    )


@final
class _Sheet:
    """The tables of one norm."""

    def __init__(self, experiment: Experiment, runs: Sequence[Entry], norm: int, scope: str) -> None:
        self.runs, self.norm, self.scope = runs, norm, scope
        self.told = differences(runs)
        self.methods = list(dict.fromkeys(run.family for run in runs))
        self.paper = Published(experiment.report.paper, norm)

    def best(self) -> ResultTable:
        """The best over sigma0 and K at each radius, as in the paper's main tables."""
        rows: list[Row] = []
        for method in self.methods:
            for search, runs in self._searches(method).items():
                head = (method, _OURS, _with_steps(search, self._steps(method, runs)), _levels(_sigmas(runs)))
                rows.append((head, self._best_of(runs), format_nearest(max(run.acr for run in runs))))
            if whole := self.paper.whole(method):
                head = (method, _PAPER, self.paper.search(method) or _NONE, _levels(self.paper.sigmas(method)))
                rows.append((head, whole.accuracy, _NONE if whole.acr is None else format_nearest(whole.acr)))
        table = self._table(
            "best",
            f"Best certified accuracy over sigma0 and K at each l{self.norm} radius, in percent, and ACR. Algorithm 1 "
            "without a K has every K of the paper. Our ACR is that of the best run; the paper does not define its own.",
            ("method", "whose", "search", "sigma0"),
            rows,
        )
        ours = {place: values for place, (head, values, _) in enumerate(rows) if head[1] == _OURS}
        best = (
            (place, column)
            for column, radius in enumerate(self.paper.radii[: len(table.header) - 5], start=4)
            for place, values in ours.items()
            if values[radius] == max(other[radius] for other in ours.values()) > 0
        )
        return replace(table, best=frozenset(best))

    def gain(self) -> ResultTable:
        """What choosing sigma per input adds to one sigma for all, in points."""
        rows: list[Row] = []
        for method in self.methods:
            if method.endswith(("-ds", "-ds2")):
                rows += self._gains(method, "best", self.paper.sigmas(method))
                for sigma in sorted(_sigmas(self.runs)):
                    rows += self._gains(method, level_name(sigma), {sigma})
        return self._table(
            "gain",
            f"Percentage points of certified accuracy gained over one sigma for all at each l{self.norm} radius, best "
            "over K. Algorithm 1 without a K has every K of the paper. Rows that say best are the best over every "
            "sigma0 of the paper, on both sides.",
            ("gain of", "sigma0", "whose", "search"),
            rows,
        )

    def per_sigma(self) -> ResultTable:
        """Every run that the paper's appendix has too, each beside its own."""
        rows: list[Row] = []
        for run in self.runs:
            for curve in self.paper.curves:
                search = with_draws(ALGORITHM_1, curve.samples or 1) if curve.steps else ""
                same = (curve.method, curve.sigma, curve.steps, search)
                if same == (run.family, run.sigma0, run.steps or 0, run.search):
                    head = (run.family, _levels(_sigmas([run])), str(run.steps or _NONE))
                    rows += [((*head, _OURS), self._best_of([run]), ""), ((*head, _PAPER), curve.accuracy, "")]
        caption = f"Certified accuracy of each run at each l{self.norm} radius, in percent, beside the paper's."
        return self._table("per-sigma", caption, ("method", "sigma0", "K", "whose"), rows)

    def _gains(self, method: str, level: str, sigmas: set[float]) -> list[Row]:
        """Gains of a method, best over these sigma0s: ours, and the paper's over all its K and over ours."""
        base = method.rpartition("-ds")[0]
        sides: list[tuple[str, str, Curve, Curve]] = []  # whose, search, with per-input sigma, with one sigma
        asked: list[Steps] = [()]
        for search, found in self._searches(method).items():
            runs = [run for run in found if run.sigma0 in sigmas]
            alike = {_likeness(run, method) for run in runs}
            fixed = [run for run in self.runs if run.family == base and _likeness(run, method) in alike]
            if _sigmas(runs) == _sigmas(fixed) == sigmas and len(fixed) == len(sigmas):
                asked.append(self._steps(method, runs))
                sides.append((_OURS, _with_steps(search, asked[-1]), self._best_of(runs), self._best_of(fixed)))
        one_sigma = self.paper.best(base, sigmas)
        for steps in dict.fromkeys(asked) if sides else ():
            per_input = self.paper.best(method, sigmas, steps)
            if per_input and one_sigma:
                sides.append((_PAPER, _with_steps(self.paper.search(method), steps), per_input, one_sigma))
        return [
            ((f"{method} over {base}", level, whose, search), {r: own[r] - one[r] for r in own if r in one}, "")
            for whose, search, own, one in sides
        ]

    def _searches(self, method: str) -> dict[str, list[Entry]]:
        """Our runs of a method, by search and what else tells them apart."""
        runs = [run for run in self.runs if run.family == method]
        return group_by(runs, lambda run: joined(run.search, self.told[run]) or _NONE)

    def _best_of(self, runs: Sequence[Entry]) -> Curve:
        curves = [(100 * certified_accuracy(run.table, self.paper.radii)).tolist() for run in runs]
        return {radius: max(values) for radius, *values in zip(self.paper.radii, *curves, strict=True)}

    def _steps(self, method: str, runs: Sequence[Entry]) -> Steps:
        """The K of these runs; empty where they are all that the paper has."""
        ours = {run.steps for run in runs if run.steps is not None}
        theirs = {curve.steps for curve in self.paper.appendix(method) if curve.steps}
        return () if ours == theirs else tuple(sorted(ours))

    def _table(self, kind: str, caption: str, header: tuple[str, ...], rows: Sequence[Row]) -> ResultTable:
        """A table with a column for each radius, up to the last at which a row has a number other than 0."""
        last = max((radius for _, values, _ in rows for radius, value in values.items() if value), default=0.0)
        radii = [radius for radius in self.paper.radii if radius <= last]
        show = format_signed if kind == "gain" else format_nearest
        numbers = [[show(values[r], 1) if r in values else _NONE for r in radii] for _, values, _ in rows]
        return ResultTable(
            name=f"paper-{kind}-l{self.norm}",
            caption=f"{caption} {self.scope}",
            header=(*header, *map(format_whole, radii), *(["ACR"] if kind == "best" else [])),
            rows=tuple((*row[0], *cells, *filter(None, row[2:])) for row, cells in zip(rows, numbers, strict=True)),
        )


def _likeness(run: Entry, method: str) -> tuple[float | None, str, str]:
    """What a run of a method and the one that is subtracted from it have in common: sigma0, sampling and network.

    A network that was trained with per-input sigma is another one by design: then it is the backend.
    """
    return run.sigma0, run.sampling, run.backend if method.endswith("-ds2") else run.network


def _sigmas(runs: Sequence[Entry]) -> set[float]:
    return {run.sigma0 for run in runs if run.sigma0 is not None}


def _search(run: Entry) -> str:
    return _with_steps(run.search or "fixed", () if run.steps is None else (run.steps,))


def _with_steps(search: str, steps: Steps) -> str:
    return f"{search}, K = {_list(map(str, steps))}" if steps else search


def _levels(sigmas: Iterable[float]) -> str:
    return _list(map(level_name, sorted(sigmas)))


def _list(parts: Iterable[str], by: str = ", ") -> str:
    """The parts, each once."""
    return by.join(dict.fromkeys(parts))
