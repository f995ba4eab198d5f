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
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom

from answers import Answers, add_options, collect, load
from machine import describe_machine
from sigmax.noise import Gaussian
from sigmax.runs import read_run
from sigmax.search.curve import ExpectedRadii, fit_probits
from sigmax.streams import Stage

SIGMAS, SAMPLES = 16, 2_000
ALPHA = 0.001
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)


def grid(initial: float) -> NDArray[np.float64]:
    return np.geomspace(initial / 4, 2 * initial, SIGMAS)


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


def curved(
    hits: NDArray[np.bool_], sigmas: NDArray[np.float64], plan: Sequence[tuple[int, int]], n: int
) -> NDArray[np.intp]:
    """The winner of each input (inputs, sigmas, samples) where a curve judges sigmas, as in the default search."""
    radii = ExpectedRadii(Gaussian(), sigmas.tolist(), n=n, alpha=ALPHA)
    seen, draws = (np.zeros(hits.shape[:2], dtype=np.int64) for _ in range(2))
    scores, drawn = np.zeros(hits.shape[:2]), 0
    for keep, samples in plan:
        left = np.argsort(-scores, axis=1, kind="stable")[:, :keep]
        more = hits[:, :, drawn : drawn + samples].sum(axis=2)
        np.put_along_axis(seen, left, np.take_along_axis(seen + more, left, axis=1), axis=1)
        np.put_along_axis(draws, left, np.take_along_axis(draws + samples, left, axis=1), axis=1)
        drawn += samples
        scores = radii(*fit_probits(seen, draws, sigmas, sigmas))
    winners: NDArray[np.intp] = scores.argmax(axis=1)
    return winners


def kept_or_initial(hits: NDArray[np.bool_], sigmas: NDArray[np.float64], winner: int, start: int, n: int) -> int:
    """The winner where a pilot on other samples finds it better than sigma0."""
    shares = smoothed_share(hits.sum(axis=1), hits.shape[1])
    found = radius(shares, sigmas, n)
    return winner if found[winner] > found[start] else start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, skip=100, samples=SAMPLES)
    parser.add_argument("--n", type=int, default=10_000, help="of the certification to come (default: %(default)s)")
    parser.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="runs with n samples that certified these inputs, to compare"
    )
    options = parser.parse_args()
    network, initial = load(options.model)
    answers = collect(options, network, grid(initial).tolist(), Stage.SEARCH)
    show(answers, initial, options.n, options.runs)


PLANS: dict[str, tuple[list[tuple[int, int]], int]] = {
    "halving 16x16, 8x32, 4x64; pilot 100": ([(16, 16), (8, 32), (4, 64)], 100),
    "halving 16x16, 6x32, 3x80; pilot 100": ([(16, 16), (6, 32), (3, 80)], 100),
    "halving 16x8, 8x24, 4x64, 2x128; pilot 100": ([(16, 8), (8, 24), (4, 64), (2, 128)], 100),
    "halving 16x16, 8x32, 4x64, no pilot": ([(16, 16), (8, 32), (4, 64)], 0),
    "halving 16x16, 8x32, 4x64, 2x128, no pilot": ([(16, 16), (8, 32), (4, 64), (2, 128)], 0),
    "halving 16x24, 5x64, 2x128, no pilot": ([(16, 24), (5, 64), (2, 128)], 0),
}


