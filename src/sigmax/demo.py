"""The whole way in a minute: train on digits, certify with one sigma and with per-input sigma, and compare."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sigmax.budget import Budget
from sigmax.data import load_source
from sigmax.data.reference import DataReference
from sigmax.engine import Tracker, certify
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.models.reference import ModelReference
from sigmax.report.figures import compare_runs
from sigmax.runs import CertificateTable, CertificationSpec
from sigmax.sampling import default_batch_size
from sigmax.search import FixedSigma, HalvingSearch, SigmaSearch
from sigmax.train import Recipe, train

SIGMA, N, SEED = 0.12, 10_000, 0
_EPOCHS, _BATCH, _EVERY = 40, 64, 5
_ROWS = default_batch_size(64)  # not probed, so that the demo gives the same bits on every machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The two tables, and the picture that compares them."""

    fixed: CertificateTable
    per_input: CertificateTable
    picture: Path


def run_demo(out: Path, track: Tracker) -> DemoResult:
    """Train, certify twice, and draw; all of it goes into the folder `out`."""
    if not (out / MODEL_FILE).exists():
        _train(out, track)
    searches: dict[str, SigmaSearch] = {"fixed": FixedSigma(SIGMA), "per-input": HalvingSearch(initial=SIGMA)}
    tables = {}
    for name, search in searches.items():
        spec = CertificationSpec(
            model=ModelReference(name=str(out)),
            data=DataReference(name="digits", skip=_EVERY),
            search=search,
            budget=Budget(n=N, seed=SEED),
            batch=_ROWS,
        )
        tables[name] = certify(spec, out / name, track=track, resume=True)
    fixed, per_input = tables["fixed"], tables["per-input"]
    chosen = _telling_rows(per_input)
    picture = out / "demo.png"
    compare_runs(
        [(f"one sigma for all, {SIGMA}", fixed), ("per-input sigma", per_input)],
        load_source("digits").images(per_input.idx[chosen].tolist()),
        chosen,
        picture,
    )
    return DemoResult(fixed=fixed, per_input=per_input, picture=picture)


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
