"""What a sigma search can reach, and what ours does: the answers of a network on a dense grid of sigmas.

    python benchmarks/sigma_search.py zoo:cifar10-cohen-0.25 --data cifar10 --out runs/search-0.25

For 100 test images (every 100th) and 16 sigmas from sigma0 / 4 to 2 sigma0 the class of 2,000 noisy
copies each is stored, the same noise for every sigma. From these answers come, without further forward passes:
the radius under each fixed sigma, the oracle (sigma chosen on one half of the samples, scored on the other), and
successive halving with any plan, its rounds drawn from one half and its choice scored on the other. Radii are
those of a certification with n samples that hits as often. 3.2 million forward passes; interrupted, it goes on.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import betaincinv, ndtri
from torch import nn

from machine import describe_machine
from sigmax.data import load_source
from sigmax.models import BaseClassifier, load_model
from sigmax.models.backends import BACKENDS, accelerate
from sigmax.noise import Gaussian
from sigmax.sampling import Stage, random_stream, sample_buffer

SIGMAS, SAMPLES, ROWS, EMPTY = 16, 2_000, 50, 255
ALPHA = 0.001
Answers = NDArray[np.uint8]  # inputs sigmas samples


def grid(initial: float) -> NDArray[np.float64]:
    return np.geomspace(initial / 4, 2 * initial, SIGMAS)


def collect(options: argparse.Namespace, initial: float, network: nn.Module) -> tuple[Answers, NDArray[np.int64]]:
    """Ask the network about every input at every sigma; what is there already is kept."""
    source = load_source(options.data)
    indices = list(range(0, len(source), options.skip))[: options.max]
    path = options.out / "answers.npy"
    if not path.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full((len(indices), SIGMAS, options.samples), EMPTY, dtype=np.uint8))
    answers: Answers = np.load(path, mmap_mode="r+")
    fast = accelerate(network, options.backend, batch_shape=(ROWS, *source.shape))
    classifier = BaseClassifier(fast, num_classes=len(source.class_names))
    for row, index in track([] if options.show else list(enumerate(indices)), "asking", console=Console(stderr=True)):
        if (answers[row] != EMPTY).all():
            continue
        x = torch.from_numpy(source.images([index]))
        stream = random_stream(0, index, Stage.SEARCH, classifier.device)
        image, noise, _ = sample_buffer(x, ROWS)
        _, buffer, batch = sample_buffer(x, ROWS)
        for start in range(0, options.samples, ROWS):
            Gaussian().fill(noise, generator=stream)
            with torch.no_grad():
                for column, sigma in enumerate(grid(initial)):
                    torch.add(image[0], noise, alpha=float(sigma), out=buffer)
                    answers[row, column, start : start + ROWS] = classifier.labels(batch).numpy()
    return answers, source.labels[indices]


def radius(share: NDArray[np.float64], sigma: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """The radius of a certification of n samples that hits with this share; 0 where it abstains."""
    hits = np.maximum(share * n, 1e-9)
    lower = betaincinv(hits, n - hits + 1, ALPHA)
    return np.where(lower > 0.5, sigma * ndtri(np.maximum(lower, 0.5)), 0.0)


def smoothed_share(hits: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    return (hits + 0.5) / (samples + 1)


def halving(hits: NDArray[np.bool_], sigmas: NDArray[np.float64], plan: Sequence[tuple[int, int]], n: int) -> int:
    """The winner among these sigmas by rounds of (sigmas left, samples of each), all on the same noise."""
    left, drawn = np.arange(len(sigmas)), 0
    scores = np.zeros(len(sigmas))
    for keep, samples in plan:
        left = left[np.argsort(-scores[left], kind="stable")[:keep]]
        drawn += samples
        scores[left] = radius(smoothed_share(hits[left, :drawn].sum(axis=1), drawn), sigmas[left], n)
    return int(left[scores[left].argmax()])


def kept_or_initial(hits: NDArray[np.bool_], sigmas: NDArray[np.float64], winner: int, start: int, n: int) -> int:
    """The winner where a pilot on other samples finds it better than sigma0."""
    shares = smoothed_share(hits.sum(axis=1), hits.shape[1])
    found = radius(shares, sigmas, n)
    return winner if found[winner] > found[start] else start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint, a folder or zoo:NAME")
    parser.add_argument("--data", default="cifar10", help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, help="where the answers are kept")
    parser.add_argument("--skip", type=int, default=100, help="every so many inputs (default: %(default)s)")
    parser.add_argument("--max", type=int, help="at most so many inputs")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="for each sigma (default: %(default)s)")
    parser.add_argument("--n", type=int, default=10_000, help="of the certification to come (default: %(default)s)")
    parser.add_argument("--backend", choices=BACKENDS, default="eager", help="default: %(default)s")
    parser.add_argument("--show", action="store_true", help="only show the inputs that were asked already")
    options = parser.parse_args()
    loaded = load_model(options.model)
    assert isinstance(loaded.model, nn.Module)
    assert loaded.card is not None
    assert loaded.card.sigma is not None
    answers, labels = collect(options, loaded.card.sigma, loaded.model)
    is_asked = (answers != EMPTY).all(axis=(1, 2))
    show(np.asarray(answers)[is_asked], labels[is_asked], loaded.card.sigma, options.n)


PLANS: dict[str, tuple[list[tuple[int, int]], int]] = {
    "halving 16x16, 8x32, 4x64; pilot 100": ([(16, 16), (8, 32), (4, 64)], 100),
    "halving 16x16, 6x32, 3x80; pilot 100": ([(16, 16), (6, 32), (3, 80)], 100),
    "halving 16x8, 8x24, 4x64, 2x128; pilot 100": ([(16, 8), (8, 24), (4, 64), (2, 128)], 100),
    "halving 16x16, 8x32, 4x64, no pilot": ([(16, 16), (8, 32), (4, 64)], 0),
    "halving 16x16, 8x32, 4x64, 2x128, no pilot": ([(16, 16), (8, 32), (4, 64), (2, 128)], 0),
    "halving 16x24, 5x64, 2x128, no pilot": ([(16, 24), (5, 64), (2, 128)], 0),
}


def show(answers: Answers, labels: NDArray[np.int64], initial: float, n: int) -> None:
    sigmas = grid(initial)
    start = int(np.abs(np.log(sigmas / initial)).argmin())
    half = answers.shape[2] // 2
    counts = np.stack([(answers[:, start, :half] == c).sum(axis=1) for c in range(int(answers.max()) + 1)], axis=1)
    predicted = counts.argmax(axis=1)  # the class is fixed under sigma0
    hits = answers == predicted[:, None, None]  # inputs sigmas samples
    first, second = hits[:, :, :half], hits[:, :, half:]
    judged = radius(smoothed_share(first.sum(axis=2), half), sigmas, n)
    scored = radius(second.mean(axis=2), sigmas, n)  # inputs sigmas
    right = predicted == labels
    rows = {
        f"sigma0 (nearest on the grid, {sigmas[start]:.3f})": (np.full(len(labels), start), 0),
        f"best single sigma ({sigmas[(judged * right[:, None]).mean(axis=0).argmax()]:.3f})": (
            np.full(len(labels), (judged * right[:, None]).mean(axis=0).argmax()),
            0,
        ),
        "oracle": (judged.argmax(axis=1), SIGMAS * half),
    }
    for name, (plan, pilot) in PLANS.items():
        used = sum(samples for _, samples in plan)
        chosen = [halving(row, sigmas, plan, n) for row in first]
        if pilot:
            chosen = [
                kept_or_initial(row[:, used : used + pilot], sigmas, j, start, n)
                for row, j in zip(first, chosen, strict=True)
            ]
        rows[name] = (np.array(chosen), sum(keep * samples for keep, samples in plan) + 2 * pilot)
    oracle = (scored[np.arange(len(labels)), rows["oracle"][0]] * right).mean()
    view = Table("choice of sigma", "forwards", "mean radius where right", "of the oracle", box=None)
    for at in (0.0, 0.25, 0.5, 0.75, 1.0):
        view.add_column(f"{at:g}")
    for name, (chosen_at, cost) in rows.items():
        found = scored[np.arange(len(labels)), chosen_at] * right
        shares = [
            f"{(right & (found > at if at == 0 else found >= at)).mean():.3f}" for at in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]
        view.add_row(name, f"{cost}", f"{found.mean():.4f}", f"{found.mean() / oracle:.1%}", *shares)
    machine = describe_machine()
    Console(width=150).print(f"{len(labels)} inputs, {answers.shape[2]} samples a sigma, n = {n:,}; {machine}")
    Console(width=150).print(view)


if __name__ == "__main__":
    main()
