"""From counts to a certificate: when to look at the samples, what a look proves, and when to stop.

Every look costs failure probability. Each estimate here accounts for all its looks, so that its certificate is wrong
with probability at most alpha, whenever it stops.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from sigmax.bounds import anytime_lower, clopper_pearson_lower, clopper_pearson_upper, evidence_above
from sigmax.certificate import PointCertificate
from sigmax.noise import SmoothingDistribution
from sigmax.rounding import round_down

# Share of alpha for the bound on the runner-up. At 5 % the radius loses at most 0.002 sigma with 100,000 samples, and
# 0.004 sigma with 100.
_RUNNER_UP_SHARE = 0.05
# Planned looks before the last: at powers of two from this many samples on. Together they get this share of alpha, each
# in proportion to its samples. An input that does not stop early loses at most 0.004 sigma at n = 100,000.
_FIRST_LOOK, _EARLY_SHARE = 1_024, 0.09
# Level at which an input is given up. It costs no failure probability, only a few certificates.
_GIVE_UP = 0.001
# Sequential tests look after this many samples, and then each time the samples have grown by this factor.
_FIRST_QUESTION, _GROWTH = 8, 1.125
# Samples are drawn in multiples of this, except the last: fewer parts make less work.
_PART = 64
# Share of alpha for the bound that holds at every look. The rest is for the last look, which loses at most 0.01 sigma.
_ANYTIME_SHARE = 0.1
_LONGEST_STEP = 1_024  # samples between two looks at most: somebody may be watching


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the samples of one input have shown so far."""

    n: int  # samples
    hits: int  # samples of the selected class
    rival: int  # samples of the strongest other class


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is to be certified: this class under this noise."""

    label: int
    sigma: float
    noise: SmoothingDistribution
    alpha: float
    tau: float | None = None  # the noise level that the network is told; None: it takes none
    expert: int = 0  # which of several networks
    is_exact: bool = False  # whether the noise is exact
    defect: float = 0.0  # no probability under the noise drawn is further than this from the true one
    slack: float = 0.0  # distances between inputs may look shorter by this share than on their grid

    def radius(self, p_lower: float, p_upper: float | None = None) -> float:
        """The radius that these bounds prove, in the distances that one sees."""
        radius = self.noise.radius(p_lower, sigma=self.sigma, p_upper=p_upper)
        return round_down(radius * (1 - self.slack)) if self.slack else radius

    def probability(self, radius: float) -> float:
        """The probability above which this radius is proved."""
        return self.noise.probability(radius * (1 + 2 * self.slack), sigma=self.sigma)  # > radius / (1 - slack)


class Estimate(ABC):
    """The running estimation of one input."""

    n: int  # maximum number of samples

    @abstractmethod
    def next_look(self, n: int) -> int:
        """The number of samples at the next look after n < self.n samples."""

    @abstractmethod
    def look(self, counts: Counts) -> PointCertificate | None:
        """The certificate, or None to go on."""

    @abstractmethod
    def proved(self) -> PointCertificate:
        """What the looks so far have proved. It is valid whenever sampling stops, for whatever reason."""


@final
class PlannedLooks(Estimate):
    """Looks at powers of two, with most of alpha kept for the last; stops when going on would gain too little.

    Args:
        claim: What is certified.
        n: Samples at the last look.
        tolerance: Stop if no later look is projected to increase the radius by more than this share. 0: a single
            look, as in Cohen et al. 2019.
        runner_up: Bound the strongest other class too.
    """

    def __init__(self, claim: Claim, *, n: int, tolerance: float = 0.0, runner_up: bool = False) -> None:
        self.claim = claim
        self.n = n
        self.tolerance = tolerance
        self.runner_up = runner_up
        sizes = [_FIRST_LOOK << i for i in range(n.bit_length()) if tolerance and _FIRST_LOOK << i < n]
        self.alphas = {size: claim.alpha * _EARLY_SHARE * size / sum(sizes) for size in sizes}
        self.alphas[n] = claim.alpha * (1 - _EARLY_SHARE) if sizes else claim.alpha
        self._best = _nothing(claim)

    def next_look(self, n: int) -> int:
        """The next planned look."""
        return next(size for size in self.alphas if size > n)

    def look(self, counts: Counts) -> PointCertificate | None:
        """The certificate at this look's share of alpha, if it is the last, good enough, or can only abstain."""
        found = self._certificate(counts)
        self._best = max(self._best, found, key=lambda point: (point.label is not None, point.radius))
        later = [size for size in self.alphas if size > counts.n]
        if not later or self._can_only_abstain(counts):
            return found
        best = max(self._certificate(_projected(counts, size)).radius for size in later)
        return found if found.label is not None and best <= (1 + self.tolerance) * found.radius else None

    def proved(self) -> PointCertificate:
        """The best certificate of the planned looks so far."""
        return self._best

    def _certificate(self, counts: Counts) -> PointCertificate:
        return certificate(self.claim, counts, alpha=self.alphas[counts.n], runner_up=self.runner_up)

    def _can_only_abstain(self, counts: Counts) -> bool:
        if self.runner_up:
            return evidence_above(counts.rival, counts.rival + counts.hits, 0.5) > -math.log(_GIVE_UP)
        return clopper_pearson_upper(counts.hits, counts.n, alpha=_GIVE_UP) < 0.5


