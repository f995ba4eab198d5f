"""Confidence bounds on a probability from counts, in float64."""

import math

from scipy.special import bdtrc, betainc, betaincc, betaincinv, betaln

from sigmax.errors import InvalidInputError

_EVIDENCE_ERROR = 2.0**-46  # per sample: ten times what was measured against mpmath
_SLIPS = 0.01  # share of alpha for more slips than are allowed for, see `leads`


def clopper_pearson_lower(k: float, n: int, *, alpha: float) -> float:
    r"""Lower bound on p that exceeds the truth with probability at most alpha, for k ~ Binomial(n, p).

    The bound is the $p$ with $P(\mathrm{Bin}(n, p) \ge k) = I_p(k, n - k + 1) = \alpha$, where $I$ is the
    regularised incomplete beta function. A fractional k is for projections only, never for certificates.
    """
    if not (n >= 1 and 0 <= k <= n):
        raise InvalidInputError(f"expected 0 <= k <= n and n >= 1, got k={k}, n={n}")
    check_alpha(alpha)
    if k == 0:
        return 0.0
    bound = float(betaincinv(k, n - k + 1, alpha))
    # The inverse is accurate to about 1e-13. Step down until the forward function confirms the bound.
    step = 2.0**-53
    while bound > 0.0 and betainc(k, n - k + 1, bound) > alpha:
        bound -= step
        step *= 2
    return max(bound, 0.0)


def clopper_pearson_upper(k: float, n: int, *, alpha: float) -> float:
    """Upper bound on p that falls below the truth with probability at most alpha; mirrors the lower bound."""
    return min(1.0, 1.0 - clopper_pearson_lower(n - k, n, alpha=alpha) + 2.0**-53)


def evidence_above(k: int, n: int, p0: float) -> float:
    r"""Natural logarithm of the evidence that p > p0, given k hits among n samples; valid at every n.

    The one-sided beta-mixture martingale with a = b = 1/2:
    $M^+_n(p_0) = \frac{B(a+k, b+n-k)}{B(a,b)\,p_0^k(1-p_0)^{n-k}} \cdot
    \frac{1 - I_{p_0}(a+k, b+n-k)}{1 - I_{p_0}(a, b)}$, where I is the regularised incomplete beta function.
    If p <= p0, the probability that it ever exceeds $1/\alpha$ is at most alpha, however often one looks.
    The evidence that p < p0 comes from the misses: `evidence_above(n - k, n, 1 - p0)`. It is rounded down.
    """
    if not (n >= 0 and 0 <= k <= n and 0.0 < p0 < 1.0):
        raise InvalidInputError(f"expected 0 <= k <= n and 0 < p0 < 1, got k={k}, n={n}, p0={p0}")
    hits, misses = 0.5 + k, 0.5 + n - k
    tail = float(betaincc(hits, misses, p0))
    if tail == 0.0:
        return -math.inf
    mixture = float(betaln(hits, misses) - betaln(0.5, 0.5)) - k * math.log(p0) - (n - k) * math.log1p(-p0)
    evidence = mixture + math.log(tail) - math.log(float(betaincc(0.5, 0.5, p0)))
    return evidence - (n + 16) * _EVIDENCE_ERROR


def anytime_lower(k: int, n: int, *, alpha: float) -> float:
    r"""Lower bound on p that holds at every n at once: with probability 1 - alpha, none of them exceeds the truth.

    It is the $p_0$ with $M^+_n(p_0) = 1/\alpha$ (`evidence_above`), sought at $n p_0 \le k - 1/2$. There the slope of
    $\log M^+_n$ is at most $\pi(p_0) / \int_{p_0}^1 \pi - (k - n p_0) / (p_0 (1 - p_0)) \le 0$, where $\pi$ is the
    density of the mixture. So the evidence is against every smaller p too.
    """
    check_alpha(alpha)
    # 1e-9 more than needed: rounding changes the evidence by far less.
    needed = 1e-9 - math.log(alpha)
    low, high = 0.0, (k - 0.5) / n if n else 0.0
    if high <= 0.0:
        return 0.0
    if evidence_above(k, n, high) >= needed:
        return high
    while high - low > 2.0**-38:  # what remains only makes the bound smaller
        middle = (low + high) / 2
        if evidence_above(k, n, middle) >= needed:
            low = middle
        else:
            high = middle
    return low


def top_class_p_value(top: int, runner_up: int) -> float:
    """Two-sided p-value of "the two leading classes are equally likely", given their counts."""
    total = top + runner_up
    return min(1.0, 2.0 * float(bdtrc(top - 1, total, 0.5))) if top > 0 else 1.0


def leads(top: int, runner_up: int, *, n: int, alpha: float, defect: float) -> bool:
    """Whether the top class leads the other under the true noise, at level alpha, given their counts in n samples.

    `defect` bounds how far a probability under the noise drawn is from the true one. So if the top class does not lead,
    at most a share of 2 defect of the samples are slips: hits that it would not have under the true noise. As many as n
    samples may have are not counted.
    """
    slips = 0
    while (more := float(bdtrc(slips, n, min(1.0, 2 * defect)))) > _SLIPS * alpha:
        slips += 1
    return top_class_p_value(max(0, top - slips), runner_up) + more <= alpha


def check_alpha(alpha: float, *, least: float = 1e-300) -> None:
    """Refuse a failure probability outside (0, 1), or so small that bounds underflow."""
    if not least <= alpha < 1.0:
        raise InvalidInputError(f"expected 0 < alpha < 1 and at least {least:g}, got alpha={alpha}; 0.001 is usual")
