"""The paper's own numbers beside ours, with both settings, so that a smaller run is not taken for a replication."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sigmax.data import ImageSource
from sigmax.records import Run
from sigmax.report.grouping import ALGORITHM_1, search_name
from sigmax.report.metrics import average_certified_radius, certified_accuracy
from sigmax.report.paper import PublishedCurve, published_curves
from sigmax.report.results import describe_samples, format_signed
from sigmax.report.tables import ResultTable
from sigmax.reproduce.experiment import Certification, Experiment
from sigmax.rounding import format_nearest
from sigmax.sigma import AscentSearch

Done = Sequence[tuple[Certification, Run]]
Curve = dict[float, float]  # radius -> percent

_OURS, _PAPER, _NONE = "ours", "paper", "-"
_PAPER_DATA = {
    "cifar10": ("CIFAR-10", "ResNet-18", "200; SmoothAdv-DS^2 fine-tuned, epochs not said", "0.12, 0.25, 0.50"),
    "imagenet": ("ImageNet", "ResNet-50", "networks of others; DS^2: 30 of fine-tuning", "0.25, 0.50, 1.00"),
}
# By the steps in which its percentages come: 0.01 and 0.2.
_PAPER_INPUTS = {"cifar10": "10,000", "imagenet": "500"}
_PAPER_STEPS = {"cifar10": "Algorithm 1, K = 100 to 1,500", "imagenet": "Algorithm 1, K = 100 to 400"}


def compare_with_paper(experiment: Experiment, done: Done, *, data: ImageSource) -> list[ResultTable]:
    """Settings first, then what the experiment's report asks for; only of certifications that are complete."""
    known = [(run, record) for run, record in done if run.method is not None]
    if not known:
        return []
    tables = [_settings(experiment, known, data)]
    scope = _scope(experiment, known)
    for norm in sorted({run.noise.norm for run, _ in known}, reverse=True):
        sheet = _Sheet(experiment, [(run, record) for run, record in known if run.noise.norm == norm], norm, scope)
        found = {"best": sheet.best, "gain": sheet.gain, "per-sigma": sheet.per_sigma}
        made = [found[kind]() for kind in experiment.report.tables]
        tables += [table for table in made if table.rows]
    return tables


def _settings(experiment: Experiment, done: Done, data: ImageSource) -> ResultTable:
    paper_data, network, epochs, sigmas = _PAPER_DATA[experiment.report.paper]
    networks = list({run.network.name: run.network for run, _ in done}.values())
    trained = {n.family: f"{n.family} {n.recipe.epochs}" for n in networks if n.recipe}
    existing = {n.model: n.model for n in networks if n.model}
    budgets = [run.budget for run, _ in done]
    lambdas = _joined(f"{run.network.sigma:.2f}" for run, _ in done if run.noise.norm == 1)
    rows = [
        ("data", data.name.partition(":")[0], paper_data),
        ("images certified", f"{len(done[0][1].table):,}", f"{_PAPER_INPUTS[experiment.report.paper]}; l1: not said"),
        ("network", _joined(n.arch for n in networks), network),
        ("epochs of training", _joined([*trained.values(), *existing.values()]), epochs),
        ("sigma0 (l2)", _joined(f"{run.network.sigma:.2f}" for run, _ in done if run.noise.norm == 2) or _NONE, sigmas),
        ("lambda (l1)", lambdas or _NONE, "0.25, 0.50, 1.00"),
        (
            "search",
            "; ".join(dict.fromkeys(_search(run, record) for run, record in done)),
            _PAPER_STEPS[experiment.report.paper],
        ),
        ("n0", _joined(f"{budget.n0:,}" for budget in budgets), "100"),
        ("n", _joined(describe_samples(run) for _, run in done), "100,000"),
        ("alpha", _joined(f"{budget.alpha:g}" for budget in budgets), "0.001"),
        ("stops early at a loss of", _joined(f"{budget.tolerance:g}" for budget in budgets), "0"),
    ]
    return ResultTable(
        name="paper-settings",
        caption="How this experiment and the paper were set. Where they differ, the numbers below are no replication.",
        header=("setting", _OURS, _PAPER),
        rows=tuple(rows),
    )


def _search(run: Certification, record: Run) -> str:
    name = search_name(record) or "fixed"
    return f"{name}, K = {run.search.steps}" if isinstance(run.search, AscentSearch) else name


def _scope(experiment: Experiment, done: Done) -> str:
    ours = f"{len(done[0][1].table):,} inputs of {experiment.data.name.partition(':')[0]}"
    ours += f", n = {_joined(describe_samples(run) for _, run in done)}"
    paper = _PAPER_DATA[experiment.report.paper]
    return (
        f"Percent. Ours: {ours}, {_joined(run.network.arch for run, _ in done)}; per-input answers are settled by a "
        f"memory. Paper: {paper[0]}, n = 100,000, {paper[1]}."
    )