def show(answers: Answers, initial: float, n: int, runs: Sequence[Path]) -> None:
    classes, sigmas, labels = answers.classes, answers.sigmas, answers.labels
    start = int(np.abs(np.log(sigmas / initial)).argmin())
    half = classes.shape[2] // 2
    counts = np.stack([(classes[:, :, :half] == c).sum(axis=2) for c in range(len(answers.class_names))], axis=2)
    predicted = counts.argmax(axis=2)  # inputs sigmas
    # One sigma for all selects the class under itself.
    alone = classes == predicted[:, :, None]  # inputs sigmas samples
    is_right_alone = predicted == labels[:, None]
    judged_alone = radius(smoothed_share(alone[:, :, :half].sum(axis=2), half), sigmas, n) * is_right_alone
    scored_alone = radius(alone[:, :, half:].mean(axis=2), sigmas, n) * is_right_alone
    best = int(judged_alone.mean(axis=0).argmax())
    # A sigma for each input keeps to the class under sigma0.
    hits = classes == predicted[:, start, None, None]
    first, second = hits[:, :, :half], hits[:, :, half:]
    judged = radius(smoothed_share(first.sum(axis=2), half), sigmas, n)
    scored = radius(second.mean(axis=2), sigmas, n)  # inputs sigmas
    right = is_right_alone[:, start]
    found = {
        f"{name} ({sigmas[at]:.3f})": (scored_alone[:, at], is_right_alone[:, at], "0")
        for name, at in (("sigma0, nearest on the grid", start), ("best single sigma", best))
    }
    rows = {"oracle": (judged.argmax(axis=1), SIGMAS * half)}
    for name, (plan, pilot) in PLANS.items():
        used = sum(samples for _, samples in plan)
        cost = sum(keep * samples for keep, samples in plan) + 2 * pilot
        by_hits = [halving(row, sigmas, plan, n) for row in first]
        for way, winners in ((name, by_hits), (f"{name}, curve", curved(first, sigmas, plan, n).tolist())):
            chosen = winners
            if pilot:
                pilots = first[:, :, used : used + pilot]
                chosen = [kept_or_initial(row, sigmas, j, start, n) for row, j in zip(pilots, winners, strict=True)]
            rows[way] = (np.array(chosen), cost)
    found |= {name: (scored[np.arange(len(labels)), at] * right, right, str(cost)) for name, (at, cost) in rows.items()}
    for folder in runs:
        found[folder.name] = certified(folder, answers.indices)
        found[f"{folder.name}, scored as those above"] = rescored(folder, answers.indices, n, half)
    oracle = found["oracle"][0].mean()
    view = Table("choice of sigma", "forwards", "ACR", "of the oracle", box=None)
    for r in RADII:
        view.add_column(f"{r:g}")
    for name, (radii, is_right, passes) in found.items():
        shares = [f"{(is_right & (radii > r if r == 0 else radii >= r)).mean():.3f}" for r in RADII]
        view.add_row(name, passes, f"{radii.mean():.4f}", f"{radii.mean() / oracle:.1%}", *shares)
    machine = describe_machine()
    Console(width=150).print(f"{len(labels)} inputs, {classes.shape[2]} samples a sigma, n = {n:,}; {machine}")
    Console(width=150).print(view)
    # Far above its training sigma a network answers few classes, whatever it looks at.
    for at in (start, len(sigmas) - 1):  # places on the grid
        given = np.bincount(classes[:, at].ravel(), minlength=len(answers.class_names)) / classes[:, at].size
        most = ", ".join(f"{answers.class_names[c]} {given[c]:.0%}" for c in np.argsort(-given)[:4])
        Console(width=150).print(f"answers at sigma = {sigmas[at]:.3f}: {most}, …")


def certified(folder: Path, indices: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_], str]:
    """The radii of a run where it is right, whether it is, and an empty place for its cost."""
    table = read_run(folder).table
    place = {index: row for row, index in enumerate(table.idx.tolist())}
    if missing := [index for index in indices.tolist() if index not in place]:
        raise SystemExit(f"{folder}: expected all {len(indices)} inputs, got {len(missing)} less; finish the run")
    rows = [place[index] for index in indices.tolist()]
    is_right = table.is_correct[rows]
    return table.radius[rows] * is_right, is_right, ""


def rescored(
    folder: Path, indices: NDArray[np.int64], n: int, samples: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], str]:
    """The same, where each radius is what so many samples with its probability would score on average.

    The score grows faster and faster towards probability 1, so that few samples flatter an input near it.
    """
    table = read_run(folder).table
    radii, is_right, _ = certified(folder, indices)
    sigmas = table.sigma[np.isin(table.idx, indices)]
    lower = betaincinv(np.arange(1, n + 1), n - np.arange(n), ALPHA)  # that certify 1, 2, … n hits
    shares = (1 + np.abs(lower - ndtr(radii / sigmas)[:, None]).argmin(axis=1)) / n
    counts = np.arange(samples + 1)
    scores = radius(counts / samples, sigmas[:, None], n)  # inputs counts
    return (binom.pmf(counts, samples, shares[:, None]) * scores).sum(axis=1) * is_right, is_right, ""


if __name__ == "__main__":
    main()
