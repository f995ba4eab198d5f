"""Runs and images made up for the tests of reports."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sigmax.data import ArraySource
from sigmax.records import CertificateTable, Run
from sigmax.report.page import render_page

FIXED = {
    "search": {"kind": "FixedSigma", "initial": 0.25},
    "fingerprint": "f",
    "n0": 100,
    "n": 1000,
    "alpha": 0.001,
    "seed": 7,
}
OWN = FIXED | {
    "search": {"kind": "AscentSearch", "initial": 0.25, "steps": 900},
    "notes": {"model": "a model", "data": "made up"},
}


def make_run(
    name: str,
    label: NDArray[np.int64],
    predict: NDArray[np.int64],
    radius: NDArray[np.float64],
    *,
    sigma: NDArray[np.float64] | float = np.nan,
    rule: tuple[str, ...] | None = None,
    point_radius: NDArray[np.float64] | None = None,
    point_predict: NDArray[np.int64] | None = None,
    config: dict[str, Any] | None = None,
    idx: NDArray[np.int64] | None = None,
    norm: int = 2,
) -> Run:
    """A run with these columns, certified in no time."""
    size = len(label)
    table = CertificateTable(
        name=name,
        idx=np.arange(size) if idx is None else idx,
        label=label,
        predict=predict,
        radius=radius,
        seconds=np.full(size, np.nan),
        sigma=np.broadcast_to(np.asarray(sigma, dtype=np.float64), size).copy(),
        point_predict=predict if point_predict is None else point_predict,
        point_radius=radius if point_radius is None else point_radius,
        rule=rule or ("",) * size,
        samples=np.zeros(size, dtype=np.int64),
        norm=norm,
    )
    return Run(table=table, config=config or {})


def make_pair(size: int, *, classes: int = 10, seed: int = 0, names: tuple[str, str] = ("fixed", "own")) -> list[Run]:
    """One sigma for all, and a settled run with its own for each: some gain, some lose, some stay, some are wrong."""
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
    point_radius = own + 0.05 * (rule == "truncated")
    point_predict = np.where(rule == "inherited", (predict + 1) % classes, predict)
    return [
        make_run(names[0], label, predict, radius, sigma=0.25, rule=("point",) * size, config=FIXED),
        make_run(
            names[1],
            label,
            predict,
            own,
            sigma=sigma,
            rule=tuple(rule.tolist()),
            point_radius=point_radius,
            point_predict=point_predict,
            config=OWN,
        ),
    ]


def make_source(
    run: Run, shape: tuple[int, int, int], *, names: tuple[str, ...] | None = None, seed: int = 0
) -> ArraySource:
    """Noise for pictures, which no encoder can make small, with the labels of this run."""
    pixels = np.random.default_rng(seed).integers(256, size=(len(run.table), *shape), dtype=np.uint8)
    classes = names or tuple(f"class {i}" for i in range(int(run.table.label.max()) + 1))
    return ArraySource("made up", pixels, run.table.label, classes, levels=255)


def write_page(runs: list[Run], path: Path, **options: Any) -> None:
    path.write_bytes(render_page(runs, **options))
