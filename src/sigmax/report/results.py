"""The tables of a report: their cells are rounded for people and exact for programs."""

from collections.abc import Callable, Sequence

import numpy as np

from sigmax import metrics
from sigmax.noise import Gaussian, Uniform
from sigmax.report.entries import Entry, describe_choice, describe_named, joined, kinds_of_answers
from sigmax.report.pairing import Pair
from sigmax.report.sections import Section, telling_runs
from sigmax.report.tables import Cell, ResultTable
from sigmax.rounding import format_nearest, format_whole

UNKNOWN = "-"  # the record does not say
_PERCENT = f"{100 * metrics.CONFIDENCE:g} %"
_LEAST_P = 0.001  # smaller ones are not told apart
_MOST_HEADLINES = 6
_Show = Callable[[float], str]


def headlines(section: Section, pairs: Sequence[Pair]) -> list[str]:
    """What the best per-input run of each method gains over its baseline; without any, the run with the largest ACR."""
    telling = {pair.run: pair for pair in pairs}
    shown = [telling[run] for run in telling_runs(section) if run in telling] or list(pairs)
    if not shown:
        best = max(section.runs, key=lambda run: run.acr)
        accuracy = format_nearest(float(metrics.certified_accuracy(best.table, 0.0)))
        return [f"{section.label(best)}: ACR {best.acr_text}, accuracy {accuracy}. It has no baseline here."]
    return [_headline(pair, is_only=len(shown) == 1) for pair in shown[:_MOST_HEADLINES]]


def _headline(pair: Pair, *, is_only: bool) -> str:
    run, baseline = pair
    found = metrics.compare_tables(run.table, baseline.table)
    means = (found.baseline_mean, baseline.is_at), (found.mean, run.is_at)
    before, after = (metrics.format_acr(mean, is_at=is_at) for mean, is_at in means)
    names = run.name, baseline.name
    if run.is_per_input and baseline.is_per_input is False and run.spec:
        at = "" if is_only or run.sigma0 is None else f", sigma0 = {run.sigma0:g}"
        family = "" if run.family.startswith("per-input") else run.family
        names = f"per-input sigma ({joined(family, run.search)}{at})", "one sigma"
    p = f"p < {_LEAST_P:g}" if found.p_value < _LEAST_P else f"p = {format_p(found.p_value)}"
    said = f"{names[0]} against {names[1]}: ACR {before} → {after}, {found.gained:,} of {found.inputs:,} gained, "
    said += joined(f"{found.lost:,} lost", p)
    return joined(said, f"run by {run.special_backend}" if run.special_backend else "")


def overview_table(section: Section, pairs: Sequence[Pair] = ()) -> ResultTable:
    """Each run in a line: accuracy and ACR with intervals, ACR without inputs at the bound, abstentions."""
    rows, baselines = [], {pair.run: pair.baseline.table for pair in pairs}
    for run in section.runs:
        summary = metrics.summarise(run.name, run.table, [0.0], upper=run.upper)
        accuracy = _number(summary.accuracy[0], metrics.accuracy_interval(run.table, 0.0))
        acr = _number(summary.acr, metrics.acr_interval(run.table), mark="*" if run.is_at else "")
        inside, other = (_number(value) for value in metrics.inner_acrs(run.table, run.upper, baselines.get(run)))
        at_bound = None if run.upper is None else summary.at_bound
        beside = "" if other.value is None else f"; baseline {other}"
        inner = UNKNOWN if at_bound is None else f"{inside} ({at_bound}{beside})"
        inner = Cell(inner, inside.value, at_bound=at_bound, baseline=other.value)
        sigma, abstained = _number(run.sigma0, show="{:g}".format), _number(summary.abstained)
        row = {"run": section.label(run), "method": run.method, "sigma0": sigma, "answers": summary.answers}
        rows.append(row | {"accuracy": accuracy, "ACR": acr, "inner ACR": inner, "abstained": abstained})
    said = f"Accuracy and average certified radius (ACR), with {_PERCENT} intervals over inputs. The inner ACR leaves "
    said += "out inputs whose sigma is at the upper bound; brackets hold their number and the ACR of the baseline "
    said += f"without them.{at_note(section.runs)}"
    return ResultTable.of(section.file("overview"), said, rows, ["ACR"], scope=scope(section.runs))


