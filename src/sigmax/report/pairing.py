"""Which run is measured against which, input by input."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sigmax.errors import InvalidInputError
from sigmax.metrics import common_inputs
from sigmax.report.entries import Entry


class Pair(NamedTuple):
    """A run, mostly with per-input sigma, and the run that it is measured against."""

    run: Entry
    baseline: Entry


def pairs(runs: Sequence[Entry], *, named: Entry | None = None) -> list[Pair]:
    """Each run with the one that was named; else each per-input run with a fixed-sigma run.

    The fixed-sigma run has the same network, noise and sigma0, and was sampled alike; of several, it is the one that
    shares most inputs. Logs do not say their network: a per-input log is measured against the only other log that may
    have one sigma. A run without such a baseline, or that shares no input with it, is in no pair.
    """
    found = [(run, _baseline(run, runs) if named is None else named) for run in runs]
    return [Pair(run=run, baseline=other) for run, other in found if other and other is not run and _shared(run, other)]


def _baseline(run: Entry, runs: Sequence[Entry]) -> Entry | None:
    others = [other for other in runs if run.is_per_input and not other.is_per_input]
    if run.spec is None:
        logs = [other for other in others if other.spec is None and _shared(run, other)]
        return logs[0] if len(logs) == 1 else None
    same = [other for other in others if run.network and (other.network, other.sigma0) == (run.network, run.sigma0)]
    budget, budgets = run.spec.budget, {other: other.spec.budget for other in same if other.spec}
    alike = [other for other, theirs in budgets.items() if replace(theirs, seed=budget.seed) == budget]
    return max(alike, key=lambda other: (_shared(run, other), budgets[other].seed == budget.seed), default=None)


def _shared(run: Entry, other: Entry) -> int:
    """How many inputs both have; none where data sets, labels or norms differ."""
    if run.data and other.data and run.data != other.data:
        return 0
    try:
        return len(common_inputs(run.table, other.table)[0])
    except InvalidInputError:
        return 0