@final
class AtRadii(Estimate):
    """One sequential test per radius r: is the radius at least r? It stops when all are answered.

    The certificate's radius is the largest r that was proved. A proof for r also proves every smaller radius, so that
    alpha is the failure probability of all tests together.

    Args:
        claim: What is certified.
        radii: The radii to test. Radius 0, whether the class leads at all, is always tested.
        n: Maximum number of samples; tests that are open then stay open.
    """

    def __init__(self, claim: Claim, *, radii: tuple[float, ...], n: int) -> None:
        self.claim = claim
        self.n = n
        self._largest: float | None = None  # radius proved
        self._seen = Counts(n=0, hits=0, rival=0)
        self.needed = {r: claim.probability(r) for r in sorted({0.0, *radii})}
        # The samples speak of the noise drawn.
        self.open = {radius: q for radius, p in self.needed.items() if (q := p + claim.defect) < 1.0}

    def next_look(self, n: int) -> int:
        """A few more samples than at the last look."""
        return min(self.n, max(_FIRST_QUESTION, math.ceil(n * _GROWTH)))

    def look(self, counts: Counts) -> PointCertificate | None:
        """Close the tests that are decided; the certificate when none is open."""
        self._seen = counts
        for radius, p in sorted(self.open.items(), reverse=True):
            if evidence_above(counts.hits, counts.n, p) >= -math.log(self.claim.alpha):
                self._largest = radius
                self.open = {r: q for r, q in self.open.items() if r > radius}
                break
        self.open = {r: p for r, p in self.open.items() if not self._is_lost(p, counts)}
        return None if self.open and counts.n < self.n else self.proved()

    def proved(self) -> PointCertificate:
        """The largest radius proved so far."""
        p_lower = 0.0 if self._largest is None else self.needed[self._largest]
        return _point(self.claim, self._seen, radius=self._largest, p_lower=p_lower)

    def _is_lost(self, p: float, counts: Counts) -> bool:
        """Whether p is refuted, or could not be proved even if all samples to come were hits."""
        most = evidence_above(counts.hits + self.n - counts.n, self.n, p)
        against = evidence_above(counts.n - counts.hits, counts.n, 1 - p)
        return most < -math.log(self.claim.alpha) or against >= -math.log(_GIVE_UP)


