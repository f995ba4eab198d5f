"""How many samples does "is the radius at least r?" take, against the least that any sequential test needs?

    python benchmarks/questions.py

Claim: on the class probabilities of the zoo's networks, the mean number of samples is at most 1.6 times the lower limit
of any sequential test at level alpha, log(1/alpha) / KL(p, p0) (Wald 1945). The tests are `AtRadii`, fed with simulated
samples of known probability. Questions that need more than 100,000 samples at that limit are left out and counted.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sigmax.budget import Budget
from sigmax.estimation import Claim, Counts
from sigmax.noise import Gaussian
from sigmax.runs import read_table

RUNS = Path(__file__).parent.parent / "docs/results/cifar10-cpu/runs"
NETWORKS = {"cohen-0.12-fixed": 0.12, "cohen-0.25-fixed": 0.25, "cohen-0.50-fixed": 0.5}
RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
ALPHA, MOST, REPEATS, EVERY = 0.001, 100_000, 5, 5


def divergence(p: float, q: float) -> float:
    """KL(p, q) of two coins."""
    return sum(a * math.log(a / b) for a, b in ((p, q), (1 - p, 1 - q)) if a > 0)


def samples_taken(p: float, radius: float, sigma: float, stream: np.random.Generator) -> int:
    """Samples until the question is closed."""
    claim = Claim(label=0, sigma=sigma, noise=Gaussian(), alpha=ALPHA)
    estimate = Budget(n=MOST, alpha=ALPHA, radii=(radius,)).estimate(claim)
    n = hits = 0
    while True:
        due = estimate.next_look(n)
        hits += int(stream.binomial(due - n, p))
        n = due
        point = estimate.look(Counts(n=n, hits=hits, rival=n - hits))
        if point is not None or radius not in estimate.open:  # type: ignore[attr-defined]
            return n


def probabilities(name: str) -> NDArray[np.float64]:
    """Probabilities of the selected class, as the record of a run bounds them."""
    table = read_table(RUNS / name)
    p = Gaussian()
    return np.array(
        [p.probability(radius, sigma=NETWORKS[name]) for radius in table.point_radius[::EVERY] if radius > 0]
    )


def main() -> None:
    stream = np.random.default_rng(0)
    print(f"{'network':<18}{'radius':>7}{'asked':>7}{'too close':>10}{'mean ratio':>11}{'proved':>8}{'refuted':>8}")
    ratios: list[float] = []
    for name, sigma in NETWORKS.items():
        for radius in RADII:
            p0, close = Gaussian().probability(radius, sigma=sigma), 0
            found: dict[bool, list[float]] = {True: [], False: []}
            for p in probabilities(name):
                if p0 >= 1.0 or p == p0 or (least := math.log(1 / ALPHA) / divergence(p, p0)) > MOST:
                    close += 1
                    continue
                taken = np.mean([samples_taken(p, radius, sigma, stream) for _ in range(REPEATS)])
                found[bool(p > p0)].append(float(taken) / least)
            both = found[True] + found[False]
            ratios += both
            means = [f"{np.mean(part):.2f}" if part else "-" for part in (both, found[True], found[False])]
            print(f"{name:<18}{radius:>7}{len(both):>7}{close:>10}{means[0]:>11}{means[1]:>8}{means[2]:>8}")
    print(f"all: {len(ratios)} questions, mean ratio {np.mean(ratios):.3f}, median {np.median(ratios):.3f}")


if __name__ == "__main__":
    main()
