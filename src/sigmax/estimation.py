"""From counts to a certificate: when to look at the samples, what a look proves, and when to stop.

Looking early costs failure probability. Each way of looking here accounts for all its looks: the
certificate that comes out is wrong with probability at most alpha, whenever it stops.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from sigmax.bounds import clopper_pearson_lower, clopper_pearson_upper, evidence_above
from sigmax.certificate import PointCertificate
from sigmax.noise import SmoothingDistribution

# The share of alpha for the bound on the runner-up. At 5 % the radius loses
# at most 0.002 sigma with 100,000 samples, and 0.004 sigma with 100.
_RUNNER_UP_SHARE = 0.05
# Looks before the last: powers of two from this many samples on, together at this share of alpha, each in proportion
# to its samples. An input that does not stop loses at most 0.004 sigma at n = 100,000.
_FIRST_LOOK, _EARLY_SHARE = 1_024, 0.09
# At this level an input is given up: it costs no failure probability, only answers that might have been.
_GIVE_UP = 0.001
# Sequential questions are looked at after this many samples, and then each time there are this much more.
_FIRST_QUESTION, _GROWTH = 128, 1.125
# Samples are drawn in parts of at least so many, but for the last: whole tiles of noise, whatever the input.
_PART = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What was seen so far of one input."""

    n: int  # samples
    hits: int  # answers of the selected class
    rival: int  # answers of the strongest other class


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is to be certified: this class, under this noise."""

    label: int
    sigma: float
    noise: SmoothingDistribution
    alpha: float


class Estimate(ABC):
    """The estimation of one input under way."""

    n: int  # the most samples that it looks at

    @abstractmethod
    def next_look(self, n: int) -> int:
        """How many samples to have in all before looking again, having n, which are less than the most."""

    @abstractmethod
    def look(self, counts: Counts) -> PointCertificate | None:
        """The certificate, or None: go on."""


@final
class FixedSample(Estimate):
    """One look, after n samples, as in Cohen et al. 2019."""

    def __init__(self, claim: Claim, *, n: int, runner_up: bool = False) -> None:
        self.claim = claim
        self.n = n
        self.runner_up = runner_up

    def next_look(self, n: int) -> int:
        """All of them."""
        return max(n, self.n)

    def look(self, counts: Counts) -> PointCertificate | None:
        """The certificate."""
        return certificate(self.claim, counts, alpha=self.claim.alpha, runner_up=self.runner_up)


@final
class PlannedLooks(Estimate):
    """Looks at powers of two, alpha spent mostly on the last; stops when going on would gain too little.

    Args:
        claim: What is certified.
        n: Samples at the last look.
        tolerance: It stops where the projected radius of all later looks is at most this share above
            the radius at hand, and where the input can only abstain.
        runner_up: Whether to bound the strongest other class too.
    """

    def __init__(self, claim: Claim, *, n: int, tolerance: float, runner_up: bool = False) -> None:
        self.claim = claim
        self.n = n
        self.tolerance = tolerance
        self.runner_up = runner_up
        sizes = [_FIRST_LOOK << i for i in range(n.bit_length()) if _FIRST_LOOK << i < n]
        self.alphas = {size: claim.alpha * _EARLY_SHARE * size / sum(sizes) for size in sizes}
        self.alphas[n] = claim.alpha * (1 - _EARLY_SHARE) if sizes else claim.alpha

    def next_look(self, n: int) -> int:
        """The next of the planned sizes."""
        return next(size for size in self.alphas if size > n)

    def look(self, counts: Counts) -> PointCertificate | None:
        """The certificate at this look's share of alpha, where it is the last or good enough."""
        found = self._certificate(counts)
        later = [size for size in self.alphas if size > counts.n]
        if not later or self._can_only_abstain(counts):
            return found
        best = max(self._certificate(_projected(counts, size)).radius for size in later)
        return found if found.label is not None and best <= (1 + self.tolerance) * found.radius else None

    def _certificate(self, counts: Counts) -> PointCertificate:
        return certificate(self.claim, counts, alpha=self.alphas[counts.n], runner_up=self.runner_up)

    def _can_only_abstain(self, counts: Counts) -> bool:
        if self.runner_up:
            return evidence_above(counts.rival, counts.rival + counts.hits, 0.5) > -math.log(_GIVE_UP)
        return clopper_pearson_upper(counts.hits, counts.n, alpha=_GIVE_UP) < 0.5


