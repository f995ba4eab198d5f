"""Confidence bounds on a probability from counts: small pure functions in float64."""

from scipy.special import bdtrc, betainc, betaincinv

from sigmax.errors import InvalidInputError


def clopper_pearson_lower(k: float, n: int, *, alpha: float) -> float:
    r"""Lower bound on p that exceeds the truth with probability at most alpha, for k ~ Binomial(n, p).

    The bound is the $p$ with $P(\mathrm{Bin}(n, p) \ge k) = I_p(k, n - k + 1) = \alpha$, where $I$ is the
    regularised incomplete beta function. A fractional k is allowed (for projections, not for claims).
    """
    if not (n >= 1 and 0 <= k <= n):
        raise InvalidInputError(f"expected 0 <= k <= n and n >= 1, got k={k}, n={n}")
    check_alpha(alpha)
    if k == 0:
        return 0.0
    bound = float(betaincinv(k, n - k + 1, alpha))
    # The inverse is good to about 1e-13; the forward function decides. Step down until it agrees.
    step = 2.0**-53
    while bound > 0.0 and betainc(k, n - k + 1, bound) > alpha:
        bound -= step
        step *= 2
    return max(bound, 0.0)


def top_class_p_value(top: int, runner_up: int) -> float:
    """Two-sided p-value of "the two leading classes are equally likely", given their counts."""
    total = top + runner_up
    return min(1.0, 2.0 * float(bdtrc(top - 1, total, 0.5))) if top > 0 else 1.0


def check_alpha(alpha: float) -> None:
    """Refuse a failure probability outside (0, 1)."""
    if not 0.0 < alpha < 1.0:
        raise InvalidInputError(f"expected 0 < alpha < 1, got alpha={alpha}; 0.001 is usual")
