"""What stopping early saves and what it costs, on the same samples.

    python benchmarks/early_stops.py zoo:cifar10-cohen-0.25 --data cifar10 --out runs/early-stops

For 50 test images (every 200th) the classes of 100,000 noisy copies are stored. Each way of looking at them
then takes the samples in their order, as a certification with it would, and stops where it says. The last lines are
what a rule could save at most that knew all probabilities before. 5 million forward passes; interrupted, it goes on.
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.special import betaincinv, ndtri

from answers import Answers, add_options, collect, load
from machine import describe_machine
from sigmax.budget import Budget
from sigmax.certificate import PointCertificate
from sigmax.estimation import Claim, Counts, Estimate
from sigmax.noise import Gaussian
from sigmax.streams import Stage

N0 = Budget().n0
RADII = (0.25, 0.5, 0.75, 1.0)
TOLERANCES = (0.01, 0.02, 0.05, 0.07, 0.1)
WRONG = 1_000


def run(estimate: Estimate, classes: NDArray[np.uint8], label: int, num_classes: int) -> PointCertificate:
    """Look at stored answers in their order until there is a certificate."""
    drawn = 0
    while True:
        drawn = estimate.next_look(drawn)
        counts = np.bincount(classes[:drawn], minlength=num_classes)
        hits, counts[label] = int(counts[label]), 0
        found = estimate.look(Counts(n=drawn, hits=hits, rival=int(counts.max())))
        if found is not None:
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, skip=200, samples=N0 + 100_000)
    options = parser.parse_args()
    network, sigma = load(options.model)
    answers = collect(options, network, [sigma], Stage.ESTIMATION)
    n = answers.classes.shape[2] - N0
    wrong = min(WRONG, n)
    ways = {
        f"all {n:,}": Budget(n=n),
        f"all {n:,}, runner-up": Budget(n=n, runner_up=True),
        **{f"tolerance {t:g}": Budget(n=n, tolerance=t) for t in TOLERANCES},
        **{f"tolerance {t:g}, runner-up": Budget(n=n, tolerance=t, runner_up=True) for t in TOLERANCES},
        f"all {n:,}, {wrong:,} where wrong": Budget(n=n, n_wrong=wrong),
        **{f"tolerance {t:g}, {wrong:,} where wrong": Budget(n=n, tolerance=t, n_wrong=wrong) for t in TOLERANCES},
        f"at {', '.join(map(str, RADII))}": Budget(n=n, radii=RADII),
    }
    view = Table("way", "samples", "times fewer", "ACR", "of all", *(f"at {r:g}" for r in RADII), box=None)
    whole: float | None = None
    for name, budget in ways.items():
        certificates, is_right = certify_all(budget, answers)
        used = np.array([c.n for c in certificates])
        radii = np.array([c.radius for c in certificates]) * is_right
        whole = whole or radii.mean()
        acr = ("", "") if budget.radii else (f"{radii.mean():.4f}", f"{100 * radii.mean() / whole:.2f} %")
        shares = [f"{(is_right & (radii >= r)).mean():.3f}" for r in RADII]
        view.add_row(name, f"{used.mean():,.0f}", f"{n / used.mean():.2f}", *acr, *shares)
    for loss in (0.005, 0.01):
        least, kept = fewest(answers, n, loss)
        name = f"the best of all rules that lose {loss:.1%}"
        view.add_row(name, f"{least:,.0f}", f"{n / least:.2f}", f"{kept:.4f}", f"{100 * (1 - loss):.2f} %")
    machine = describe_machine()
    Console(width=150).print(f"{len(answers.labels)} inputs, n0 = {N0}, alpha = {Budget().alpha}; {machine}")
    Console(width=150).print(view)


def certify_all(budget: Budget, answers: Answers) -> tuple[list[PointCertificate], NDArray[np.bool_]]:
    """The certificate of each input, and whether it has the right class."""
    (sigma,) = answers.sigmas.tolist()
    certificates = []
    for (row,), truth in zip(answers.classes, answers.labels.tolist(), strict=True):
        label = int(np.bincount(row[:N0], minlength=len(answers.class_names)).argmax())
        claim = Claim(label=label, sigma=sigma, noise=Gaussian(), alpha=budget.alpha)
        certificates.append(run(budget.estimate(claim, truth=truth), row[N0:], label, len(answers.class_names)))
    return certificates, np.array([c.label for c in certificates]) == answers.labels


def fewest(answers: Answers, n: int, loss: float) -> tuple[float, float]:
    """The fewest samples on average for an ACR with this loss, of a rule that knew all shares and labels; its ACR.

    Each input gets the size that serves ACR most at one price of a sample for all; one look, at the whole of alpha.
    """
    (sigma,), alpha = answers.sigmas.tolist(), Budget().alpha
    hits = (answers.classes[:, 0, N0:] == answers.labels[:, None]).sum(axis=1)
    sizes = np.unique(np.geomspace(32, n, 400).astype(int))
    seen = np.maximum(np.outer(hits / n, sizes), 1e-9)  # inputs sizes
    radii = sigma * ndtri(np.maximum(betaincinv(seen, sizes - seen + 1, alpha), 0.5))
    low, high = 0.0, 1.0  # prices
    for _ in range(60):
        price = (low + high) / 2
        chosen = (radii - price * sizes).argmax(axis=1)
        is_enough = radii[np.arange(len(radii)), chosen].mean() >= (1 - loss) * radii[:, -1].mean()
        low, high = (price, high) if is_enough else (low, price)
    chosen = (radii - low * sizes).argmax(axis=1)
    return float(sizes[chosen].mean()), float(radii[np.arange(len(radii)), chosen].mean())


if __name__ == "__main__":
    main()
