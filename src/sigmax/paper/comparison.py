"""The paper's own numbers beside ours, with both settings, so that a smaller run is not taken for a replication."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final

import numpy as np

from sigmax.records import Run
from sigmax.report.grouping import (
    ALGORITHM_1,
    Section,
    describe_samples,
    describe_sampling,
    engine_of,
    search_name,
    with_draws,
)
from sigmax.report.metrics import average_certified_radius, certified_accuracy
from sigmax.report.paper import PublishedCurve, published_curves
from sigmax.report.results import format_signed, has_times
from sigmax.report.tables import ResultTable
from sigmax.reproduce.experiment import Certification, Experiment, level_name
from sigmax.rounding import format_nearest
from sigmax.sigma import AscentSearch

Done = Sequence[tuple[Certification, Run]]
Curve = dict[float, float]  # radius -> percent
Steps = tuple[int, ...]  # some K

_OURS, _PAPER, _NONE = "ours", "paper", "-"
_L1 = "; l1: not said"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Paper:
    """What the paper says of its experiments on a data set, in l2 where nothing else is said."""

    data: str
    network: str
    epochs: str
    sigmas: tuple[float, ...]
    inputs: str  # its percentages come in steps of 0.01 and of 0.2
    search: str
    seconds: dict[str, str]  # per input, by search


_PAPERS = {
    "cifar10": _Paper(
        data="CIFAR-10",
        network="ResNet-18",
        epochs="200; SmoothAdv-DS^2 fine-tuned, epochs not said",
        sigmas=(0.12, 0.25, 0.50),
        inputs="10,000 (inferred from its percentages)",
        search=f"{ALGORITHM_1}, K = 100 to 1,500",
        seconds={"fixed": "1.6", f"{ALGORITHM_1}, K = 900": "1.8"},
    ),
    "imagenet": _Paper(
        data="ImageNet",
        network="ResNet-50",
        epochs="networks of others; Cohen-DS^2: 30 of fine-tuning, SmoothAdv-DS^2: not said",
        sigmas=(0.25, 0.50, 1.00),
        inputs="500 (inferred from its percentages)",
        search=f"{ALGORITHM_1}, K = 100 to 400",
        seconds={"fixed": "109.5", f"{ALGORITHM_1}, K = 400": "136"},
    ),
}
_LAMBDAS = (0.25, 0.50, 1.00)  # the paper's in l1
_DRAWS = {"macer": 8}  # n of the paper's Algorithm 1 in its main tables, where it is not 1


def compare_with_paper(experiment: Experiment, done: Done) -> list[ResultTable]:
    """Settings first, then what the experiment's report asks for; only of certifications that are complete."""
    known = [(run, record) for run, record in done if run.method is not None]
    if not known:
        return []
    tables = [_settings(experiment, known)]
    scope = _scope(experiment, known)
    for norm in sorted({run.noise.norm for run, _ in known}, reverse=True):
        of_norm = [(run, record) for run, record in known if run.noise.norm == norm]
        section = Section(name="", title="", runs=tuple(record for _, record in of_norm))
        sheet = _Sheet(experiment, of_norm, norm, scope, section.ways)
        found = {"best": sheet.best, "gain": sheet.gain, "per-sigma": sheet.per_sigma}
        made = [found[kind]() for kind in experiment.report.tables]
        tables += [table for table in made if table.rows]
    runtime = _runtime(experiment, known)
    return [*tables, runtime] if runtime.rows else tables


def _settings(experiment: Experiment, done: Done) -> ResultTable:
    paper = _PAPERS[experiment.report.paper]
    networks = list({run.network.name: run.network for run, _ in done}.values())
    trained = {n.family: f"{n.family} {n.recipe.epochs}" for n in networks if n.recipe}
    existing = [n.model for n in networks if n.model]
    epochs = [*trained.values(), *([f"not recorded of {_joined(existing)}"] if existing else [])]
    configs = [record.config for _, record in done]
    searches = (_search(run, record) for run, record in done if run.search.is_per_input)
    rows = [
        ("data", experiment.data.name.partition(":")[0], paper.data),
        ("images certified", f"{len(done[0][1].table):,}", paper.inputs + _L1),
        ("network", _joined(n.arch for n in networks), paper.network + _L1),
        ("run by", _joined(engine_of(record) or "not recorded" for _, record in done), "not said"),
        ("epochs of training", _joined(epochs), paper.epochs + _L1),
        ("sigma0 (l2)", _levels(done, 2), _joined(map(level_name, paper.sigmas))),
        ("lambda (l1)", _levels(done, 1), _joined(map(level_name, _LAMBDAS))),
        ("search", _joined(searches, "; ") or _NONE, paper.search + _L1),
        ("n0", _joined(f"{config['n0']:,}" for config in configs), "100"),
        ("n", _joined(describe_samples(run) for _, run in done), "100,000"),
        ("alpha", _joined(f"{config['alpha']:g}" for config in configs), "0.001"),
        ("stops early at a loss of", _joined(f"{config.get('tolerance') or 0:g}" for config in configs), "0"),
    ]
    return ResultTable(
        name="paper-settings",
        caption="How this experiment and the paper were set. Where they differ, the numbers below are no replication.",
        header=("setting", _OURS, _PAPER),
        rows=tuple(rows),
    )


