"""Budget: how many samples an input gets, and when they suffice."""

import itertools
import operator
from dataclasses import dataclass, replace
from typing import Self, SupportsIndex

from sigmax.bounds import check_alpha
from sigmax.errors import InvalidInputError
from sigmax.estimation import Anytime, AtRadii, Claim, Counts, Estimate, PlannedLooks
from sigmax.noise import Gaussian
from sigmax.streams import check_seed

_LEAST_ALPHA = 1e-30  # its shares for looks and for the runner-up must not underflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How an input is sampled: n0 samples select the class, n estimate its probability, at level alpha.

    Args:
        n0: Samples that select the class.
        n: Samples that estimate its probability; with `tolerance` or `radii`, the maximum.
        alpha: Failure probability.
        seed: Seed of all noise.
        tolerance: Stop early when more samples would enlarge the radius by less than this share; 0: never.
        radii: Test only whether the radius is at least each of these, and stop when all tests are decided.
        runner_up: Bound the strongest other class too, for larger radii from the same samples.
        n_wrong: Samples for misclassified inputs, which never count towards certified accuracy or ACR. It needs the
            true classes. In a memory, the smaller balls of wrong classes cut less from their neighbours. None: n.
        anytime: The radius grows with the samples, and sampling may stop at any time. Radii lose at most 0.01 sigma.
    """

    n0: int = 100
    n: int = 100_000
    alpha: float = 0.001
    seed: int = 0
    tolerance: float = 0.0
    radii: tuple[float, ...] = ()
    runner_up: bool = False
    n_wrong: int | None = None
    anytime: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha, least=_LEAST_ALPHA)
        for name in ("n0", "n", "seed", "n_wrong"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _whole(name, value))
        # Records hold Python numbers, not those of NumPy.
        for name in ("alpha", "tolerance"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "radii", tuple(float(radius) for radius in self.radii))
        if self.n < 1 or self.n0 < 1:
            raise InvalidInputError(f"expected n >= 1 and n0 >= 1, got n={self.n}, n0={self.n0}")
        if self.n_wrong is not None and not 1 <= self.n_wrong <= self.n:
            raise InvalidInputError(f"expected 1 <= n_wrong <= n, got n_wrong={self.n_wrong}, n={self.n}")
        check_seed(self.seed)
        if not 0.0 <= self.tolerance < 1.0:
            raise InvalidInputError(f"expected 0 <= tolerance < 1, got tolerance={self.tolerance}")
        if not all(0.0 <= radius < float("inf") for radius in self.radii):
            raise InvalidInputError(f"expected radii >= 0, got radii={self.radii}")
        if self.radii and (self.tolerance or self.runner_up):
            raise InvalidInputError("expected radii alone, got tolerance or runner_up too; leave them out")
        if self.anytime and (self.radii or self.tolerance or self.runner_up):
            raise InvalidInputError("expected anytime alone, got radii, tolerance or runner_up too; leave them out")
        if not self._certifies(self.n):
            least = next(n for n in itertools.count(self.n + 1) if self._certifies(n))
            raise InvalidInputError(
                f"expected n >= {least}, because fewer samples can certify nothing at alpha={self.alpha:g}, "
                f"got n={self.n}; raise n"
            )

    def shared(self, family_alpha: float, inputs: int) -> Self:
        """The same with an equal share of `family_alpha` for each of so many inputs (Bonferroni)."""
        return replace(self, alpha=family_alpha / inputs * (1 - 2.0**-50))

    def estimate(self, claim: Claim, *, truth: int | None = None) -> Estimate:
        """The estimation of one input; `truth` is its true class, if known."""
        # n may depend on the selected class, because other samples selected it.
        is_wrong = truth is not None and claim.label != truth
        return self._estimate(claim, self.n_wrong if is_wrong and self.n_wrong is not None else self.n)

    def _estimate(self, claim: Claim, n: int) -> Estimate:
        if self.radii:
            return AtRadii(claim, radii=self.radii, n=n)
        if self.anytime:
            return Anytime(claim, n=n)
        return PlannedLooks(claim, n=n, tolerance=self.tolerance, runner_up=self.runner_up)

    def _certifies(self, n: int) -> bool:
        """Whether n samples of one class certify anything: the smallest radius, under any noise."""
        claim = Claim(label=0, sigma=1.0, noise=Gaussian(), alpha=self.alpha)
        point = self._estimate(claim, n).look(Counts(n=n, hits=n, rival=0))
        return point is not None and point.label is not None


def _whole(name: str, value: SupportsIndex) -> int:
    """The value as a Python integer; NumPy integers are accepted, floats such as 1e5 are not."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInputError(f"expected a whole number {name}, got {name}={value!r}") from None
