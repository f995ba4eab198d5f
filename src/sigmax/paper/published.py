"""What the paper reports, to be set beside ours: its tables and its settings as data.

`best.tsv` holds its four tables of best certified accuracy per radius with ACR, `per_sigma.tsv` the
appendix, one row for each method, sigma, number of steps K and radius. Accuracies are in percent. One row
that the appendix prints twice (Cohen-DS^2, sigma 0.12, K = 100) is here once. `settings.toml` is from its text.
"""

import csv
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from sigmax.plain import from_plain
from sigmax.search.ascent import ALGORITHM_1
from sigmax.search.base import with_draws

Curve = dict[float, float]  # radius -> percent, or points
Steps = tuple[int, ...]  # some K; empty: all that the paper has, or a search without K

_FOLDER = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSettings:
    """How the paper set its experiments on a data set."""

    scope: str
    sigmas: dict[str, tuple[float, ...]]  # by norm
    said: dict[str, str]  # in words
    seconds: dict[str, str]  # per input, by search


def published_settings(data: str) -> PublishedSettings:
    """The settings on cifar10 or imagenet."""
    return from_plain(PublishedSettings, tomllib.loads((_FOLDER / "settings.toml").read_text())[data])


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCurve:
    """Certified accuracy by radius, as printed in the paper."""

    method: str  # such as cohen, cohen-ds, cohen-ds2
    sigma: float | None = None  # None: the best over all sigmas and K at each radius
    steps: int | None = None  # K; 0: no search; None: the best
    samples: int | None = None  # n of Algorithm 1; None: the table does not say
    accuracy: Curve
    acr: float | None = None  # given for the best only


@cache
def published_curves(data: str, norm: int) -> tuple[PublishedCurve, ...]:
    """Every curve of the paper's tables on cifar10 or imagenet in this norm, in their order."""
    curves: dict[tuple[str, ...], dict[str, Any]] = {}
    for name in ("best.tsv", "per_sigma.tsv"):
        with (_FOLDER / name).open(newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                if (row.pop("data"), row.pop("norm", "l2")) == (data, f"l{norm}"):
                    radius, accuracy = float(row.pop("radius")), float(row.pop("accuracy"))
                    curve = curves.setdefault((name, *row.values()), {**row, "accuracy": {}})
                    curve["accuracy"][radius] = accuracy
    return tuple(from_plain(PublishedCurve, curve) for curve in curves.values())


@final
class Published:
    """The paper's curves on cifar10 or imagenet in one norm, and the best of them."""

    def __init__(self, data: str, norm: int) -> None:
        self.curves = published_curves(data, norm)
        self.radii = sorted({radius for curve in self.curves for radius in curve.accuracy})
        self._sigmas = published_settings(data).sigmas[f"l{norm}"]

    def whole(self, method: str) -> PublishedCurve | None:
        """The best of a method over all its sigma0s and K."""
        return next((curve for curve in self.curves if curve.sigma is None and curve.method == method), None)

    def appendix(self, method: str) -> list[PublishedCurve]:
        """The curves of a method at each sigma0 and K; of two trainings that of the main tables."""
        curves = [curve for curve in self.curves if curve.method == method and curve.sigma is not None]
        draws = max((curve.samples or 0 for curve in curves), default=0)  # MACER-DS^2: 8, not 1
        return [curve for curve in curves if (curve.samples or 0) == draws]

    def sigmas(self, method: str) -> set[float]:
        """The sigma0s of a method: as the appendix lists them, else as the text says for all."""
        return {curve.sigma for curve in self.appendix(method) if curve.sigma is not None} or set(self._sigmas)

    def search(self, method: str) -> str:
        """The search of a method, in a phrase."""
        draws = max((curve.samples or 1 for curve in self.appendix(method)), default=1)
        return with_draws(ALGORITHM_1, draws) if "-ds" in method else ""

    def best(self, method: str, sigmas: set[float], steps: Steps = ()) -> Curve | None:
        """The best of a method over these sigma0s and K; None: the paper lacks some."""
        whole = self.whole(method)
        if not steps and whole and sigmas == self.sigmas(method):
            return whole.accuracy
        curves = [c for c in self.appendix(method) if c.sigma in sigmas and (not steps or c.steps in steps)]
        if {c.sigma for c in curves} != sigmas or (steps and len(curves) < len(steps) * len(sigmas)):
            return None
        return {radius: max(curve.accuracy[radius] for curve in curves) for radius in curves[0].accuracy}
