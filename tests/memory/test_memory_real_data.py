"""All CIFAR-10 test images with published radii: real images are far apart, so that the memory changes no answer."""

import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sigmax.certificate import PointCertificate
from sigmax.data import load_source
from sigmax.memory import CertificateMemory
from sigmax.runs import ABSTAIN, read_table

LOGS = Path(__file__).parents[2].parent / "shared" / "data" / "published-logs"
CIFAR10 = os.environ.get("SIGMAX_CIFAR10", "")

certificate = partial(PointCertificate, p_lower=0.9, n=100_000, alpha=0.001, norm=2)


@pytest.mark.scale
@pytest.mark.skipif(not CIFAR10, reason="needs CIFAR-10: set SIGMAX_CIFAR10 to the folder that holds it")
@pytest.mark.skipif(not LOGS.is_dir(), reason="needs the published logs in shared/data/published-logs")
@pytest.mark.parametrize("name", ["cifar10-resnet110-cohen-0.25", "cifar10-resnet110-cohen-0.50-qcrs-per-input-sigma"])
def test_published_radii_are_kept(name: str, tmp_path: Path) -> None:
    table = read_table(LOGS / f"{name}.tsv")
    images = load_source(f"cifar10:{CIFAR10}").images(table.idx.tolist())
    labels = [None if predict == ABSTAIN else int(predict) for predict in table.predict]
    sigmas = np.nan_to_num(table.sigma, nan=0.25).tolist()
    points = [
        certificate(label=label, radius=radius if label is not None else 0.0, sigma=sigma)
        for label, radius, sigma in zip(labels, table.radius.tolist(), sigmas, strict=True)
    ]
    file = tmp_path / "memory.db"
    with CertificateMemory.open(file, norm=2) as memory:
        answers = [memory.settle(image, point) for image, point in zip(images, points, strict=True)]
    assert len(answers) == 10_000
    rules = Counter(answer.rule for answer in answers)
    assert rules == {"kept": 10_000 - labels.count(None), "abstained": labels.count(None)}
    assert [answer.label for answer in answers] == labels
    assert [answer.radius for answer in answers] == [point.radius for point in points]
    with CertificateMemory.existing(file) as memory:
        assert len(memory) == rules["kept"]
        assert list(memory.contradictions()) == []
        assert [memory.lookup(image) for image in images[:500]] == [
            answer if answer.label is not None else None for answer in answers[:500]
        ]
    # A byte a pixel, and little more than that.
    assert file.stat().st_size < 1.4 * 3_072 * rules["kept"]