def _search(run: Certification, record: Run) -> str:
    name = search_name(record) or "fixed"
    return _with_steps(name, (run.search.steps,) if isinstance(run.search, AscentSearch) else ())


def _levels(done: Done, norm: int) -> str:
    """The sigma0 of this norm; of each family, where these have not all the same."""
    families: dict[str, list[float]] = {}
    for run, _ in done:
        if run.noise.norm == norm:
            families.setdefault(run.network.family, []).append(run.network.sigma)
    said = {family: _joined(map(level_name, sorted(sigmas))) for family, sigmas in families.items()}
    if len(set(said.values())) > 1:
        return "; ".join(f"{family} {levels}" for family, levels in said.items())
    return next(iter(said.values()), _NONE)


def _runtime(experiment: Experiment, done: Done) -> ResultTable:
    """Seconds per input of each search, over the runs whose records say how long they took."""
    times: dict[str, list[float]] = {}
    is_told = len({engine_of(record) for _, record in done}) > 1
    for run, record in done:
        if has_times(record):
            name = _said(_search(run, record), engine_of(record) if is_told else "")
            times.setdefault(name, []).append(float(record.table.seconds.mean()))
    ours = [(search, _OURS, format_nearest(fmean(each), 2)) for search, each in times.items()]
    theirs = [(search, _PAPER, seconds) for search, seconds in _PAPERS[experiment.report.paper].seconds.items()]
    return ResultTable(
        name="paper-runtime",
        caption="Seconds per input, mean over the runs of each search; the paper's are with n = 100,000 on an NVIDIA "
        "Quadro RTX-6000, its memory included. Other networks, n and machines: no ratio across the two means anything.",
        header=("search", "whose", "seconds"),
        rows=(*ours, *theirs) if ours else (),
    )


def _scope(experiment: Experiment, done: Done) -> str:
    ours = f"{len(done[0][1].table):,} inputs of {experiment.data.name.partition(':')[0]}"
    ours += f", {_joined((describe_sampling(run) for _, run in done), ' or ')}"
    paper = _PAPERS[experiment.report.paper]
    return (
        f"Percent. Ours: {ours}, {_joined(run.network.arch for run, _ in done)}; per-input answers are settled by a "
        f"memory. Paper: {paper.data}, n = 100,000, alpha = 0.001, {paper.network}."
    )