@final
class Anytime(Estimate):
    """A radius that grows with the samples: sampling may stop at any time, and what was proved by then holds.

    A small share of alpha pays for a bound that holds at every look at once, the rest for the Clopper-Pearson bound at
    the last look. So who does not stop loses next to nothing.

    Args:
        claim: What is certified.
        n: Samples at the last look.
    """

    def __init__(self, claim: Claim, *, n: int) -> None:
        self.claim = claim
        self.n = n
        self._p_lower = 0.0
        self._seen = Counts(n=0, hits=0, rival=0)

    def next_look(self, n: int) -> int:
        """A few more samples than at the last look."""
        step = max(_PART, min(n // 16, _LONGEST_STEP) // _PART * _PART)
        return min(self.n, n + step)

    def look(self, counts: Counts) -> PointCertificate | None:
        """Raise the bound; the certificate at the last look, or if it can only abstain."""
        self._seen, alpha = counts, self.claim.alpha
        bounds = [anytime_lower(counts.hits, counts.n, alpha=alpha * _ANYTIME_SHARE)]
        if counts.n == self.n:
            bounds.append(clopper_pearson_lower(counts.hits, counts.n, alpha=alpha * (1 - _ANYTIME_SHARE)))
        self._p_lower = max(self._p_lower, *(bound - self.claim.defect for bound in bounds))
        is_lost = clopper_pearson_upper(counts.hits, counts.n, alpha=_GIVE_UP) < 0.5
        return self.proved() if counts.n == self.n or is_lost else None

    def proved(self) -> PointCertificate:
        """What the largest of the bounds so far proves: all of them hold."""
        return _bounded(self.claim, self._seen, p_lower=self._p_lower, p_upper=None)


def plan_draws(
    estimates: Sequence[Estimate], drawn: Sequence[int], due: Sequence[int], *, batch: int
) -> list[list[int]]:
    """How many samples to draw next for each input: first up to the look that is due, then some beyond it.

    The samples beyond fill the last batch, so that an input that is alone does not pay for empty rows. When an input
    is looked at does not depend on the other inputs.
    """
    plans = [[look - n] for n, look in zip(drawn, due, strict=True)]
    room, looks = -sum(more for (more,) in plans) % batch, list(due)
    while room >= _PART:
        before = room
        for i, estimate in enumerate(estimates):
            more = estimate.next_look(looks[i]) - looks[i] if looks[i] < estimate.n else 0
            some = more if more <= room else room // _PART * _PART
            if some:
                plans[i].append(some)
                room, looks[i] = room - some, looks[i] + more if some == more else estimate.n
        if room == before:
            break
    return plans


def certificate(claim: Claim, counts: Counts, *, alpha: float, runner_up: bool) -> PointCertificate:
    r"""What these counts prove at this level.

    With the lower bound $L \le p_A$ alone, the radius is that of $p_B = 1 - L$. With `runner_up`, a small share of
    alpha pays for an upper bound $U \ge p_B$ from the largest count among the other classes. This needs no correction
    for the number of classes: the true runner-up has at most the largest count, so its own bound is at most U.
    """
    lower_alpha = alpha * (1 - _RUNNER_UP_SHARE) if runner_up else alpha
    p_lower = max(0.0, clopper_pearson_lower(counts.hits, counts.n, alpha=lower_alpha) - claim.defect)
    p_upper = None
    if runner_up:
        bound = clopper_pearson_upper(counts.rival, counts.n, alpha=alpha - lower_alpha) + claim.defect
        p_upper = bound if bound < 1 - p_lower else None
    return _bounded(claim, counts, p_lower=p_lower, p_upper=p_upper)


def _bounded(claim: Claim, counts: Counts, *, p_lower: float, p_upper: float | None) -> PointCertificate:
    """The certificate that follows from a lower bound on the class, and maybe an upper bound on any other."""
    is_certain = p_lower > (0.5 if p_upper is None else p_upper)
    radius = max(0.0, claim.radius(p_lower, p_upper)) if is_certain else None
    return _point(claim, counts, radius=radius, p_lower=p_lower)


def _point(claim: Claim, counts: Counts, *, radius: float | None, p_lower: float) -> PointCertificate:
    """The certificate of this radius; None: an abstention."""
    return PointCertificate(
        label=None if radius is None else claim.label,
        radius=radius or 0.0,
        sigma=claim.sigma,
        p_lower=p_lower,
        n=counts.n,
        alpha=claim.alpha,
        norm=claim.noise.norm,
        tau=claim.tau,
        expert=claim.expert,
        is_exact=claim.is_exact,
    )


def _nothing(claim: Claim) -> PointCertificate:
    """The abstention before the first look."""
    return _point(claim, Counts(n=0, hits=0, rival=0), radius=None, p_lower=0.0)


def _projected(counts: Counts, n: int) -> Counts:
    """The counts to expect at n samples, shrunk a little, because a class never seen may still occur."""
    hits, rival = ((count + 0.5) / (counts.n + 1) * n for count in (counts.hits, counts.rival))
    return Counts(n=n, hits=math.floor(hits), rival=math.ceil(rival))
