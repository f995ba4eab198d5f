"""The whole way in a minute: train on digits, certify with one sigma and with its own sigma for each input."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sigmax.data import ImageSource, load_source
from sigmax.engine import certify_source
from sigmax.memory import CertificateMemory
from sigmax.models import ModelCard, build_network, save_model
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.noise import Gaussian
from sigmax.records import MEMORY, CertificateTable, RunFolder, read_table
from sigmax.report.figures import compare_runs
from sigmax.sampling import Progress
from sigmax.sigma import AscentSearch, FixedSigma, SigmaSearch
from sigmax.smoothed import SmoothedClassifier
from sigmax.train import train_under_noise

SIGMA, N0, N, ALPHA, SEED = 0.12, 100, 10_000, 0.001, 0
_EPOCHS, _STEPS, _EVERY = 40, 900, 3

# Shows work under way: (what, how much in all) -> a context that is told what was done since.
Tracker = Callable[[str, int], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The two tables, and the picture that compares them."""

    fixed: CertificateTable
    per_input: CertificateTable
    picture: Path


def run_demo(out: Path, track: Tracker) -> DemoResult:
    """Train, certify twice, and draw; all of it goes into the folder `out`."""
    source = load_source("digits", split="test")
    network = _train(out / MODEL_FILE, source, track)
    indices = list(range(0, len(source), _EVERY))
    searches: dict[str, SigmaSearch] = {
        "fixed": FixedSigma(SIGMA),
        "per-input": AscentSearch(initial=SIGMA, steps=_STEPS),
    }
    for name, search in searches.items():
        _certify(out / name, network, search, source, indices, track)
    fixed, per_input = read_table(out / "fixed"), read_table(out / "per-input")
    chosen = _telling_rows(per_input)
    picture = out / "demo.png"
    compare_runs(
        [(f"one sigma for all, {SIGMA}", fixed), ("its own sigma for each input", per_input)],
        source.images([indices[row] for row in chosen]),
        chosen,
        picture,
    )
    return DemoResult(fixed=fixed, per_input=per_input, picture=picture)


def _train(path: Path, source: ImageSource, track: Tracker) -> torch.nn.Module:
    data = load_source("digits", split="train")
    torch.manual_seed(SEED)
    network = build_network("digits-cnn", num_classes=len(data.class_names), in_channels=data.shape[0])
    x = torch.from_numpy(data.images(range(len(data))))
    labels = torch.from_numpy(data.labels)
    with track("training under noise", _EPOCHS) as advance:
        train_under_noise(
            network,
            x,
            labels,
            noise=Gaussian(),
            sigma=SIGMA,
            epochs=_EPOCHS,
            seed=SEED,
            on_epoch=lambda _epoch, _loss: advance(1),
        )
    card = ModelCard(
        arch="digits-cnn",
        num_classes=len(data.class_names),
        input_shape=source.shape,
        class_names=data.class_names,
        sigma=SIGMA,
        noise=Gaussian.name,
    )
    save_model(path, network, card)
    return network


def _certify(
    out: Path,
    network: torch.nn.Module,
    search: SigmaSearch,
    source: ImageSource,
    indices: list[int],
    track: Tracker,
) -> None:
    smoothed = SmoothedClassifier(network, num_classes=len(source.class_names), sigma=search)
    config = {"data": source.name, "search": repr(search), "n0": N0, "n": N, "alpha": ALPHA, "seed": SEED}
    config["fingerprint"] = smoothed.fingerprint
    is_per_input = not isinstance(search, FixedSigma)
    with RunFolder(out, config, resume=True) as run:
        fingerprint = smoothed.fingerprint
        memory = CertificateMemory.open(out / MEMORY, norm=2, fingerprint=fingerprint) if is_per_input else None
        work = (len(indices) - run.rows) * (N0 + N + search.cost())
        what = "certifying, own sigma for each" if is_per_input else "certifying, one sigma for all"
        with track(what, work) as advance:
            certify_source(
                smoothed,
                source,
                indices,
                run,
                memory=memory,
                n0=N0,
                n=N,
                alpha=ALPHA,
                seed=SEED,
                on_progress=advance,
            )
        if memory is not None:
            memory.close()


def _telling_rows(table: CertificateTable) -> list[int]:
    """A few inputs from the smallest sigma* to the largest."""
    order = np.argsort(table.sigma, kind="stable")
    places = np.linspace(0, len(order) - 1, 7).round().astype(int)
    return [int(row) for row in order[places]]