@final
@dataclass(frozen=True, slots=True)
class _Sheet:
    """The tables of one norm."""

    experiment: Experiment
    done: Done
    norm: int
    scope: str
    ways: dict[str, str]  # what must be said of each run, by its name; see `Section`

    def best(self) -> ResultTable:
        """The best over sigma and K at each radius, as the paper's main tables."""
        rows: list[tuple[tuple[str, ...], Curve, float | None]] = []
        for method in self._methods():
            for search, way in self._ways(method):
                chosen = self._chosen(method, search, way)
                acr = max(average_certified_radius(record.table) for _, record in chosen)
                said = _with_steps(_said(search, way), self._steps(method, chosen))
                head = (method, _OURS, said, _joined(map(level_name, sorted(_sigmas(chosen)))))
                rows.append((head, self._best_of(chosen), acr))
            if published := self._published(method):
                head = (
                    method,
                    _PAPER,
                    _paper_search(method),
                    _joined(map(level_name, sorted(self._paper_sigmas(method)))),
                )
                rows.append((head, published.accuracy, published.acr))
        radii = _telling(self._radii(), [curve for _, curve, _ in rows])
        cells = tuple(
            (*head, *(_percent(curve.get(r)) for r in radii), _NONE if acr is None else format_nearest(acr))
            for head, curve, acr in rows
        )
        is_ours = [head[1] == _OURS for head, _, _ in rows]
        values = np.array([[curve.get(r, np.nan) for r in radii] for _, curve, _ in rows]).reshape(len(rows), -1)
        return ResultTable(
            name=f"paper-best-l{self.norm}",
            caption="Best certified accuracy over sigma0 and K (those that are named, else all of the paper's) at each "
            f"l{self.norm} radius, and ACR. {self.scope} "
            "Our ACR is that of the single run with the largest; the paper does not say how it takes its.",
            header=("method", "whose", "search", "sigma0", *(f"{r:g}" for r in radii), "ACR"),
            rows=cells,
            best=_stressed(values, is_ours, first=4),
        )

    def gain(self) -> ResultTable:
        """What choosing sigma for each input adds to one sigma for all, in points."""
        rows: list[tuple[tuple[str, ...], Curve]] = []
        levels: list[float | None] = [None, *sorted({run.network.sigma for run, _ in self.done})]
        for method in self._methods():
            base = method.removesuffix("-ds2").removesuffix("-ds")
            for sigma in levels if method in (f"{base}-ds", f"{base}-ds2") else []:
                rows += self._gains(method, base, sigma)
        radii = _telling(self._radii(), [curve for _, curve in rows])
        return ResultTable(
            name=f"paper-gain-l{self.norm}",
            caption=f"Points of certified accuracy gained over one sigma for all, at each l{self.norm} radius; best "
            "over the K that are named, else over all of the paper's, and where it says best, over all sigma0 of the "
            f"paper, which ours then has too. {self.scope}",
            header=("gain of", "sigma0", "whose", "search", *(f"{r:g}" for r in radii)),
            rows=tuple((*head, *(_points(curve.get(r)) for r in radii)) for head, curve in rows),
        )

    def per_sigma(self) -> ResultTable:
        """Every run that the paper's appendix has too, each beside its own."""
        rows: list[tuple[tuple[str, ...], Curve]] = []
        for run, record in self.done:
            counterpart = self._counterpart(run)
            if counterpart is None:
                continue
            steps = str(run.search.steps) if isinstance(run.search, AscentSearch) else _NONE
            head = (str(run.method), level_name(run.network.sigma), steps)
            rows.append(((*head, _OURS), self._best_of([(run, record)])))
            rows.append(((*head, _PAPER), counterpart.accuracy))
        radii = _telling(self._radii(), [curve for _, curve in rows])
        return ResultTable(
            name=f"paper-per-sigma-l{self.norm}",
            caption=f"Certified accuracy of each run at each l{self.norm} radius beside the paper's appendix. "
            f"{self.scope}",
            header=("method", "sigma0", "K", "whose", *(f"{r:g}" for r in radii)),
            rows=tuple((*head, *(_percent(curve.get(r)) for r in radii)) for head, curve in rows),
        )

    def _gains(self, method: str, base: str, sigma: float | None) -> list[tuple[tuple[str, ...], Curve]]:
        # The best of more sigmas is larger by itself: all sides must have the same.
        sigmas = self._paper_sigmas(method) if sigma is None else {sigma}
        head = (f"{method} over {base}", "best" if sigma is None else level_name(sigma))
        rows: list[tuple[tuple[str, ...], Curve]] = []
        asked: list[Steps] = [()]  # the best of more K is larger by itself, too: beside ours stands that of the same
        for search, way in self._ways(method):
            chosen = self._chosen(method, search, way, sigma)
            alike = {_likeness(run, record, method) for run, record in chosen}
            fixed = [
                (run, record)
                for run, record in self.done
                if run.method == base and _likeness(run, record, method) in alike and sigma in (None, run.network.sigma)
            ]
            if _sigmas(chosen) == _sigmas(fixed) == sigmas and len(fixed) == len(sigmas):
                steps = self._steps(method, chosen)
                said = (*head, _OURS, _with_steps(_said(search, way), steps))
                rows.append((said, _minus(self._best_of(chosen), self._best_of(fixed))))
                asked.append(steps)
        base_of_theirs = self._published_best(base, sigma)
        for steps in dict.fromkeys(asked) if rows else []:
            theirs = self._published_best(method, sigma, steps)
            if theirs and base_of_theirs:
                said = (*head, _PAPER, _with_steps(_paper_search(method), steps))
                rows.append((said, _minus(theirs, base_of_theirs)))
        return rows

    def _steps(self, method: str, chosen: Done) -> Steps:
        """The K that these are the best of; none where there is no K, or where they are all that the paper has."""
        ours = {run.search.steps for run, _ in chosen if isinstance(run.search, AscentSearch)}
        return () if ours == {c.steps for c in self._of_paper() if c.method == method and c.steps} else (*sorted(ours),)

    def _methods(self) -> list[str]:
        return list(dict.fromkeys(str(run.method) for run, _ in self.done))

    def _ways(self, method: str) -> list[tuple[str, str]]:
        """The searches of a method and what else must be said: only runs that have both are best of one another."""
        found = ((search_name(record), self.ways[record.name]) for run, record in self.done if run.method == method)
        return list(dict.fromkeys(found))

    def _chosen(self, method: str, search: str, way: str, sigma: float | None = None) -> Done:
        return [
            (run, record)
            for run, record in self.done
            if (run.method, search_name(record), self.ways[record.name]) == (method, search, way)
            and sigma in (None, run.network.sigma)
        ]

    def _best_of(self, chosen: Done) -> Curve:
        radii = self._radii()
        curves = np.array([certified_accuracy(record.table, radii) for _, record in chosen])  # runs radii
        return dict(zip(radii, (100 * curves.max(axis=0)).tolist(), strict=True))

    def _of_paper(self) -> list[PublishedCurve]:
        return [c for c in published_curves() if (c.data, c.norm) == (self.experiment.report.paper, self.norm)]

    def _radii(self) -> list[float]:
        return sorted({radius for curve in self._of_paper() for radius in curve.accuracy})

    def _paper_sigmas(self, method: str) -> set[float]:
        """What the paper's best of a method is the best of: as its appendix has it, else as its text says for all."""
        listed = {c.sigma for c in self._of_paper() if c.method == method and c.sigma is not None}
        return listed or set(_LAMBDAS if self.norm == 1 else _PAPERS[self.experiment.report.paper].sigmas)

    def _published(self, method: str) -> PublishedCurve | None:
        """The paper's best of a method, over all its sigmas and K."""
        return next((c for c in self._of_paper() if c.sigma is None and c.method == method), None)

    def _published_best(self, method: str, sigma: float | None, steps: Steps = ()) -> Curve | None:
        """The paper's best of a method, at one sigma or over all, and over all K or over these, if it has them all."""
        if sigma is None and not steps:
            whole = self._published(method)
            return whole.accuracy if whole else None
        curves = [c for c in self._of_paper() if c.method == method and c.sigma and sigma in (None, c.sigma)]
        # Where the appendix has two trainings, its main tables have the one with more draws (MACER-DS^2: 8, not 1).
        draws = max((c.samples or 0 for c in curves), default=0)
        chosen = [c for c in curves if (c.samples or 0) == draws and (not steps or c.steps in steps)]
        if steps and len(chosen) < len(steps) * len({c.sigma for c in curves}):
            return None
        return {r: max(c.accuracy[r] for c in chosen) for r in chosen[0].accuracy} if chosen else None

    def _counterpart(self, run: Certification) -> PublishedCurve | None:
        if run.search_name not in ("fixed", "ascent-paper"):
            return None
        steps, samples = (run.search.steps, run.search.samples) if isinstance(run.search, AscentSearch) else (0, 1)
        wanted = (run.method, run.network.sigma, steps, samples)
        return next((c for c in self._of_paper() if (c.method, c.sigma, c.steps, c.samples) == wanted), None)


