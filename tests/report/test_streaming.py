import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sigmax import CertificateMemory, PointCertificate, SettledCertificate
from sigmax.errors import InvalidInputError
from sigmax.metrics import average_certified_radius, certified_accuracy
from sigmax.report.streaming import AverageCertifiedRadius, CertifiedAccuracy
from sigmax.table import certificate_table

RADII = [0.0, 0.25, 0.5]


def point(label: int | None, radius: float, norm: int = 2) -> PointCertificate:
    return PointCertificate(label=label, radius=radius, sigma=0.25, p_lower=0.9, n=100, alpha=0.001, norm=norm)


answers = st.builds(point, st.sampled_from([None, 0, 1]), st.sampled_from([0.0, 0.25, 0.4, 0.9]))


@given(st.lists(st.lists(st.tuples(answers, st.integers(0, 1)), max_size=6), max_size=5))
def test_batches_and_merged_parts_give_what_the_whole_gives(
    batches: list[list[tuple[PointCertificate, int]]],
) -> None:
    accuracy, merged = CertifiedAccuracy(RADII), CertifiedAccuracy(RADII)
    acr, merged_acr = AverageCertifiedRadius(), AverageCertifiedRadius()
    for batch in batches:
        certificates, labels = [c for c, _ in batch], [label for _, label in batch]
        part, part_acr = CertifiedAccuracy(RADII), AverageCertifiedRadius()
        for metric in (accuracy, part):
            metric.update(certificates, labels)
        for mean in (acr, part_acr):
            mean.update(certificates, labels)
        merged, merged_acr = merged + part, merged_acr + part_acr
    rows = [row for batch in batches for row in batch]
    right = [c.radius for c, label in rows if c.label == label]
    shares = [sum(radius >= r for radius in right) / max(len(rows), 1) for r in RADII]
    assert accuracy.compute().tolist() == merged.compute().tolist() == shares
    assert acr.compute() == pytest.approx(sum(right) / max(len(rows), 1))
    assert merged_acr.compute() == pytest.approx(acr.compute())
    assert accuracy.inputs == merged.inputs == merged_acr.inputs == len(rows)
    accuracy.reset()
    acr.reset()
    assert (accuracy.compute().tolist(), acr.compute(), acr.inputs) == ([0.0] * 3, 0.0, 0)


def test_settled_certificates_count_with_their_settled_answer() -> None:
    memory = CertificateMemory(norm=2)
    settled = [memory.settle(np.zeros(4), point(1, 0.5)), memory.settle(np.full(4, 0.1), point(0, 0.9))]
    assert settled[1].rule == "inherited"
    table = certificate_table(settled, [1, 1])
    assert table.is_settled
    assert table.predict.tolist() == [1, 1]
    assert table.point_predict.tolist() == [1, 0]
    accuracy, acr = CertifiedAccuracy([0.0, 0.4]), AverageCertifiedRadius()
    accuracy.update(settled, [1, 1])
    acr.update(settled, [1, 1])
    assert accuracy.compute().tolist() == certified_accuracy(table, [0.0, 0.4]).tolist() == [1.0, 0.5]
    assert acr.compute() == average_certified_radius(table) == pytest.approx((0.5 + 0.3) / 2)
    looked_up = SettledCertificate(label=1, radius=0.2, proof=settled[0].proof, point=None, rule="inherited")
    table = certificate_table([looked_up], [1], norm=1)
    assert (table.point_radius.tolist(), table.norm) == ([0.2], 1)
    with pytest.raises(InvalidInputError, match="norm="):
        certificate_table([looked_up], [1])
    for metric in (CertifiedAccuracy([0.0]), AverageCertifiedRadius()):
        metric.update([looked_up], [1])  # whatever its norm
        metric.update([point(1, 0.4, norm=1)], [1])
        metric.update([looked_up], [1])
        assert (metric.inputs, metric.norm) == (3, 1)
        with pytest.raises(InvalidInputError, match=r"\[1, 2\]"):
            metric.update([point(1, 0.4)], [1])
        assert (metric.inputs, metric.norm) == (3, 1)
    one, two = AverageCertifiedRadius(), AverageCertifiedRadius()
    one.update([point(1, 0.4, norm=1)], [1])
    two.update([point(1, 0.4)], [1])
    with pytest.raises(InvalidInputError, match="l1"):
        one + two


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="got 2 for 1"):
        AverageCertifiedRadius().update([point(1, 0.5)], [1, 1])
    with pytest.raises(InvalidInputError):
        certificate_table([point(1, 0.5), point(1, 0.5, norm=1)], [1, 1])
    with pytest.raises(InvalidInputError):
        CertifiedAccuracy([0.0]) + CertifiedAccuracy([0.5])
