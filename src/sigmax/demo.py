"""The whole way in a minute: train on digits, certify with one sigma and with per-input sigma, and compare."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from sigmax.budget import Budget
from sigmax.data import load_source
from sigmax.data.reference import DataReference
from sigmax.engine import Tracker, certify
from sigmax.files import write_atomically
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.models.reference import ModelReference
from sigmax.report import canvas, metrics
from sigmax.report.figures import Curves, draw_panels
from sigmax.rounding import format_down, format_nearest
from sigmax.runs import ABSTAIN, CertificateTable, CertificationSpec
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
    named = {f"one sigma for all, {SIGMA}": fixed, "per-input sigma": per_input}
    figure = _compare(named, load_source("digits").images(per_input.idx[chosen].tolist()), chosen)
    write_atomically(picture, canvas.render(figure)["png"])
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


@mpl.rc_context(canvas.STYLE)
def _compare(tables: dict[str, CertificateTable], images: NDArray[np.float32], rows: Sequence[int]) -> Figure:
    """Curves of named tables, above images (k, channels, height, width) of some rows of the last table."""
    figure = canvas.new_figure(canvas.PAGE, 5.0)
    upper, lower = np.ravel(np.asarray(figure.subfigures(2, 1, height_ratios=(2.4, 1))))
    axes = upper.subplots()
    curves: Curves = []
    for (name, table), colour in zip(tables.items(), canvas.COLOURS, strict=False):
        acr = format_nearest(metrics.average_certified_radius(table))
        curves.append((f"{name} ({metrics.kind_of_answers(table)}), ACR {acr}", {"color": colour}, [table]))
    draw_panels([("", curves)], [axes], list(tables.values()))
    axes.legend(loc="upper right")
    for picture, image, row in zip(lower.subplots(1, len(rows), squeeze=False)[0], images, rows, strict=True):
        canvas.draw_image(picture, image)
        answer = "abstains" if table.predict[row] == ABSTAIN else f"says {table.predict[row]}"
        sigma, radius = format_nearest(table.sigma[row]), format_down(table.radius[row])
        picture.set_title(f"{answer}\n$\\sigma$ = {sigma}\nradius {radius}")
    return figure
