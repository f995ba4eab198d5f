"""Whether fewer samples for wrong classes could have changed a table that was settled by a memory.

    python benchmarks/wrong_balls.py runs/cifar10/runs/*

In a memory, a ball takes from later balls with other labels, and gives its label to inputs inside. With `n_wrong` the
balls of wrong answers are smaller than with n samples. Here each of them gets the largest radius that n samples could
have proved at its sigma; where even then none of them meets any other ball or input, every answer but the radii of
wrong ones is the one that n samples for all would give.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.spatial.distance import cdist

from sigmax.bounds import clopper_pearson_lower
from sigmax.runs import CertificateTable, CertificationSpec, read_run


def gaps(table: CertificateTable, spec: CertificationSpec) -> NDArray[np.float64]:
    """From the ball of each wrong answer that had fewer samples, at its largest, to that of each other input."""
    n = spec.budget.n
    p_most = clopper_pearson_lower(n, n, alpha=spec.budget.alpha)
    fewer = np.flatnonzero(table.samples < n)
    reaches = table.point_radius.copy()
    reaches[fewer] = [spec.noise.radius(p_most, sigma=sigma) for sigma in table.sigma[fewer].tolist()]
    x = spec.data.load().images(table.idx.tolist()).reshape(len(table), -1).astype(np.float64)
    distances = cdist(x[fewer], x, "cityblock" if table.norm == 1 else "euclidean")
    distances[np.arange(len(fewer)), fewer] = np.inf
    found: NDArray[np.float64] = distances - reaches[fewer, None] - reaches
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    view = Table("run", "inputs", "with fewer samples", "smallest gap to another ball", "that could meet", box=None)
    for folder in parser.parse_args().runs:
        run = read_run(folder)
        if run.table.is_settled and run.spec is not None and run.spec.budget.n_wrong:
            found = gaps(run.table, run.spec)
            smallest = f"{found.min():.3f}" if found.size else "-"
            view.add_row(run.name, str(len(run.table)), str(len(found)), smallest, str((found <= 0).any(axis=1).sum()))
    Console(width=150).print(view)


if __name__ == "__main__":
    main()
