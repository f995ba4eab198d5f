"""Settle the points of a run in other orders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sigmax.certificate import PointCertificate
from sigmax.errors import RecordError
from sigmax.memory import permute
from sigmax.runs import ABSTAIN, read_run
from sigmax.runs.orders import Orders


def permute_run(
    run: Path,
    *,
    orders: int,
    seed: int = 0,
    data: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Orders:
    """Settle the points of a run in random orders, and record in its folder how many answers ever differ.

    `data` is the data set from another place, such as cifar10:DIR.
    """
    record = read_run(run)
    if record.spec is None or record.spec.found is None or not len(record.table):
        raise RecordError(f"expected the record of a run in {run}, got none, or no rows")
    source = replace(record.spec.data, name=data or record.spec.data.name).load()
    if source.digest() != record.spec.found.data:
        raise RecordError(f"expected the data of {run}, got other data from {source.name}; set --data")
    table = record.table
    points = [
        PointCertificate(
            label=None if label == ABSTAIN else label,
            radius=radius,
            sigma=record.spec.search.initial,
            p_lower=0.0,
            n=record.spec.budget.n,
            alpha=record.spec.budget.alpha,
            norm=table.norm,
        )
        for label, radius in zip(table.point_predict.tolist(), table.point_radius.tolist(), strict=True)
    ]
    x = source.images(table.idx.tolist()).astype(np.float64).reshape(len(table), -1)
    found = permute(x, points, orders=orders, seed=seed, on_progress=on_progress)
    found.write(run)
    return found
