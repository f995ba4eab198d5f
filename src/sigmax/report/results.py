"""The tables of a report, from runs. Cells are rounded for people, records are exact."""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from sigmax.records import Run
from sigmax.report.grouping import (
    UNKNOWN,
    Pair,
    Section,
    describe_samples,
    initial_sigma,
    method_of,
    samples_of,
    search_of,
    upper_bound,
)
from sigmax.report.metrics import (
    CONFIDENCE,
    accuracy_interval,
    acr_interval,
    average_certified_radius,
    certified_accuracy,
    compare_tables,
    envelope,
    gain_interval,
    kind_of_answers,
    summarise,
)
from sigmax.report.tables import ResultTable
from sigmax.rounding import format_nearest

SETTINGS = "settings"  # the name of that table
_PERCENT = f"{100 * CONFIDENCE:g} %"
_NEITHER = "-"  # of two runs has anything at a radius


def overview_table(section: Section) -> ResultTable:
    """Each run in a line: accuracy and ACR with intervals, ACR without inputs at the bound, abstentions."""
    rows, records = [], []
    for run in section.runs:
        summary = summarise(run.name, run.table, [0.0], upper=upper_bound(run))
        accuracy, acr = accuracy_interval(run.table, 0.0), acr_interval(run.table)
        has_bound = upper_bound(run) is not None
        inside = UNKNOWN if summary.acr_inside is None else format_nearest(summary.acr_inside)
        rows.append(
            (
                *(run.name, method_of(run), _shown(initial_sigma(run)), summary.answers),
                _with_interval(summary.accuracy[0], accuracy),
                _with_interval(summary.acr, acr),
                f"{inside} ({summary.at_bound})" if has_bound else UNKNOWN,
                format_nearest(summary.abstained),
            )
        )
        records.append(
            {
                "run": run.name,
                "method": method_of(run),
                "sigma0": initial_sigma(run),
                "answers": summary.answers,
                "inputs": summary.inputs,
                "n": samples_of(run),
                "accuracy": summary.accuracy[0],
                "accuracy_low": accuracy[0],
                "accuracy_high": accuracy[1],
                "acr": summary.acr,
                "acr_low": acr[0],
                "acr_high": acr[1],
                "at_bound": summary.at_bound if has_bound else None,
                "acr_inside": summary.acr_inside,
                "abstained": summary.abstained,
            }
        )
    return ResultTable(
        name=section.file("overview"),
        caption=f"Accuracy on clean inputs, average certified radius (ACR) and abstentions: {scope(section.runs)}. "
        f"In brackets {_PERCENT} intervals over inputs: exact binomial for accuracy, bootstrap for ACR. The inner ACR "
        "leaves out the inputs, counted in brackets, whose sigma is at the upper bound of its search.",
        header=("run", "method", "sigma0", "answers", "accuracy", "ACR", "inner ACR", "abstained"),
        rows=tuple(rows),
        best=_best(np.array([[run_acr(run)] for run in section.runs]), first=5),
        records=tuple(records),
    )


def accuracy_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Certified accuracy of each run at each radius."""
    curves = np.array([[*certified_accuracy(run.table, radii), run_acr(run)] for run in section.runs])  # runs radii+1
    names = [f"{radius:g}" for radius in radii]
    return ResultTable(
        name=section.file("accuracy"),
        caption=f"Certified accuracy at each l{_norm(section)} radius, and ACR: {scope(section.runs)}.",
        header=("run", *names, "ACR"),
        rows=tuple(
            (run.name, *map(format_nearest, row)) for run, row in zip(section.runs, curves.tolist(), strict=True)
        ),
        best=_best(curves, first=1),
        records=tuple(
            {"run": run.name, **dict(zip([*names, "acr"], row, strict=True))}
            for run, row in zip(section.runs, curves.tolist(), strict=True)
        ),
    )


def best_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """The best certified accuracy of each method at each radius over its runs, as the paper's tables."""
    curves, records = [], []
    for method, runs in section.methods.items():
        found = envelope([run.table for run in runs], radii)
        by_acr = max(runs, key=run_acr)
        curves.append([*found.accuracy.tolist(), run_acr(by_acr)])
        for radius, accuracy, place in zip(radii, found.accuracy.tolist(), found.best, strict=True):
            low, high = accuracy_interval(runs[place].table, radius)
            records.append(_record(method, "certified accuracy", radius, accuracy, low, high, runs[place]))
        records.append(_record(method, "ACR", None, run_acr(by_acr), *acr_interval(by_acr.table), by_acr))
    return ResultTable(
        name=section.file("best"),
        caption=f"Best certified accuracy of each method at each l{_norm(section)} radius, and best ACR, over its runs "
        f"(which of them, at which sigma0 and K, is chosen for each radius on the same inputs): {scope(section.runs)}.",
        header=("method", "runs", *(f"{radius:g}" for radius in radii), "ACR"),
        rows=tuple(
            (method, str(len(runs)), *map(format_nearest, row))
            for (method, runs), row in zip(section.methods.items(), curves, strict=True)
        ),
        best=_best(np.array(curves), first=2),
        records=tuple(records),
    )


