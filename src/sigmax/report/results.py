"""The tables of a report: their cells are rounded for people and exact for programs."""

from collections.abc import Callable, Sequence

import numpy as np

from sigmax import metrics
from sigmax.noise import Gaussian, Uniform
from sigmax.report.entries import Entry, describe_named, joined
from sigmax.report.pairing import Pair
from sigmax.report.sections import Section
from sigmax.report.tables import Cell, ResultTable
from sigmax.rounding import format_nearest, format_whole

UNKNOWN = "-"  # the record does not say
_PERCENT = f"{100 * metrics.CONFIDENCE:g} %"
_Show = Callable[[float], str]


def overview_table(section: Section) -> ResultTable:
    """Each run in a line: accuracy and ACR with intervals, ACR without inputs at the bound, abstentions."""
    rows = []
    for run in section.runs:
        summary = metrics.summarise(run.name, run.table, [0.0], upper=run.upper)
        accuracy = _number(summary.accuracy[0], metrics.accuracy_interval(run.table, 0.0))
        acr, inside = _number(summary.acr, metrics.acr_interval(run.table)), _number(summary.acr_inside)
        at_bound = None if run.upper is None else summary.at_bound
        inner = Cell(UNKNOWN if at_bound is None else f"{inside} ({at_bound})", inside.value, at_bound=at_bound)
        sigma, abstained = _number(run.sigma0, show="{:g}".format), _number(summary.abstained)
        row = {"run": section.label(run), "method": run.method, "sigma0": sigma, "answers": summary.answers}
        rows.append(row | {"accuracy": accuracy, "ACR": acr, "inner ACR": inner, "abstained": abstained})
    said = f"Accuracy on clean inputs, average certified radius (ACR) and abstentions: {scope(section.runs)}. Brackets "
    said += f"hold {_PERCENT} intervals over inputs: exact binomial for accuracy, bootstrap for ACR. The inner ACR "
    said += "leaves out the inputs whose sigma is at the upper bound of its search; their number is in brackets."
    return ResultTable.of(section.file("overview"), said, rows, ["ACR"])


def accuracy_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Certified accuracy of each run at each radius."""
    names, rows = [*map(format_whole, radii), "ACR"], []
    for run in section.runs:
        values = [*metrics.certified_accuracy(run.table, radii).tolist(), run.acr]
        rows.append({"run": section.label(run), **dict(zip(names, map(_number, values), strict=True))})
    said = f"Certified accuracy at each l{section.norm} radius, and ACR: {scope(section.runs)}."
    return ResultTable.of(section.file("accuracy"), said, rows, names)


def best_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """The best certified accuracy of each method at each radius over its runs, as the paper's tables."""
    rows = []
    for method, runs in section.series.items():
        row = {"method": joined(*method), "runs": str(len(runs))}
        for name, value, run, (low, high) in _choices(runs, radii):
            row[name] = Cell(format_nearest(value), value, low=low, high=high, run=run.name)
        rows.append(row)
    said = f"Best certified accuracy of each method at each l{section.norm} radius, and best ACR. For each of these, "
    said += f"the best of its runs over sigma0 and K is chosen on the same inputs: {scope(section.runs)}."
    return ResultTable.of(section.file("best"), said, rows, [*rows[0]][2:])