def at_note(runs: Sequence[Entry]) -> str:
    """What the mark at an ACR means, where one has it."""
    return " *: radii are rounded down to those of --at, and so is the ACR." if any(run.is_at for run in runs) else ""


def accuracy_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Certified accuracy of each run at each radius."""
    names, rows = [*map(format_whole, radii), "ACR"], []
    for run in section.runs:
        values = dict(zip(names, map(_number, metrics.certified_accuracy(run.table, radii).tolist()), strict=False))
        rows.append({"run": section.label(run), **values, "ACR": Cell(run.acr_text, run.acr)})
    said = f"Certified accuracy of each run at each l{section.norm} radius, and ACR.{at_note(section.runs)}"
    return ResultTable.of(section.file("accuracy"), said, rows, names, scope=scope(section.runs))


def best_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """The best certified accuracy of each method at each radius over its runs, as the paper's tables."""
    rows = []
    for method, runs in section.series.items():
        row = {"method": joined(*method), "runs": str(len(runs))}
        for name, value, run, (low, high) in _choices(runs, radii):
            text = run.acr_text if name == "ACR" else format_nearest(value)
            row[name] = Cell(text, value, low=low, high=high, run=run.name)
        rows.append(row)
    said = f"Best of each method at each l{section.norm} radius, over sigma0 and K. The best run is chosen on the same "
    said += f"inputs, which favours methods with more runs.{at_note(section.runs)}"
    return ResultTable.of(section.file("best"), said, rows, [*rows[0]][2:], scope=scope(section.runs))


def chosen_table(section: Section, radii: Sequence[float]) -> ResultTable:
    """Which run of a method is its best at which radii."""
    rows = []
    for method, runs in section.series.items():
        chosen = [(name, run) for name, value, run, _ in _choices(runs, radii) if value or name == "ACR"]
        at = {run: ", ".join(name for name, best in chosen if best is run) for run in runs}
        rows += [{"method": joined(*method), "run": run.name, "best at": names} for run, names in at.items() if names]
    said = "The runs behind the best of each method, and the radii at which each is the best (the first of equals)."
    return ResultTable.of(section.file("chosen"), said, rows, scope=scope(section.runs))


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
    said = (
        f"Radius of each input against its baseline; wrong answers count as 0. Mean gain with {_PERCENT} interval; p "
    )
    said += "of the exact two-sided sign test."
    said += f" {left_out:,} inputs that only one run of a pair has are left out." if left_out else ""
    return ResultTable.of(section.file("comparison"), said, rows, scope=scope_of_pairs(pairs))


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
    said = f"Certified accuracy gained over the baseline at each l{section.norm} radius. Brackets: p of the exact "
    said += f"two-sided McNemar test, one test per cell ({UNKNOWN}: neither certifies any input)."
    return ResultTable.of(section.file("gain"), said, rows, scope=scope_of_pairs(pairs))


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
    said += "and the largest change of a radius."
    ordered = [run for run in section.runs if run.orders is not None]
    return ResultTable.of(section.file("orders"), said, rows, scope=scope(ordered))


def runtime_table(section: Section) -> ResultTable:
    """Seconds per input and in all, of the runs whose records say so."""
    timed, rows = [run for run in section.runs if run.has_times], []
    for run in timed:
        seconds = run.table.seconds
        means = {name: float(of(seconds)) for name, of in (("median", np.median), ("mean", np.mean))}
        cells = {name: Cell(format_nearest(value, 2), value) for name, value in means.items()}
        rows.append({"run": section.label(run), **cells, "total": Cell(f"{seconds.sum():,.0f}", float(seconds.sum()))})
    said = "Seconds per input, and in all. The time of inputs that are searched in a group stands at the first of them."
    return ResultTable.of(section.file("runtime"), said, rows, scope=scope(timed))


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
        "model": _networks(run),
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


def _networks(run: Entry) -> str:
    """The names of its networks; of several, with the share of the inputs that each was chosen for."""
    models = run.spec.models if run.spec else []
    names = [joined(model.name, f"denoiser {model.denoiser}" if model.denoiser else "") for model in models]
    if len(names) < 2 or run.table.expert is None:
        return ", ".join(names)
    shares = [100 * float((run.table.expert == place).mean()) for place in range(len(names))]
    return ", ".join(f"{name} ({share:.0f} %)" for name, share in zip(names, shares, strict=True))