@final
@dataclass(frozen=True, slots=True)
class _Sheet:
    """The tables of one norm."""

    experiment: Experiment
    done: Done
    norm: int
    scope: str

    def best(self) -> ResultTable:
        """The best over sigma and K at each radius, as the paper's main tables."""
        rows: list[tuple[tuple[str, ...], Curve, float | None]] = []
        for method in self._methods():
            for search in self._searches(method):
                chosen = self._chosen(method, search)
                acr = max(average_certified_radius(record.table) for _, record in chosen)
                rows.append(((method, _OURS, search or _NONE), self._best_of(chosen), acr))
            if published := self._published(method):
                rows.append(((method, _PAPER, _paper_search(method)), published.accuracy, published.acr))
        radii = _telling(self._radii(), [curve for _, curve, _ in rows])
        cells = tuple(
            (*head, *(_percent(curve.get(r)) for r in radii), _NONE if acr is None else format_nearest(acr))
            for head, curve, acr in rows
        )
        is_ours = [head[1] == _OURS for head, _, _ in rows]
        values = np.array([[curve.get(r, np.nan) for r in radii] for _, curve, _ in rows]).reshape(len(rows), -1)
        return ResultTable(
            name=f"paper-best-l{self.norm}",
            caption=f"Best certified accuracy over sigma0 and K at each l{self.norm} radius, and ACR. {self.scope} "
            "Our ACR is that of the single run with the largest; the paper does not say how it takes its.",
            header=("method", "whose", "search", *(f"{r:g}" for r in radii), "ACR"),
            rows=cells,
            best=_stressed(values, is_ours, first=3),
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
            f"over K, and where it says best, over the sigma0, which are then the same for both. {self.scope}",
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
            head = (str(run.method), f"{run.network.sigma:.2f}", steps)
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
        fixed = self._chosen(base, "", sigma)
        head = (f"{method} over {base}", "best" if sigma is None else f"{sigma:.2f}")
        rows: list[tuple[tuple[str, ...], Curve]] = []
        for search in self._searches(method):
            chosen = self._chosen(method, search, sigma)
            # The best of more sigmas is larger by itself: both sides must have the same.
            has_same = {run.network.sigma for run, _ in chosen} == {run.network.sigma for run, _ in fixed}
            if chosen and has_same:
                rows.append(((*head, _OURS, search), _minus(self._best_of(chosen), self._best_of(fixed))))
        theirs, base_of_theirs = self._published_best(method, sigma), self._published_best(base, sigma)
        if rows and theirs and base_of_theirs:
            rows.append(((*head, _PAPER, _paper_search(method)), _minus(theirs, base_of_theirs)))
        return rows

    def _methods(self) -> list[str]:
        return list(dict.fromkeys(str(run.method) for run, _ in self.done))

    def _searches(self, method: str) -> list[str]:
        return list(dict.fromkeys(search_name(record) for run, record in self.done if run.method == method))

    def _chosen(self, method: str, search: str, sigma: float | None = None) -> Done:
        return [
            (run, record)
            for run, record in self.done
            if (run.method, search_name(record)) == (method, search) and sigma in (None, run.network.sigma)
        ]

    def _best_of(self, chosen: Done) -> Curve:
        radii = self._radii()
        curves = np.array([certified_accuracy(record.table, radii) for _, record in chosen])  # runs radii
        return dict(zip(radii, (100 * curves.max(axis=0)).tolist(), strict=True))

    def _of_paper(self) -> list[PublishedCurve]:
        return [c for c in published_curves() if (c.data, c.norm) == (self.experiment.report.paper, self.norm)]

    def _radii(self) -> list[float]:
        return sorted({radius for curve in self._of_paper() for radius in curve.accuracy})

    def _published(self, method: str) -> PublishedCurve | None:
        """The paper's best of a method, over all its sigmas and K."""
        return next((c for c in self._of_paper() if c.sigma is None and c.method == method), None)

    def _published_best(self, method: str, sigma: float | None) -> Curve | None:
        if sigma is None:
            whole = self._published(method)
            return whole.accuracy if whole else None
        curves = [c for c in self._of_paper() if (c.method, c.sigma) == (method, sigma)]
        # Where the appendix has two trainings, its main tables have the one with more draws (MACER-DS^2: 8, not 1).
        draws = max((c.samples or 0 for c in curves), default=0)
        chosen = [c.accuracy for c in curves if (c.samples or 0) == draws]
        return {r: max(curve[r] for curve in chosen) for r in chosen[0]} if chosen else None

    def _counterpart(self, run: Certification) -> PublishedCurve | None:
        if run.search_name not in ("fixed", "ascent-paper"):
            return None
        steps, samples = (run.search.steps, run.search.samples) if isinstance(run.search, AscentSearch) else (0, 1)
        wanted = (run.method, run.network.sigma, steps, samples)
        return next((c for c in self._of_paper() if (c.method, c.sigma, c.steps, c.samples) == wanted), None)


def _paper_search(method: str) -> str:
    return ALGORITHM_1 if method.endswith(("-ds", "-ds2")) else _NONE


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


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(parts))


def _percent(value: float | None) -> str:
    return _NONE if value is None else format_nearest(value, 1)


def _points(value: float | None) -> str:
    return _NONE if value is None else format_signed(value, 1)
