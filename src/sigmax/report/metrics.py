"""Numbers from certificate tables: pure functions of arrays."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sigmax.errors import InvalidInputError
from sigmax.records import ABSTAIN, CertificateTable

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0)
CONFIDENCE = 0.95  # of the intervals over inputs

# A sigma that a search clamps in float32 is this close to its bound.
_AT_BOUND = 1e-6


def count_certified(table: CertificateTable, radii: ArrayLike) -> NDArray[np.int64]:
    """How many inputs are answered correctly with a radius of at least r, for each r."""
    reached = np.sort(table.radius[table.is_correct])
    return len(reached) - np.searchsorted(reached, np.asarray(radii, dtype=np.float64), side="left")


def certified_accuracy(table: CertificateTable, radii: ArrayLike) -> NDArray[np.float64]:
    """The share of inputs answered correctly with a radius of at least r, for each r.

    At r = 0 it is the accuracy of the smoothed classifier on clean inputs.
    """
    return count_certified(table, radii) / max(len(table), 1)


def counted_radii(table: CertificateTable) -> NDArray[np.float64]:
    """The radius of each input as it counts: that of a correct answer, else 0."""
    return np.where(table.is_correct, table.radius, 0.0)


def average_certified_radius(table: CertificateTable) -> float:
    """ACR: the mean over all inputs of the radius where the answer is correct, else 0."""
    return float(counted_radii(table).sum() / max(len(table), 1))


def abstentions(table: CertificateTable) -> float:
    """The share of inputs without an answer."""
    return float((table.predict == ABSTAIN).sum() / max(len(table), 1))


def select_rows(table: CertificateTable, rows: NDArray[np.bool_] | NDArray[np.intp]) -> CertificateTable:
    """The table of some of its inputs: those of a mask, or of places in an order."""
    places = np.arange(len(table))[rows]
    arrays = ("idx", "label", "predict", "radius", "seconds", "sigma", "point_predict", "point_radius", "samples")
    columns: dict[str, Any] = {name: getattr(table, name)[places] for name in arrays}
    return replace(table, **columns, rule=tuple(table.rule[place] for place in places))


def is_at_bound(table: CertificateTable, upper: float) -> NDArray[np.bool_]:
    """Where sigma sits at the upper bound of its search.

    Far above its training sigma a network answers one class for everything, and radii grow with sigma without
    meaning: an ACR that rests on such inputs is to be read beside the one without them.
    """
    return table.sigma >= upper * (1 - _AT_BOUND)


def accuracy_interval(table: CertificateTable, radius: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact interval of Clopper and Pearson for certified accuracy at a radius: what other inputs might give."""
    from sigmax.bounds import clopper_pearson_lower, clopper_pearson_upper  # what shows a table need not wait for scipy

    _check_inputs(table)
    tail = (1 - confidence) / 2
    hits = int(count_certified(table, radius))
    return clopper_pearson_lower(hits, len(table), alpha=tail), clopper_pearson_upper(hits, len(table), alpha=tail)


