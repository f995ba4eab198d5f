"""The whole way in a minute: train on digits, certify with one sigma and with its own sigma for each input."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from sigmax.budget import Budget
from sigmax.data import load_source
from sigmax.engine import Tracker, certify_source
from sigmax.models import load_model
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.records import CertificateTable
from sigmax.report.figures import compare_runs
from sigmax.sigma import FixedSigma, HalvingSearch, SigmaSearch
from sigmax.smoothed import SmoothedClassifier
from sigmax.train import Recipe, train

SIGMA, N, SEED = 0.12, 10_000, 0
_EPOCHS, _BATCH, _EVERY = 40, 64, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The two tables, and the picture that compares them."""

    fixed: CertificateTable
    per_input: CertificateTable
    picture: Path


def run_demo(out: Path, track: Tracker) -> DemoResult:
    """Train, certify twice, and draw; all of it goes into the folder `out`."""
    source = load_source("digits", split="test")
    network = _model(out / MODEL_FILE, track)
    indices = list(range(0, len(source), _EVERY))
    searches: dict[str, SigmaSearch] = {
        "fixed": FixedSigma(SIGMA),
        "per-input": HalvingSearch(initial=SIGMA),
    }
    tables = {}
    for name, search in searches.items():
        smoothed = SmoothedClassifier(network, num_classes=len(source.class_names), sigma=search)
        budget = Budget(n=N, seed=SEED)
        tables[name] = certify_source(smoothed, source, indices, out / name, budget=budget, track=track, resume=True)
    fixed, per_input = tables["fixed"], tables["per-input"]
    chosen = _telling_rows(per_input)
    picture = out / "demo.png"
    compare_runs(
        [(f"one sigma for all, {SIGMA}", fixed), ("its own sigma for each input", per_input)],
        source.images([indices[row] for row in chosen]),
        chosen,
        picture,
    )
    return DemoResult(fixed=fixed, per_input=per_input, picture=picture)


def _model(path: Path, track: Tracker) -> Callable[[Tensor], Tensor]:
    """The network of this folder; trained first where there is none yet."""
    if not path.exists():
        _train(path.parent, track)
    return load_model(str(path)).model


def _train(out: Path, track: Tracker) -> None:
    source = load_source("digits", split="train")
    recipe = Recipe(arch="digits-cnn", sigma=SIGMA, epochs=_EPOCHS, batch=_BATCH, seed=SEED)
    with track("training under noise", _EPOCHS * (len(source) // _BATCH)) as advance:
        train(recipe, source, out, resume=True, on_step=lambda _: advance(1))


def _telling_rows(table: CertificateTable) -> list[int]:
    """A few inputs from the smallest sigma* to the largest."""
    order = np.argsort(table.sigma, kind="stable")
    places = np.linspace(0, len(order) - 1, 7).round().astype(int)
    return [int(row) for row in order[places]]