def settings_in_words(run: Entry) -> str:
    """What a run was made with, as a sentence; what the record does not say is left out."""
    said = settings_of(run) | {"search": describe_choice(run.spec) if run.spec else UNKNOWN}
    words = {"data": " of ", "model": " from ", "backend": ", run by ", "norm": ", in ", "sigma0": "; sigma0 = "}
    words |= {"search": " ", "n0": "; n0 = ", "n": ", n = ", "alpha": ", alpha = ", "seed": ", seed "}
    facts = (f"{word}{said[name]}" for name, word in words.items() if said[name] != UNKNOWN)
    kind, _, noise = said["certificates"].partition(", ")
    known = f"{said['inputs']} inputs{''.join(facts)}"
    return f"{kind.capitalize()} certificates of {known}{f', {noise} noise' * bool(noise)}."


def scope(runs: Sequence[Entry]) -> str:
    """What a caption must say: inputs, n, alpha, a backend other than PyTorch, kinds of noise and certificate."""
    return joined(common_facts(runs), f"{kinds_of_answers(runs)} certificates")


def common_facts(runs: Sequence[Entry]) -> str:
    """The same without the kind of certificate."""
    counts = " or ".join(f"{n:,}" for n in sorted({len(run.table) for run in runs}))
    kinds = " and ".join(sorted({run.kind for run in runs} - {""}))
    ns = " or ".join(dict.fromkeys(run.samples for run in sorted(runs, key=lambda run: run.n or 0)))
    alphas = " or ".join(map(format_whole, sorted({run.spec.budget.alpha for run in runs if run.spec})))
    names = sorted({run.backend.partition(" ")[0] for run in runs} - {""})
    backends = f"run by {' or '.join(names)}" if any(run.special_backend for run in runs) else ""
    inputs = f"{counts} inputs" + (f" of {kinds}" if kinds else "")
    noises = " and ".join(sorted({run.noise for run in runs} - {""}))
    alpha, noise = f"alpha = {alphas}" if alphas else "", f"{noises} noise" if noises else ""
    return joined(inputs, f"n = {ns}", alpha, backends, noise)


def scope_of_pairs(pairs: Sequence[Pair]) -> str:
    """What the caption of a comparison must say of both sides."""
    runs, baselines = [pair.run for pair in pairs], [pair.baseline for pair in pairs]
    if common_facts(runs) == common_facts(baselines):
        kinds = " against ".join(dict.fromkeys((kinds_of_answers(runs), kinds_of_answers(baselines))))
        said = joined(common_facts(runs), f"{kinds} certificates")
    else:
        said = f"{scope(runs)}; baselines: {scope(baselines)}"
    is_known = all(pair.run.network and pair.baseline.network for pair in pairs)
    return said if is_known else f"{said}; logs that do not say their network are taken to be of one"


def left_to_say(scope_of_one: str, runs: Sequence[Entry]) -> str:
    """What a caption must still say below the scope of all these runs."""
    return "" if scope_of_one == scope(runs) else scope_of_one.removeprefix(f"{common_facts(runs)}, ")


def format_p(p: float) -> str:
    """A p-value with three decimals."""
    return f"<{_LEAST_P:g}" if p < _LEAST_P else format_nearest(p)


def format_signed(value: float, digits: int = 3) -> str:
    """A difference with its sign and so many decimals; no sign for what rounds to 0."""
    shown = format_nearest(abs(value), digits)
    return f"{'-' if value < 0 else '+'}{shown}" if float(shown) else shown


def _number(
    value: float | None, interval: metrics.Interval | None = None, *, show: _Show = format_nearest, mark: str = ""
) -> Cell:
    if value is None or interval is None:
        return Cell(UNKNOWN if value is None else show(value), value)
    low, high = interval
    is_known = low < high  # of inputs that are all alike the bootstrap knows nothing
    more = f" [{show(low)}, {show(high)}]" if is_known else ""
    return Cell(f"{show(value)}{mark}{more}", value, low=low, high=high)
