"""Numbers from certificate tables: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sigmax.errors import InvalidInputError
from sigmax.rounding import format_nearest
from sigmax.table import ABSTAIN, CertificateTable

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0)
CONFIDENCE = 0.95  # of the intervals over inputs
_RESAMPLES, _SEED = 2_000, 0  # of the bootstrap
_AT_BOUND = 1e-6  # a sigma that a search clamps in float32 is this close to its bound
Interval = tuple[float, float]
_Band = tuple[NDArray[np.float64], NDArray[np.float64]]  # lower and upper ends


def count_certified(table: CertificateTable, radii: ArrayLike) -> NDArray[np.int64]:
    """How many inputs are answered correctly with a radius of at least r, for each r."""
    reached = np.sort(table.radius[table.is_correct])
    return len(reached) - np.searchsorted(reached, np.asarray(radii, dtype=np.float64), side="left")


def certified_accuracy(table: CertificateTable, radii: ArrayLike) -> NDArray[np.float64]:
    """The share of inputs answered correctly with a radius of at least r, for each r; at 0, clean accuracy."""
    return count_certified(table, radii) / max(len(table), 1)


def counted_radii(table: CertificateTable) -> NDArray[np.float64]:
    """The radius of each input as it counts: 0 where the answer is wrong."""
    return np.where(table.is_correct, table.radius, 0.0)


def average_certified_radius(table: CertificateTable) -> float:
    """ACR: the mean over all inputs of the radius where the answer is correct, else 0."""
    return float(counted_radii(table).sum() / max(len(table), 1))


def abstentions(table: CertificateTable) -> float:
    """The share of inputs without an answer."""
    return float((table.predict == ABSTAIN).sum() / max(len(table), 1))


def kind_of_answers(table: CertificateTable) -> str:
    """Which kind of certificate a table shows."""
    return "settled" if table.is_settled else "routed" if table.is_routed else "point"


def special_backend(backend: str | None) -> str:
    """The backend without its version where it is not PyTorch itself: its numbers are not shown without it."""
    name = (backend or "").partition(" ")[0]
    return "" if name == "torch" else name


def common_radii(tables: Sequence[CertificateTable]) -> tuple[float, ...]:
    """The usual radii, up to the largest that any of the tables certifies."""
    largest = max((float(table.radius.max(initial=0.0)) for table in tables), default=0.0)
    return tuple(radius for radius in RADII if radius <= largest)


def select_rows(table: CertificateTable, rows: NDArray[np.bool_] | NDArray[np.intp]) -> CertificateTable:
    """The table of some of its inputs: those of a mask, or those at places, in that order."""
    values = {field.name: getattr(table, field.name) for field in fields(table)}
    columns: dict[str, Any] = {name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(table, **columns, rule=tuple(np.array(table.rule, dtype=object)[rows]))


def accuracy_interval(table: CertificateTable, radius: float, *, confidence: float = CONFIDENCE) -> Interval:
    """Exact interval of Clopper and Pearson for certified accuracy at a radius, over the choice of inputs."""
    low, high = accuracy_band(table, radius, confidence=confidence)
    return float(low), float(high)


def accuracy_band(table: CertificateTable, radii: ArrayLike, *, confidence: float = CONFIDENCE) -> _Band:
    """The ends of these intervals at each radius; each holds at its radius, not all at once."""
    from scipy.special import betaincinv  # here: a table is shown without scipy

    hits, n, tail = count_certified(table, radii), len(table), (1 - confidence) / 2
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, tail), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - tail), 1.0)
    return low, high


def acr_interval(table: CertificateTable, *, confidence: float = CONFIDENCE) -> Interval:
    """Interval for ACR by the bootstrap over inputs: quantiles of ACR among inputs drawn with replacement."""
    return _bootstrap(counted_radii(table), confidence)


def gain_interval(table: CertificateTable, baseline: CertificateTable) -> Interval:
    """Interval for the mean gain over a baseline by the bootstrap over the inputs that both have."""
    return _bootstrap(gained_radii(*common_inputs(table, baseline)), CONFIDENCE)


def _bootstrap(values: NDArray[np.float64], confidence: float) -> Interval:
    if not len(values):
        raise InvalidInputError("expected at least one input, got an empty table")
    draw = np.random.default_rng(_SEED)
    means = [values[draw.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def envelope(tables: Sequence[CertificateTable], radii: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """The best certified accuracy of these tables at each radius, and which table has it: the first of equals."""
    if not tables:
        raise InvalidInputError("expected at least one table, got none")
    curves = np.stack([certified_accuracy(table, radii) for table in tables])  # tables radii
    return curves.max(axis=0), curves.argmax(axis=0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A table against a baseline on the inputs that both have."""

    inputs: int  # that both have
    left_out: int  # that only one of them has
    gained: int
    lost: int
    equal: int
    mean: float  # ACR, or certified accuracy at a radius
    baseline_mean: float
    mean_gain: float
    p_value: float  # exact two-sided test of "a gain is as likely as a loss"