def chosen_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Which run of a method is its best at which radii."""
    rows = []
    for method, runs in section.series.items():
        chosen = [(name, run) for name, value, run, _ in _choices(runs, radii) if value or name == "ACR"]
        at = {run: ", ".join(name for name, best in chosen if best is run) for run in runs}
        rows += [{"method": joined(*method), "run": run.name, "best at": names} for run, names in at.items() if names]
    said = "The runs behind the best of each method, and the radii at which they are the best (the first of equals)"
    return ResultTable.of(section.file("chosen"), f"{said}: {scope(section.runs)}.", rows)


def _choices(runs: Sequence[Entry], radii: Sequence[float]) -> list[tuple[str, float, Entry, metrics.Interval]]:
    """The best of a method at each radius and by ACR, the first run that has it, and its interval."""
    accuracy, places = metrics.envelope([run.table for run in runs], radii)
    at = zip(radii, accuracy.tolist(), (runs[place] for place in places), strict=True)
    run = max(runs, key=lambda run: run.acr)
    best = [(format_whole(r), value, run, metrics.accuracy_interval(run.table, r)) for r, value, run in at]
    return [*best, ("ACR", run.acr, run, metrics.acr_interval(run.table))]


def comparison_table(section: Section, pairs: Sequence[Pair]) -> ResultTable:
    """Each run against its baseline: how many inputs gained and lost, by how much, with an exact test."""
    rows, left_out = [], 0
    for pair in pairs:
        tables = pair.run.table, pair.baseline.table
        found = metrics.compare_tables(*tables)
        counts = {name: Cell(f"{getattr(found, name):,}", getattr(found, name)) for name in ("gained", "lost", "equal")}
        inputs = Cell(f"{found.inputs:,}", found.inputs, left_out=found.left_out)
        gain = _number(found.mean_gain, metrics.gain_interval(*tables), show=format_signed)
        row = {**_names(section, pair), "inputs": inputs, **counts, "mean gain": gain}
        rows.append(row | {"p": _number(found.p_value, show=format_p)})
        left_out += found.left_out
    said = "Radius of each input against the same input in the baseline, wrong answers counting as 0: "
    said += f"{scope_of_pairs(pairs)}. Brackets hold {_PERCENT} bootstrap intervals of the mean gain. p is of the "
    said += "two-sided exact sign test, which counts gains and losses whatever their size."
    said += f" Inputs that only one run of a pair has are left out ({left_out:,})." if left_out else ""
    return ResultTable.of(section.file("comparison"), said, rows)


def _names(section: Section, pair: Pair) -> dict[str, str]:
    return {"run": section.label(pair.run), "baseline": section.label(pair.baseline)}


def gain_table(section: Section, pairs: Sequence[Pair], radii: Sequence[float]) -> ResultTable:
    """Certified accuracy gained over the baseline at each radius, with an exact test of each."""
    rows = []
    for pair in pairs:
        row: dict[str, str] = _names(section, pair)
        for radius in radii:
            at = metrics.compare_tables(pair.run.table, pair.baseline.table, radius=radius)
            text = f"{format_signed(at.mean_gain)} ({format_p(at.p_value)})" if at.mean or at.baseline_mean else UNKNOWN
            sides = {"accuracy": at.mean, "baseline_accuracy": at.baseline_mean, "gained": at.gained, "lost": at.lost}
            row[format_whole(radius)] = Cell(text, at.mean_gain, **sides, p_value=at.p_value)
        rows.append(row)
    said = f"Certified accuracy gained over the baseline at each l{section.norm} radius. Brackets hold p of the "
    said += f"two-sided exact McNemar test, not corrected for the number of tests ({UNKNOWN}: neither certifies any "
    said += f"input): {scope_of_pairs(pairs)}."
    return ResultTable.of(section.file("gain"), said, rows)


def orders_table(section: Section) -> ResultTable:
    """How much settled answers depend on the order of the inputs, of the runs that were settled in other orders."""
    rows = []
    for run in section.runs:
        if run.orders is not None:
            found = run.orders
            counts = {"orders": found.orders, "answers": found.answers, "labels": found.labels, "radii": found.radii}
            cells = {name: Cell(f"{count:,}", count) for name, count in counts.items()}
            change = Cell(format_nearest(found.largest), found.largest)
            rows.append({"run": section.label(run), **cells, "largest change": change})
    said = "Inputs whose settled answer, label or radius ever differs when the points are settled in random orders, "
    said += f"and the largest change of a radius: {scope([run for run in section.runs if run.orders is not None])}."
    return ResultTable.of(section.file("orders"), said, rows)


def runtime_table(section: Section) -> ResultTable:
    """Seconds per input and in all, of the runs whose records say so."""
    timed, rows = [run for run in section.runs if run.has_times], []
    for run in timed:
        seconds = run.table.seconds
        means = {name: float(of(seconds)) for name, of in (("median", np.median), ("mean", np.mean))}
        cells = {name: Cell(format_nearest(value, 2), value) for name, value in means.items()}
        rows.append({"run": section.label(run), **cells, "total": Cell(f"{seconds.sum():,.0f}", float(seconds.sum()))})
    said = f"Seconds per input as recorded, and in all: {scope(timed)}. Inputs that are searched in a group have the "
    said += "time of the group on the first of them: the mean tells more than the median."
    return ResultTable.of(section.file("runtime"), said, rows)


def settings_table(runs: Sequence[Entry]) -> ResultTable:
    """What every run was made with."""
    said = f"The settings of every run ({UNKNOWN}: not recorded)."
    return ResultTable.of("settings", said, [settings_of(run) for run in runs])


def settings_of(run: Entry) -> dict[str, str]:
    """What a run was made with, in words, by name."""
    table, spec = run.table, run.spec
    own_noise = describe_named(spec.noise) if spec and not isinstance(spec.noise, Gaussian | Uniform) else ""
    said = {
        "run": run.name,
        "certificates": joined(metrics.kind_of_answers(table), run.noise),
        "model": spec and joined(spec.model.name, f"denoiser {spec.model.denoiser}" if spec.model.denoiser else ""),
        "backend": run.backend,
        "data": spec and joined(spec.data.name, f"resized {spec.data.preprocess}" if spec.data.preprocess else ""),
        "inputs": f"{len(table):,}" + (f" ({table.dropped} cut off)" if table.dropped else ""),
        "norm": joined(f"l{table.norm}", own_noise),
        "sigma0": _number(run.sigma0, show="{:g}".format),
        "search": spec and describe_named(spec.search),
        "n0": spec and f"{spec.budget.n0:,}",
        "n": run.n and run.samples,
        "alpha": spec and format_whole(spec.budget.alpha),
        "seed": spec and str(spec.budget.seed),
    }
    return {name: str(value or UNKNOWN) for name, value in said.items()}


def scope(runs: Sequence[Entry]) -> str:
    """What a caption must say: inputs, n, alpha, kinds of noise and certificate, and a backend other than PyTorch."""
    counts = " or ".join(f"{n:,}" for n in sorted({len(run.table) for run in runs}))
    kinds = " and ".join(sorted({run.kind for run in runs} - {""}))
    ns = " or ".join(dict.fromkeys(run.samples for run in sorted(runs, key=lambda run: run.n or 0)))
    alphas = " or ".join(map(format_whole, sorted({run.spec.budget.alpha for run in runs if run.spec})))
    names = sorted({run.backend.partition(" ")[0] for run in runs} - {""})
    backends = f"run by {' or '.join(names)}" if any(run.special_backend for run in runs) else ""
    answers = " and ".join(sorted({metrics.kind_of_answers(run.table) for run in runs}))
    inputs = f"{counts} inputs" + (f" of {kinds}" if kinds else "")
    noises = " and ".join(sorted({run.noise for run in runs} - {""}))
    noise = f"{noises} noise" if noises else ""
    alpha = f"alpha = {alphas}" if alphas else ""
    return joined(inputs, f"n = {ns}", alpha, backends, noise, f"{answers} certificates")


def scope_of_pairs(pairs: Sequence[Pair]) -> str:
    """What the caption of a comparison must say of both sides."""
    runs, baselines = scope([pair.run for pair in pairs]), scope([pair.baseline for pair in pairs])
    said = runs if runs == baselines else f"{runs}; baselines: {baselines}"
    is_known = all(pair.run.network and pair.baseline.network for pair in pairs)
    return said if is_known else f"{said}; logs that do not say their network are taken to be of one"


def format_p(p: float) -> str:
    """A p-value with three decimals."""
    return "<0.001" if p < 0.001 else format_nearest(p)


def format_signed(value: float, digits: int = 3) -> str:
    """A difference with its sign and so many decimals; no sign for what rounds to 0."""
    shown = format_nearest(abs(value), digits)
    return f"{'-' if value < 0 else '+'}{shown}" if float(shown) else shown


def _number(value: float | None, interval: metrics.Interval | None = None, *, show: _Show = format_nearest) -> Cell:
    if value is None or interval is None:
        return Cell(UNKNOWN if value is None else show(value), value)
    low, high = interval
    is_known = low < high  # of inputs that are all alike the bootstrap knows nothing
    return Cell(f"{show(value)} [{show(low)}, {show(high)}]" if is_known else show(value), value, low=low, high=high)
