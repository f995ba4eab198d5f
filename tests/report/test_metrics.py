import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax.records import CertificateTable, read_table
from sigmax.report.metrics import abstentions, average_certified_radius, certified_accuracy, common_radii, summarise
from sigmax.rounding import format_nearest

RADII = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5]
# Of the documentation of the logs. It prints 0.657 for the ACR of the last one, which is 0.65646.
PUBLISHED = {
    "cifar10-resnet110-cohen-0.12": ".832 .598 .000 .000 .000 .000 .276",
    "cifar10-resnet110-cohen-0.25": ".767 .612 .423 .251 .000 .000 .424",
    "cifar10-resnet110-cohen-0.50": ".657 .549 .428 .325 .220 .083 .525",
    "cifar10-resnet110-cohen-1.00": ".472 .409 .338 .277 .221 .133 .511",
    "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma": ".685 .635 .540 .433 .310 .106 .656",
}


def table(label: list[int], predict: list[int], radius: list[float]) -> CertificateTable:
    size = len(label)
    return CertificateTable(
        name="made up",
        idx=np.arange(size),
        label=np.array(label, dtype=np.int64),
        predict=np.array(predict, dtype=np.int64),
        radius=np.array(radius, dtype=np.float64),
        seconds=np.full(size, np.nan),
        sigma=np.full(size, np.nan),
        point_predict=np.array(predict, dtype=np.int64),
        point_radius=np.array(radius, dtype=np.float64),
        rule=("",) * size,
        samples=np.zeros(size, dtype=np.int64),
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs_give_the_published_table(published_logs: Path, name: str) -> None:
    summary = summarise(name, read_table(published_logs / f"{name}.tsv"), RADII)
    printed = [format_nearest(value).removeprefix("0") for value in (*summary.accuracy, summary.acr)]
    assert " ".join(printed) == PUBLISHED[name]


def test_every_published_log_agrees_with_a_plain_recomputation(published_logs: Path) -> None:
    for path in published_logs.glob("*.tsv"):
        with path.open() as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        right = [float(row["radius"]) for row in rows if row["label"] == row["predict"]]
        read = read_table(path)
        assert len(read) == len(rows)
        assert average_certified_radius(read) == pytest.approx(sum(right) / len(rows), rel=1e-12)
        assert abstentions(read) == sum(row["predict"] == "-1" for row in rows) / len(rows)
        shares = [sum(radius >= r for radius in right) / len(rows) for r in RADII]
        assert certified_accuracy(read, np.array(RADII)).tolist() == shares


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), st.sampled_from([0.0, 0.25, 0.3, 1.0])), max_size=30)


@given(rows)
def test_certified_accuracy_falls_and_its_area_is_the_acr(content: list[tuple[int, int, float]]) -> None:
    made = table(*([row[i] for row in content] for i in range(3)))  # type: ignore[arg-type]
    grid = np.linspace(0, 1, 2001)
    curve = certified_accuracy(made, grid)
    assert (np.diff(curve) <= 0).all()
    assert np.trapezoid(curve, grid) == pytest.approx(average_certified_radius(made), abs=1e-3)


def test_an_empty_table_has_nothing_to_say() -> None:
    empty = table([], [], [])
    summary = summarise("empty", empty, common_radii([empty]))
    assert (summary.inputs, summary.accuracy, summary.acr, summary.abstained) == (0, (0.0,), 0.0, 0.0)


def test_radii_go_up_to_the_largest_certified() -> None:
    assert common_radii([table([1], [1], [0.6]), table([1], [1], [0.2])]) == (0.0, 0.25, 0.5)