def _said(search: str, way: str) -> str:
    return ", ".join(filter(None, [search, way])) or _NONE


def _with_steps(search: str, steps: Steps) -> str:
    return f"{search}, K = {_joined(map(str, steps))}" if steps else search


def _likeness(run: Certification, record: Run, method: str) -> tuple[float, str, str]:
    """What a run and the one that is subtracted from it must have in common: sigma0, sampling, and the network.

    A network that was trained with per-input sigma is another by design: then it is the engine alone.
    """
    network = engine_of(record) if method.endswith("-ds2") else str(record.config.get("fingerprint"))
    return run.network.sigma, describe_sampling(record), network


def _paper_search(method: str) -> str:
    base, ds, _ = method.partition("-ds")
    return with_draws(ALGORITHM_1, _DRAWS.get(base, 1)) if ds else _NONE


def _sigmas(chosen: Done) -> set[float]:
    return {run.network.sigma for run, _ in chosen}


def _minus(one: Curve, other: Curve) -> Curve:
    return {radius: one[radius] - other[radius] for radius in one if radius in other}


def _telling(radii: Sequence[float], curves: Sequence[Curve]) -> list[float]:
    """The radii up to the last at which a curve says something."""
    last = max((r for curve in curves for r, value in curve.items() if value), default=0.0)
    return [radius for radius in radii if radius <= last]


def _stressed(values: np.ndarray, is_ours: Sequence[bool], *, first: int) -> frozenset[tuple[int, int]]:
    """The largest of ours in each column of numbers; `first` columns are words."""
    ours = [row for row, own in enumerate(is_ours) if own]
    return frozenset(
        (row, first + column)
        for column in range(values.shape[1])
        for row in ours
        if values[row, column] == np.nanmax(values[ours, column]) > 0
    )


def _joined(parts: Iterable[str], by: str = ", ") -> str:
    return by.join(dict.fromkeys(parts))


def _percent(value: float | None) -> str:
    return _NONE if value is None else format_nearest(value, 1)


def _points(value: float | None) -> str:
    return _NONE if value is None else format_signed(value, 1)