@final
class AtRadii(Estimate):
    """Is the radius at least r? For each r a sequential test, stopping as soon as all answers are known.

    The certificate's radius is the largest r that was proved. Proofs for larger r are proofs for smaller
    ones too, so that alpha is the failure probability of all of them together.

    Args:
        claim: What is certified.
        radii: The radii asked about; whether the class leads at all (radius 0) is always asked.
        n: Samples after which what is not known stays unknown.
    """

    def __init__(self, claim: Claim, *, radii: tuple[float, ...], n: int) -> None:
        self.claim = claim
        self.n = n
        needed = {r: claim.noise.probability(r, sigma=claim.sigma) for r in sorted({0.0, *radii})}
        self.proved: float | None = None
        self.open = {radius: p for radius, p in needed.items() if p < 1.0}
        self.needed = needed

    def next_look(self, n: int) -> int:
        """A little more than before."""
        return min(self.n, max(_FIRST_QUESTION, -(-int(n * _GROWTH) // _PART) * _PART))

    def look(self, counts: Counts) -> PointCertificate | None:
        """Cross off what is proved or refuted; the certificate when nothing is left."""
        for radius, p in sorted(self.open.items(), reverse=True):
            if evidence_above(counts.hits, counts.n, p) >= -math.log(self.claim.alpha):
                self.proved = radius
                self.open = {r: q for r, q in self.open.items() if r > radius}
                break
        self.open = {r: p for r, p in self.open.items() if not self._is_lost(p, counts)}
        if self.open and counts.n < self.n:
            return None
        p_lower = 0.0 if self.proved is None else self.needed[self.proved]
        return _point(self.claim, counts, radius=self.proved, p_lower=p_lower)

    def _is_lost(self, p: float, counts: Counts) -> bool:
        """Whether it is refuted, or could not be proved if all samples to come were hits."""
        most = evidence_above(counts.hits + self.n - counts.n, self.n, p)
        return most < -math.log(self.claim.alpha) or evidence_above(
            counts.n - counts.hits, counts.n, 1 - p
        ) >= -math.log(_GIVE_UP)


def plan_draws(
    estimates: Sequence[Estimate], drawn: Sequence[int], due: Sequence[int], *, batch: int
) -> list[list[int]]:
    """For each input, having drawn so many samples, how many more to the look that is due, and then to later ones.

    To later ones, and on the way to them, only as far as that takes no further batch. So an input that is alone does
    not pay for rows that nobody uses, and none looks earlier or later for the sake of others.
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

    With $L \le p_A$ alone the radius is that of $p_B = 1 - L$. With `runner_up` a small share of alpha
    goes to $U \ge p_B$, the upper bound for the largest count among the other classes. That needs no
    correction for how many they are: the true runner-up's count is at most the largest, so its bound
    is at most U.
    """
    lower_alpha = alpha * (1 - _RUNNER_UP_SHARE) if runner_up else alpha
    p_lower = clopper_pearson_lower(counts.hits, counts.n, alpha=lower_alpha)
    p_upper = None
    if runner_up:
        bound = clopper_pearson_upper(counts.rival, counts.n, alpha=alpha - lower_alpha)
        p_upper = bound if bound < 1 - p_lower else None
    is_certain = p_lower > (0.5 if p_upper is None else p_upper)
    radius = max(0.0, claim.noise.radius(p_lower, sigma=claim.sigma, p_upper=p_upper)) if is_certain else None
    return _point(claim, counts, radius=radius, p_lower=p_lower)


def _point(claim: Claim, counts: Counts, *, radius: float | None, p_lower: float) -> PointCertificate:
    """A certificate of this radius; None: it abstains."""
    return PointCertificate(
        label=None if radius is None else claim.label,
        radius=radius or 0.0,
        sigma=claim.sigma,
        p_lower=p_lower,
        n=counts.n,
        alpha=claim.alpha,
        norm=claim.noise.norm,
    )


def _projected(counts: Counts, n: int) -> Counts:
    """The same shares among n samples, shrunk a little: what was never seen may yet happen."""
    hits = (counts.hits + 0.5) / (counts.n + 1) * n
    rival = (counts.rival + 0.5) / (counts.n + 1) * n
    return Counts(n=n, hits=math.floor(hits), rival=math.ceil(rival))