def common_inputs(table: CertificateTable, baseline: CertificateTable) -> tuple[CertificateTable, CertificateTable]:
    """Both tables on the inputs that both have, in one order; tables of different data are refused."""
    names = f"{table.name} and {baseline.name}"
    if table.norm != baseline.norm:
        raise InvalidInputError(f"expected two runs in one norm, got l{table.norm} and l{baseline.norm} in {names}")
    shared, places, others = np.intersect1d(table.idx, baseline.idx, return_indices=True)
    if not len(shared):
        raise InvalidInputError(f"expected inputs that both runs have, got none in {names}")
    table, baseline = select_rows(table, places), select_rows(baseline, others)
    if len(other := shared[table.label != baseline.label]):
        raise InvalidInputError(f"expected runs over the same data, got other labels of input {other[0]} in {names}")
    return table, baseline


def gained_radii(table: CertificateTable, baseline: CertificateTable) -> NDArray[np.float64]:
    """The radius that each input gained over a baseline with the same rows, wrong answers counting as 0."""
    return counted_radii(table) - counted_radii(baseline)


def compare_tables(table: CertificateTable, baseline: CertificateTable, *, radius: float | None = None) -> Comparison:
    """How a table compares with a baseline, input by input, with an exact test.

    An input gains where its radius is larger, wrong answers counting as 0: the sign test. With `radius`, it gains where
    only the table certifies it at that radius: McNemar's test. Tests count inputs and may contradict the mean gain.
    """
    from scipy.stats import binomtest

    ours, _ = both = common_inputs(table, baseline)
    values, others = (counted_radii(t) if radius is None else t.is_correct & (t.radius >= radius) for t in both)
    gain = values.astype(np.float64) - others
    gained, lost = int((gain > 0).sum()), int((gain < 0).sum())
    return Comparison(
        inputs=len(ours),
        left_out=len(table) + len(baseline) - 2 * len(ours),
        gained=gained,
        lost=lost,
        equal=len(ours) - gained - lost,
        mean=float(values.mean()),
        baseline_mean=float(others.mean()),
        mean_gain=float(gain.mean()),
        p_value=float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0,
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One line of a table of results."""

    name: str
    inputs: int
    answers: str  # "settled" by a memory, or "point" certificates
    radii: tuple[float, ...]
    accuracy: tuple[float, ...]  # certified accuracy at each radius
    acr: float
    abstained: float
    # Far above its training sigma a network answers one class for everything: radii grow with sigma without meaning.
    at_bound: int = 0  # inputs whose sigma sits at the upper bound of the search
    acr_inside: float | None = None  # ACR of the other inputs; None: no bound is known, or there are no others
    backend: str | None = None  # what ran the network; None: not recorded
    is_at: bool = False  # radii are rounded down to those that were asked, and so is the ACR
    noise: str = ""  # "exact" or "float"; empty: not recorded


def summarise(
    name: str,
    table: CertificateTable,
    radii: Sequence[float],
    *,
    upper: float | None = None,
    backend: str | None = None,
    is_at: bool = False,
    noise: str = "",
) -> Summary:
    """What `sigmax show` prints of a table; `upper` is the upper bound of its search, where it has one."""
    return Summary(
        name=name,
        inputs=len(table),
        answers=kind_of_answers(table),
        radii=tuple(radii),
        accuracy=tuple(certified_accuracy(table, radii).tolist()),
        acr=average_certified_radius(table),
        abstained=abstentions(table),
        at_bound=int(_is_at_bound(table, upper).sum()),
        acr_inside=inner_acrs(table, upper)[0],
        backend=backend,
        is_at=is_at,
        noise=noise,
    )


def inner_acrs(
    table: CertificateTable, upper: float | None, baseline: CertificateTable | None = None
) -> tuple[float | None, float | None]:
    """ACR without inputs whose sigma is at the upper bound, and that of a baseline without them; None: not known."""
    inside = select_rows(table, ~_is_at_bound(table, upper))
    if upper is None or not len(inside):
        return None, None
    is_shared = baseline is not None and np.isin(inside.idx, baseline.idx).any()
    same = common_inputs(inside, baseline)[1] if baseline and is_shared else None
    return average_certified_radius(inside), average_certified_radius(same) if same else None


def _is_at_bound(table: CertificateTable, upper: float | None) -> NDArray[np.bool_]:
    return np.asarray(table.sigma >= (np.inf if upper is None else upper * (1 - _AT_BOUND)))


def format_acr(acr: float, *, is_at: bool) -> str:
    """ACR with three decimals, marked where radii were rounded down to those that were asked."""
    return format_nearest(acr) + ("*" if is_at else "")