def chosen_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Which run of a method is its best at which radii."""
    rows = []
    for method, runs in section.methods.items():
        found = envelope([run.table for run in runs], radii)
        by_acr = max(runs, key=run_acr)
        for place, run in enumerate(runs):
            columns = zip(radii, found.best, found.accuracy, strict=True)
            at = [f"{radius:g}" for radius, best, accuracy in columns if best == place and accuracy > 0]
            if at or run is by_acr:
                rows.append((method, run.name, ", ".join([*at, *(["ACR"] if run is by_acr else [])])))
    return ResultTable(
        name=section.file("chosen"),
        caption=f"The runs behind the best of each method, and the radii at which they are (the first of equals): "
        f"{scope(section.runs)}.",
        header=("method", "run", "best at"),
        rows=tuple(rows),
    )


def comparison_table(section: Section, pairs: Sequence[Pair]) -> ResultTable:
    """Each per-input run against its baseline: how many inputs gained and lost, by how much, with an exact test."""
    found = [compare_tables(pair.run.table, pair.baseline.table) for pair in pairs]
    left_out = sum(comparison.left_out for comparison in found)
    intervals = [gain_interval(pair.run.table, pair.baseline.table) for pair in pairs]
    return ResultTable(
        name=section.file("comparison"),
        caption="Radius of each input against the same input in the baseline, wrong answers counting as 0: "
        f"{scope_of_pairs(pairs)}. In brackets {_PERCENT} intervals of the mean gain by the bootstrap over inputs; p "
        "is of the exact sign test, two-sided, which asks how many gained, not by how much."
        + (f" Inputs that only one run of a pair has are left out ({left_out:,})." if left_out else ""),
        header=("run", "baseline", "inputs", "gained", "lost", "equal", "mean gain", "p"),
        rows=tuple(
            (
                *(pair.run.name, pair.baseline.name),
                *(f"{count:,}" for count in (c.inputs, c.gained, c.lost, c.equal)),
                f"{format_signed(c.mean_gain)} [{format_signed(low)}, {format_signed(high)}]",
                format_p(c.p_value),
            )
            for pair, c, (low, high) in zip(pairs, found, intervals, strict=True)
        ),
        records=tuple(
            {
                "run": pair.run.name,
                "baseline": pair.baseline.name,
                **{k: v for k, v in asdict(c).items() if k != "at"},
                "mean_gain_low": low,
                "mean_gain_high": high,
            }
            for pair, c, (low, high) in zip(pairs, found, intervals, strict=True)
        ),
    )


def gain_table(section: Section, pairs: Sequence[Pair], radii: Sequence[float]) -> ResultTable:
    """Certified accuracy gained over the baseline at each radius, with an exact test of each."""
    found = [compare_tables(pair.run.table, pair.baseline.table, radii) for pair in pairs]
    return ResultTable(
        name=section.file("gain"),
        caption=f"Certified accuracy gained over the baseline at each l{_norm(section)} radius, with p of the exact "
        f"McNemar test in brackets, two-sided and not corrected for the number of tests ({_NEITHER}: neither certifies "
        "any input): "
        f"{scope_of_pairs(pairs)}.",
        header=("run", "baseline", *(f"{radius:g}" for radius in radii)),
        rows=tuple(
            (
                *(pair.run.name, pair.baseline.name),
                *(
                    f"{format_signed(at.accuracy - at.baseline_accuracy)} ({format_p(at.p_value)})"
                    if at.accuracy or at.baseline_accuracy
                    else _NEITHER
                    for at in comparison.at
                ),
            )
            for pair, comparison in zip(pairs, found, strict=True)
        ),
        records=tuple(
            {"run": pair.run.name, "baseline": pair.baseline.name, **asdict(at)}
            for pair, comparison in zip(pairs, found, strict=True)
            for at in comparison.at
        ),
    )


def runtime_table(section: Section) -> ResultTable:
    """Seconds per input and in all, of the runs whose records say so."""
    timed = [run for run in section.runs if has_times(run)]
    return ResultTable(
        name=section.file("runtime"),
        caption=f"Seconds per input as recorded, and in all: {scope(timed)}. Where inputs are searched in groups, the "
        "time of a group is on its first input: the mean tells more than the median.",
        header=("run", "median", "mean", "total"),
        rows=tuple(
            (run.name, *(format_nearest(value, 2) for value in (np.median(s), s.mean())), f"{s.sum():,.0f}")
            for run in timed
            for s in [run.table.seconds]
        ),
        records=tuple(
            {"run": run.name, "median": float(np.median(s)), "mean": float(s.mean()), "total": float(s.sum())}
            for run in timed
            for s in [run.table.seconds]
        ),
    )


def settings_table(runs: Sequence[Run]) -> ResultTable:
    """What every run was made with."""
    rows = [settings_of(run) for run in runs]
    return ResultTable(
        name=SETTINGS,
        caption=f"The settings of every run ({UNKNOWN}: its record does not say); each has its own inputs, n and kind "
        "of certificate, point or settled.",
        header=tuple(rows[0]),
        rows=tuple(tuple(row.values()) for row in rows),
    )


def settings_of(run: Run, unknown: str = UNKNOWN) -> dict[str, str]:
    """What a run was made with, in words, by name."""
    table, config = run.table, run.config
    said = {
        "certificates": kind_of_answers(table),
        "model": run.note("model"),
        "engine": run.note("engine"),
        "data": run.note("data"),
        "inputs": f"{len(table):,}" + (f" ({table.dropped} cut off)" if table.dropped else ""),
        "norm": f"l{table.norm}",
        "sigma0": initial_sigma(run),
        "search": _search(run),
        "n0": config.get("n0"),
        "n": describe_samples(run, unknown),
        "alpha": config.get("alpha"),
        "seed": None if config.get("seed") is None else str(config["seed"]),  # no number to count with
    }
    return {"run": run.name} | {name: unknown if value is None else _shown(value) for name, value in said.items()}


def run_acr(run: Run) -> float:
    """ACR of a run."""
    return average_certified_radius(run.table)


def has_times(run: Run) -> bool:
    """Whether its record says how long every input took."""
    return bool(np.isfinite(run.table.seconds).all())


def describe_inputs(runs: Sequence[Run]) -> str:
    """How many inputs these runs have, of which data sets."""
    counts = " or ".join(f"{n:,}" for n in sorted({len(run.table) for run in runs}))
    names = sorted({said.partition(":")[0] for run in runs if (said := run.note("data"))})
    return f"{counts} inputs" + (f" of {' and '.join(names)}" if names else "")


def scope(runs: Sequence[Run]) -> str:
    """What a caption must say of its runs: how many inputs, which n and alpha, which kind of certificate."""
    kinds = sorted({kind_of_answers(run.table) for run in runs})
    sampled = sorted(runs, key=lambda run: samples_of(run) or 0)
    ns = " or ".join(dict.fromkeys(describe_samples(run, "not recorded") for run in sampled))
    alphas = " or ".join(f"{a:g}" for a in sorted({run.config["alpha"] for run in runs if "alpha" in run.config}))
    said = f"n = {ns}" + (f", alpha = {alphas}" if alphas else "")
    return f"{describe_inputs(runs)}, {said}, {' and '.join(kinds)} certificates"


def scope_of_pairs(pairs: Sequence[Pair]) -> str:
    """What the caption of a comparison must say of both sides."""
    runs, baselines = scope([pair.run for pair in pairs]), scope([pair.baseline for pair in pairs])
    said = runs if runs == baselines else f"{runs}; baselines: {baselines}"
    is_said = all(_network(pair.run) and _network(pair.baseline) for pair in pairs)
    return said if is_said else f"{said}; logs that do not say their network are taken to be of one"


def _network(run: Run) -> str | None:
    return run.config.get("fingerprint") or run.note("model")


def format_p(p: float) -> str:
    """A p-value with three decimals."""
    return "<0.001" if p < 0.001 else format_nearest(p)


def format_signed(value: float, digits: int = 3) -> str:
    """A difference with its sign and so many decimals; no sign for what rounds to nothing."""
    shown = format_nearest(abs(value), digits)
    return f"{'-' if value < 0 else '+'}{shown}" if float(shown) else shown


def _search(run: Run) -> str | None:
    """Its search: the kind and what it was set to."""
    said = search_of(run)
    known = {key: value for key, value in said.items() if key not in ("kind", "initial")}
    if known.get("bounds", ()) is None and upper_bound(run) is not None:  # of our searches, not of one's own
        known["bounds"] = "sigma0 / 4 to 2 sigma0"
    own = [f"{key} {value}" for key, value in known.items() if value is not None]
    return ": ".join([said["kind"], *([", ".join(own)] if own else [])]) if said else None


def _norm(section: Section) -> int:
    return section.runs[0].table.norm


def _record(
    method: str, measure: str, radius: float | None, value: float, low: float, high: float, run: Run
) -> dict[str, object]:
    return {
        "method": method,
        "measure": measure,
        "radius": radius,
        "value": value,
        "low": low,
        "high": high,
        "run": run.name,
    }


def _best(values: NDArray[np.float64], *, first: int) -> frozenset[tuple[int, int]]:
    """The cells with the largest value of their column, where there is a choice and something to praise."""
    if len(values) < 2:
        return frozenset()
    is_best = (values == values.max(axis=0)) & (values > 0)
    return frozenset((int(row), int(column) + first) for row, column in np.argwhere(is_best))


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    low, high = map(format_nearest, interval)
    is_known = interval[0] < interval[1]  # of inputs that are all alike the bootstrap knows nothing
    return f"{format_nearest(value)} [{low}, {high}]" if is_known else format_nearest(value)


def _shown(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
