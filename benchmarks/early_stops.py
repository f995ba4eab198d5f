"""What stopping early saves and what it costs, on the same samples.

    python benchmarks/early_stops.py zoo:cifar10-cohen-0.25 --data cifar10 --out runs/early-stops

For 50 test images (every 200th) the classes of 100,000 noisy copies are stored. Each way of looking at them
then takes the samples in their order, as a certification with it would, and stops where it says. 5 million forward
passes; interrupted, it goes on.
"""

import argparse
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from answers import add_options, collect, trained_sigma
from machine import describe_machine
from sigmax.certificate import PointCertificate
from sigmax.estimation import Claim, Counts, Estimate
from sigmax.noise import Gaussian
from sigmax.sampling import Stage
from sigmax.smoothed import Budget

N0, ALPHA = 100, 0.001
RADII = (0.25, 0.5, 0.75, 1.0)


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
    sigma = trained_sigma(options.model)
    answers = collect(options, [sigma], Stage.ESTIMATION)
    n = answers.classes.shape[2] - N0
    ways = {
        f"all {n:,}": Budget(n=n),
        f"all {n:,}, runner-up": Budget(n=n, runner_up=True),
        **{f"tolerance {t:g}": Budget(n=n, tolerance=t) for t in (0.01, 0.02, 0.05)},
        **{f"tolerance {t:g}, runner-up": Budget(n=n, tolerance=t, runner_up=True) for t in (0.01, 0.02, 0.05)},
        f"at {', '.join(map(str, RADII))}": Budget(n=n, radii=RADII),
    }
    view = Table("way", "samples", "times fewer", "ACR", "of all", *(f"at {r:g}" for r in RADII), box=None)
    whole: float | None = None
    for name, budget in ways.items():
        certificates, is_right = certify_all(budget.estimate, answers.classes[:, 0], answers.labels, sigma)
        used = np.array([c.n for c in certificates])
        radii = np.array([c.radius for c in certificates]) * is_right
        whole = whole or radii.mean()
        acr = ("", "") if budget.radii else (f"{radii.mean():.4f}", f"{100 * radii.mean() / whole:.2f} %")
        shares = [f"{(is_right & (radii >= r)).mean():.3f}" for r in RADII]
        view.add_row(name, f"{used.mean():,.0f}", f"{n / used.mean():.2f}", *acr, *shares)
    machine = describe_machine()
    Console(width=150).print(f"{len(answers.labels)} inputs, n0 = {N0}, alpha = {ALPHA}; {machine}")
    Console(width=150).print(view)


def certify_all(
    estimate: Callable[[Claim], Estimate], classes: NDArray[np.uint8], labels: NDArray[np.int64], sigma: float
) -> tuple[list[PointCertificate], NDArray[np.bool_]]:
    """The certificate of each input (inputs, samples), and whether it has the right class."""
    num_classes = int(classes.max()) + 1
    certificates = []
    for row in classes:
        label = int(np.bincount(row[:N0], minlength=num_classes).argmax())
        claim = Claim(label=label, sigma=sigma, noise=Gaussian(), alpha=ALPHA)
        certificates.append(run(estimate(claim), row[N0:], label, num_classes))
    return certificates, np.array([c.label for c in certificates]) == labels


if __name__ == "__main__":
    main()
