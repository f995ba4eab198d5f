"""The two kinds of certificate: for one sigma held fixed, and settled against a memory."""

import operator
from dataclasses import dataclass
from typing import Literal

from sigmax.rounding import format_down

Rule = Literal["kept", "truncated", "inherited", "abstained", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PointCertificate:
    """With probability >= 1 - alpha, the classifier smoothed at this sigma answers `label` on the ball.

    With per-input sigma, two point certificates may contradict each other; a memory settles them.
    """

    label: int | None  # None: abstained, and then radius == 0
    radius: float  # open ball in the norm below, rounded down
    sigma: float
    p_lower: float  # lower confidence bound on the probability of `label` under noise
    n: int  # samples that estimated p_lower
    alpha: float
    norm: int  # 1 or 2
    tau: float | None = None  # the noise level that a noise-aware network was told; None: the network takes none
    expert: int = 0  # which of several networks
    is_exact: bool = False  # integer noise: rounding cannot break it, for any input on the grid
    expert_radius: float | None = None  # with a router: the radius of the chosen network; `radius` is the smaller one
    route_radius: float | None = None  # with a router: the radius of its choice

    def __post_init__(self) -> None:
        """Convert numbers of NumPy and torch to Python numbers, which can be recorded."""
        for name in ("label", "n", "norm", "expert"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, operator.index(value))
        for name in ("radius", "sigma", "p_lower", "alpha", "tau", "expert_radius", "route_radius"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, float(value) + 0.0)  # never -0.0, which SQLite returns as 0.0

    def __repr__(self) -> str:
        """The answer alone: the other fields have names of their own."""
        return f"<PointCertificate {_answer(self.label, self.radius, self.sigma)}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SettledCertificate:
    """The answer to give: it contradicts no other answer that its memory has given or will give.

    Only a memory makes one. `rule` names how. The point certificate was *kept* or *truncated* at a ball with another
    label. Or the answer was *inherited* from a ball that contains the input. *Abstained*: there is no label. *Refused*:
    the balls that contain the input have a larger alpha than asked, and sampling does not give their label.
    """

    label: int | None
    radius: float
    proof: PointCertificate  # the certificate that the answer relies on
    point: PointCertificate | None  # the point certificate of this input; None: looked up, without sampling
    rule: Rule
    origin: int | None = None  # the entry of the memory that `proof` belongs to; None: this input

    def __repr__(self) -> str:
        """The answer and how it came about."""
        return f"<SettledCertificate {_answer(self.label, self.radius, self.sigma)}, {self.rule}>"

    @property
    def sigma(self) -> float:
        """The sigma of the certificate that the answer relies on."""
        return self.proof.sigma

    @property
    def alpha(self) -> float:
        """The failure probability of the certificate that the answer relies on."""
        return self.proof.alpha


def _answer(label: int | None, radius: float, sigma: float) -> str:
    said = "abstains" if label is None else f"label={label}, radius={format_down(radius, 4)}"
    return f"{said}, sigma={sigma:.4g}"