def acr_interval(
    table: CertificateTable, *, confidence: float = CONFIDENCE, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Interval for ACR by the bootstrap over inputs: quantiles of ACR among inputs drawn with replacement."""
    _check_inputs(table)
    return _bootstrap(counted_radii(table), confidence=confidence, resamples=resamples, seed=seed)


def _bootstrap(
    values: NDArray[np.float64], *, confidence: float = CONFIDENCE, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    draw = np.random.default_rng(seed)
    means = [values[draw.integers(len(values), size=len(values))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The best certified accuracy of several tables at each radius."""

    radii: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    best: NDArray[np.intp]  # which table; the first of equals


def envelope(tables: Sequence[CertificateTable], radii: ArrayLike) -> Envelope:
    """The best of these tables at each radius, as the paper cross-validates over sigma and K."""
    if not tables:
        raise InvalidInputError("expected at least one table, got none")
    radii = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    curves = np.stack([certified_accuracy(table, radii) for table in tables])  # tables radii
    return Envelope(radii=radii, accuracy=curves.max(axis=0), best=curves.argmax(axis=0))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RadiusComparison:
    """Certified accuracy of two tables at one radius, input by input."""

    radius: float
    accuracy: float
    baseline_accuracy: float
    gained: int  # certified at this radius by the table only
    lost: int  # by the baseline only
    p_value: float  # exact McNemar test of "the two are equally likely"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A table against a baseline on the inputs that both have; wrong answers count as radius 0."""

    inputs: int  # that both have
    left_out: int  # that only one of them has
    gained: int
    lost: int
    equal: int
    mean_gain: float  # over all inputs: the difference of the two ACRs
    p_value: float  # exact sign test of "a gain is as likely as a loss"
    at: tuple[RadiusComparison, ...]


def common_inputs(table: CertificateTable, baseline: CertificateTable) -> tuple[CertificateTable, CertificateTable]:
    """Both tables on the inputs that both have, in one order; refuse tables of different data."""
    if table.norm != baseline.norm:
        raise InvalidInputError(
            f"expected two runs in one norm, got l{table.norm} in {table.name} and l{baseline.norm} in {baseline.name}"
        )
    shared, places, others = np.intersect1d(table.idx, baseline.idx, return_indices=True)
    if not len(shared):
        raise InvalidInputError(f"expected inputs that both runs have, got none in {table.name} and {baseline.name}")
    table, baseline = select_rows(table, places), select_rows(baseline, others)
    differs = table.label != baseline.label
    if differs.any():
        raise InvalidInputError(
            f"expected runs over the same data, got other labels in {table.name} and {baseline.name}, "
            f"first of input {shared[int(differs.argmax())]}"
        )
    return table, baseline


def compare_tables(table: CertificateTable, baseline: CertificateTable, radii: Sequence[float] = ()) -> Comparison:
    """How a table fares against a baseline, input by input, with exact tests.

    The sign test looks at which inputs have a larger radius and which a smaller one, whatever by how much: it and the
    mean gain, whose interval is `gain_interval`, may point to different sides. McNemar's test looks, at each of
    `radii`, at which are certified there by one of the two only. Under the null hypothesis either side of each such
    input is as likely as the other.
    """
    ours, theirs = common_inputs(table, baseline)
    gain = counted_radii(ours) - counted_radii(theirs)
    gained, lost = int((gain > 0).sum()), int((gain < 0).sum())
    return Comparison(
        inputs=len(ours),
        left_out=len(table) + len(baseline) - 2 * len(ours),
        gained=gained,
        lost=lost,
        equal=len(ours) - gained - lost,
        mean_gain=float(gain.mean()),
        p_value=_sign_test(gained, lost),
        at=tuple(_compare_at(ours, theirs, radius) for radius in radii),
    )


def gain_interval(table: CertificateTable, baseline: CertificateTable) -> tuple[float, float]:
    """Interval for the mean gain over a baseline by the bootstrap over the inputs that both have."""
    ours, theirs = common_inputs(table, baseline)
    return _bootstrap(counted_radii(ours) - counted_radii(theirs))


def _compare_at(ours: CertificateTable, theirs: CertificateTable, radius: float) -> RadiusComparison:
    is_ours = ours.is_correct & (ours.radius >= radius)
    is_theirs = theirs.is_correct & (theirs.radius >= radius)
    gained, lost = int((is_ours & ~is_theirs).sum()), int((is_theirs & ~is_ours).sum())
    return RadiusComparison(
        radius=radius,
        accuracy=float(is_ours.mean()),
        baseline_accuracy=float(is_theirs.mean()),
        gained=gained,
        lost=lost,
        p_value=_sign_test(gained, lost),
    )


def _sign_test(gained: int, lost: int) -> float:
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def _check_inputs(table: CertificateTable) -> None:
    if not len(table):
        raise InvalidInputError(f"expected at least one input, got an empty table {table.name}")


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
    at_bound: int = 0  # inputs whose sigma sits at the upper bound of the search
    acr_inside: float | None = None  # ACR of the other inputs; None: no bound is known, or there are no others

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarise(name: str, table: CertificateTable, radii: Sequence[float], *, upper: float | None = None) -> Summary:
    """What `sigmax show` prints of a table; `upper` is the upper bound of its search, where it has one."""
    at_bound = is_at_bound(table, upper) if upper is not None else None
    return Summary(
        name=name,
        inputs=len(table),
        answers=kind_of_answers(table),
        radii=tuple(radii),
        accuracy=tuple(certified_accuracy(table, np.array(radii)).tolist()),
        acr=average_certified_radius(table),
        abstained=abstentions(table),
        at_bound=0 if at_bound is None else int(at_bound.sum()),
        acr_inside=None
        if at_bound is None or at_bound.all()
        else average_certified_radius(select_rows(table, ~at_bound)),
    )


def kind_of_answers(table: CertificateTable) -> str:
    """Which of the two kinds of certificate a table shows."""
    return "settled" if table.is_settled else "point"


def common_radii(tables: Sequence[CertificateTable]) -> tuple[float, ...]:
    """The usual radii, up to the largest that any of the tables certifies."""
    largest = max((float(table.radius.max(initial=0.0)) for table in tables), default=0.0)
    return tuple(radius for radius in RADII if radius <= largest)
