import re
from typing import Any

import numpy as np
import pytest
import torch

from sigmax import CertificateMemory, Certificates, PointCertificate
from sigmax.errors import InvalidInputError
from sigmax.metrics import average_certified_radius, certified_accuracy


def point(label: int | None, radius: float, sigma: float = 0.25) -> PointCertificate:
    return PointCertificate(label=label, radius=radius, sigma=sigma, p_lower=0.9, n=100, alpha=0.001, norm=2)


POINTS = [point(0, 0.5), point(1, 0.2), point(None, 0.0), point(2, 0.9996), point(1, 0.0)]
LABELS = [0, 1, 2, 1, 1]  # right, right, abstained, wrong, right with radius 0


def results(**more: Any) -> Certificates[PointCertificate]:
    return Certificates(POINTS, labels=LABELS, **more)


def test_it_is_the_list_that_it_was() -> None:
    found = results()
    assert found == POINTS
    assert found == tuple(POINTS)
    assert found == POINTS
    assert found != POINTS[1:]
    assert len(found) == 5
    assert found[-1] is POINTS[-1]
    assert found + POINTS[:1] == [*POINTS, POINTS[0]]
    assert POINTS[:1] + found == [POINTS[0], *POINTS]
    first, *_ = found
    assert first in found
    assert Certificates([]) == []


def test_a_part_keeps_its_labels_and_indices() -> None:
    part = results(indices=[10, 20, 30, 40, 50])[1:3]
    assert (part.labels, part.indices) == ((1, 2), (20, 30))
    assert part.accuracy(0.0) == 0.5


def test_its_numbers_are_those_of_the_metrics_and_of_plain_counting() -> None:
    found = results()
    assert [found.accuracy(radius) for radius in (0.0, 0.2, 0.21, 0.5, 0.6)] == [0.6, 0.4, 0.2, 0.2, 0.0]
    assert found.acr == pytest.approx((0.5 + 0.2) / 5)
    assert found.accuracy(0.2) == certified_accuracy(found.table, 0.2)
    assert found.acr == average_certified_radius(found.table)


def test_labels_and_indices_must_fit() -> None:
    with pytest.raises(InvalidInputError, match="one label"):
        Certificates(POINTS, labels=[1])
    with pytest.raises(InvalidInputError, match="one index"):
        Certificates(POINTS, indices=[1])


def test_pandas_gets_the_columns_of_the_record() -> None:
    frame = results(indices=[3, 4, 5, 6, 7]).to_pandas()
    assert list(frame["idx"]) == [3, 4, 5, 6, 7]
    assert list(frame["predict"]) == [0, 1, -1, 2, 1]
    assert list(frame["correct"]) == [True, True, False, False, True]
    assert frame["radius"].sum() == pytest.approx(1.6996)
    assert set(frame["rule"]) == {"point"}
    assert "label" not in Certificates(POINTS).to_pandas()


def test_the_plot_is_the_curve_of_certified_accuracy() -> None:
    from matplotlib.figure import Figure

    for found, reached in ((results(), [0.5, 0.2, 0.0]), (Certificates(POINTS), [0.5, 0.2, 0.9996, 0.0])):
        axes = found.plot(Figure().subplots(), color="black")
        (line,) = axes.get_lines()
        xs, ys = (np.asarray(values, dtype=float) for values in line.get_data())
        for radius in (0.01, 0.19, 0.3, 0.49, 0.7, 0.95):
            drawn = ys[np.searchsorted(xs, radius, side="left")] if radius <= xs.max() else 0.0
            assert drawn == pytest.approx(sum(r >= radius for r in reached) / 5)
        assert axes.get_ylim() == (0.0, 1.0)
    Certificates([]).plot(Figure().subplots())


def test_reprs_are_short_and_round_radii_down() -> None:
    assert repr(POINTS[3]) == "<PointCertificate label=2, radius=0.9996, sigma=0.25>"
    assert repr(point(3, 0.99999)) == "<PointCertificate label=3, radius=0.9999, sigma=0.25>"
    assert "abstains" in repr(POINTS[2])
    assert "5 point certificates" in repr(results())
    assert "0.600 at 0" in repr(results())
    assert "mean radius" in repr(Certificates(POINTS))
    assert len(repr(results())) < 150
    assert "0 point certificates" in repr(Certificates([]))


def test_a_notebook_shows_a_table_of_the_first_rows() -> None:
    html = results()._repr_html_()
    assert len(re.findall("<tr>", html)) == 1 + 5
    assert "abstains" in html
    assert "0.999<" in html  # rounded down
    many = Certificates(POINTS * 100)._repr_html_()
    assert len(re.findall("<tr>", many)) == 1 + 10
    assert "490 more" in many


def test_settled_answers_have_the_same_numbers() -> None:
    memory = CertificateMemory(norm=2)
    x = 10 * torch.arange(10.0).reshape(5, 2)
    settled = Certificates(memory.settle_many(x, results()), labels=LABELS)
    assert settled.accuracy(0.2) == results().accuracy(0.2)
    assert "settled" in repr(settled)
    assert repr(settled[0]) == "<SettledCertificate label=0, radius=0.5000, sigma=0.25, kept>"
    assert set(settled.to_pandas()["rule"]) == {"kept", "abstained"}
    memory.close()
