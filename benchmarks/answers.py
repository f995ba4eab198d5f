"""The classes that a network gives to noisy copies of inputs, kept in a file: asked once, looked at in many ways."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import nn

from sigmax.data import load_source
from sigmax.models import BaseClassifier, load_model
from sigmax.models.backends import BACKENDS, accelerate
from sigmax.noise import Gaussian
from sigmax.sampling import sample_buffer
from sigmax.streams import Stage, random_stream

ROWS, EMPTY = 50, 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Of the inputs that were asked already."""

    classes: NDArray[np.uint8]  # inputs sigmas samples
    sigmas: NDArray[np.float64]
    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser, *, skip: int, samples: int) -> None:
    parser.add_argument("model", help="a checkpoint, a folder or zoo:NAME")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, help="where the answers are kept")
    parser.add_argument("--skip", type=int, default=skip, help="every so many inputs (default: %(default)s)")
    parser.add_argument("--max", type=int, help="at most so many inputs")
    parser.add_argument("--samples", type=int, default=samples, help="for each sigma (default: %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default="eager", help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="only show the inputs that were asked already")


def load(model: str) -> tuple[nn.Module, float]:
    """The network, and the sigma it was trained with."""
    loaded = load_model(model)
    assert isinstance(loaded.model, nn.Module)
    assert loaded.card is not None
    assert loaded.card.sigma is not None
    return loaded.model, loaded.card.sigma


def collect(options: argparse.Namespace, network: nn.Module, sigmas: Sequence[float], stage: Stage) -> Answers:
    """Ask the network about every input at every sigma, the same noise for each; what is there already is kept."""
    source = load_source(options.data)
    num_classes = len(source.class_names)
    if num_classes > EMPTY:
        raise SystemExit(f"expected at most {EMPTY} classes, which fit into a byte, got {num_classes}")
    indices = np.arange(0, len(source), options.skip)[: options.max]
    # Answers of another network or backend, or to other questions, are in another file.
    fingerprint = BaseClassifier(network, num_classes=num_classes).fingerprint
    asked = [fingerprint, options.backend, source.digest(), indices.tolist(), list(sigmas), stage.name]
    if options.samples % ROWS:
        raise SystemExit(f"expected --samples to be a multiple of {ROWS}, got {options.samples}")
    shape = (len(indices), len(sigmas), options.samples)
    name = sha256(json.dumps(asked).encode()).hexdigest()[:12]
    path = options.out / f"answers-{name}-{'x'.join(map(str, shape))}.npy"
    if not path.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(shape, EMPTY, dtype=np.uint8))
    classes: NDArray[np.uint8] = np.load(path, mmap_mode="r+")
    if not options.show:
        fast = accelerate(network, options.backend, batch_shape=(ROWS, *source.shape))
        classifier = BaseClassifier(fast, num_classes=num_classes)
        for row, index in track(list(enumerate(indices.tolist())), "asking", console=Console(stderr=True)):
            if (classes[row] == EMPTY).any():
                ask(classifier, torch.from_numpy(source.images([index])), index, sigmas, stage, classes[row])
    is_asked = (classes != EMPTY).all(axis=(1, 2))
    return Answers(
        classes=np.asarray(classes)[is_asked],
        sigmas=np.array(sigmas),
        indices=indices[is_asked],
        labels=source.labels[indices[is_asked]],
        class_names=tuple(source.class_names),
    )


def ask(
    classifier: BaseClassifier,
    x: torch.Tensor,
    index: int,
    sigmas: Sequence[float],
    stage: Stage,
    found: NDArray[np.uint8],
) -> None:
    """Fill the table (sigmas, samples) of one input."""
    stream = random_stream(0, index, stage, classifier.device)
    buffer, batch = sample_buffer(x, ROWS)
    image = buffer[0].clone()
    for start in range(0, found.shape[1], ROWS):
        noise = Gaussian().draw(stream, ROWS, image.shape, dtype=image.dtype)
        with torch.no_grad():
            for column, sigma in enumerate(sigmas):
                torch.add(image, noise, alpha=sigma, out=buffer)
                found[column, start : start + ROWS] = classifier.labels(batch).numpy()
