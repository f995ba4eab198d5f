"""Tables, runs and images made up for the tests of reports."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from sigmax.budget import Budget
from sigmax.data import ArraySource
from sigmax.data.reference import DataReference
from sigmax.models.reference import ModelReference
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.report.entries import entries
from sigmax.report.page import render_page
from sigmax.report.pairing import pairs
from sigmax.runs import CertificateTable, CertificationSpec, Found, Run
from sigmax.search import AscentSearch, Choice, FixedSigma, SearchTask, SigmaSearch
from sigmax.streams import Stream


@final
@dataclass(frozen=True, kw_only=True)
class OneForAll(SigmaSearch):
    """One sigma for all inputs, such as the best on images that are kept for it."""

    is_per_input: ClassVar[bool] = False
    initial: float = 0.25
    fixes_class: bool = False
    images: int = 100

    def find(self, task: SearchTask) -> Choice:
        return Choice(sigma=torch.full((len(task.x),), self.initial))

    def cost(self) -> int:
        return 0


@final
@dataclass(frozen=True, kw_only=True)
class OwnSearch(SigmaSearch):
    """Per input, with settings that only look like those of ours."""

    initial: float = 0.25
    fixes_class: bool = False
    bounds: str = "wide"
    steps: str = "many"

    @property
    def upper(self) -> float | None:
        return 0.3

    def label(self) -> str:
        return "my search"

    def find(self, task: SearchTask) -> Choice:
        return Choice(sigma=torch.full((len(task.x),), self.initial))

    def cost(self) -> int:
        return 0


@final
@dataclass(frozen=True)
class Stripes(SmoothingDistribution):
    """Noise that is the same for every pixel and every draw: easy to tell from any other."""

    name = "stripes"
    norm = 2
    height: float = 1.0

    def draw(self, stream: Stream, n: int, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
        return torch.full((n, *shape), self.height, dtype=dtype)

    def radius(self, p_lower: float, *, sigma: float, p_upper: float | None = None) -> float:
        return sigma

    def probability(self, radius: float, *, sigma: float) -> float:
        return 1.0

    def soft_radius(self, probs: Tensor, sigma: Tensor, *, label: Tensor | None = None) -> Tensor:
        return sigma


def make_table(
    label: ArrayLike,
    predict: ArrayLike,
    radius: ArrayLike,
    *,
    name: str = "made up",
    idx: ArrayLike | None = None,
    sigma: ArrayLike = np.nan,
    seconds: ArrayLike = np.nan,
    point_predict: ArrayLike | None = None,
    point_radius: ArrayLike | None = None,
    rule: Sequence[str] | str = "",
    n: int = 0,
    norm: int = 2,
) -> CertificateTable:
    """A table with these columns; one value stands for all rows."""
    size = len(np.atleast_1d(np.asarray(label)))

    def column(values: ArrayLike, kind: type = np.float64) -> Any:
        return np.broadcast_to(np.asarray(values, dtype=kind), size).copy()

    return CertificateTable(
        name=name,
        idx=column(np.arange(size) if idx is None else idx, np.int64),
        label=column(label, np.int64),
        predict=column(predict, np.int64),
        radius=column(radius),
        seconds=column(seconds),
        sigma=column(sigma),
        point_predict=column(predict if point_predict is None else point_predict, np.int64),
        point_radius=column(radius if point_radius is None else point_radius),
        rule=(rule,) * size if isinstance(rule, str) else tuple(rule),
        samples=column(n, np.int64),
        norm=norm,
    )


def make_spec(
    search: SigmaSearch | None = None,
    *,
    noise: SmoothingDistribution | None = None,
    model: str = "net.pt",
    network: str = "net",
    data: str = "toy",
    digest: str = "",
    backend: str | None = None,
    trained: str | None = None,
    **budget: Any,
) -> CertificationSpec:
    """The request of a run, by default with one sigma of 0.25."""
    return CertificationSpec(
        model=ModelReference(name=model),
        data=DataReference(name=data),
        search=search or FixedSigma(0.25),
        noise=noise or Gaussian(),
        budget=Budget(**{"n0": 10, "n": 500, "alpha": 0.01, "seed": 7} | budget),
        found=Found(fingerprint=network, data=digest, device="cpu", backend=backend, trained=trained),
    )


def make_run(name: str, radius: Any, spec: CertificationSpec | None = None, **columns: Any) -> Run:
    """A run, by default of right answers to inputs 0, 1, … with labels 0, 1, 0, …; without a request, a log."""
    label = np.arange(len(radius)) % 2
    said: dict[str, Any] = {"label": label, "predict": columns.get("label", label), "radius": radius, "name": name}
    if spec is not None:
        rule = "kept" if spec.is_per_input else "point"
        said |= {
            "sigma": spec.search.initial,
            "seconds": 0.5,
            "rule": rule,
            "n": spec.budget.n,
            "norm": spec.noise.norm,
        }
    return Run(table=make_table(**said | columns), spec=spec)


def make_series() -> list[Run]:
    """One network at sigma0 0.25: fixed, and with K = 90 and K = 10."""
    sigma = [0.2, 0.3, 0.5, 0.4]
    searches = {"k90": AscentSearch(initial=0.25, steps=90), "k10": AscentSearch(initial=0.25, steps=10)}
    radii = {"k90": [0.6, 0.9, 0.4, 0.5], "k10": [0.6, 0.7, 0.8, 0.5]}
    own = [make_run(name, radii[name], make_spec(search), sigma=sigma) for name, search in searches.items()]
    return [make_run("fixed", [0.5, 0.5, 0.5, 0.5], make_spec()), *own]


def make_pair(size: int, *, classes: int = 10, seed: int = 0, names: tuple[str, str] = ("fixed", "own")) -> list[Run]:
    """One sigma for all, and a settled per-input run: some gain, some lose, some stay, some are wrong."""
    random = np.random.default_rng(seed)
    label = random.integers(classes, size=size)
    predict = np.where(random.random(size) < 0.8, label, random.integers(-1, classes, size=size))
    radius = np.where(predict < 0, 0.0, random.exponential(0.4, size))
    shift = np.where(random.random(size) < 0.3, 0.0, random.normal(0.1, 0.15, size))
    own = np.where(predict < 0, 0.0, (radius + shift).clip(0))
    sigma = random.uniform(0.0625, 0.5, size)
    rule = np.where(
        predict < 0, "abstained", random.choice(["kept", "truncated", "inherited"], size, p=[0.8, 0.1, 0.1])
    )
    answers = {"label": label, "predict": predict}
    settled = {
        "sigma": sigma,
        "rule": rule.tolist(),
        "point_radius": own + 0.05 * (rule == "truncated"),
        "point_predict": np.where(rule == "inherited", (predict + 1) % classes, predict),
    }
    return [
        make_run(names[0], radius, make_spec(), **answers),
        make_run(names[1], own, make_spec(AscentSearch(initial=0.25)), **answers, **settled),
    ]


def make_source(
    run: Run, shape: tuple[int, int, int], *, names: tuple[str, ...] | None = None, seed: int = 0
) -> ArraySource:
    """Noise for pictures, which no encoder can make small, with the labels of this run."""
    pixels = np.random.default_rng(seed).integers(256, size=(len(run.table), *shape), dtype=np.uint8)
    classes = names or tuple(f"class {i}" for i in range(int(run.table.label.max()) + 1))
    return ArraySource("made up", pixels, run.table.label, classes, levels=255)


def write_page(runs: Sequence[Run], path: Path, *, baseline: int | None = None, **options: Any) -> None:
    """The page of these runs; `baseline` is the place of the run that all others are compared with."""
    shown = entries(runs)
    found = pairs(shown, named=None if baseline is None else shown[baseline])
    path.write_bytes(render_page(shown, pairs=found, **{"title": "A report", "tables": []} | options))
