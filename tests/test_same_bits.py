"""The same certificate from any number of threads and processes, any batch, and any order of the inputs."""

import subprocess
import sys

import pytest

CERTIFY = """
import sys, torch
from sigmax import HalvingSearch, SmoothedClassifier
from sigmax.data import load_source
from sigmax.models import build_network

threads, batch, order = int(sys.argv[1]), int(sys.argv[2]), [int(i) for i in sys.argv[3].split(",")]
torch.set_num_threads(threads)
torch.manual_seed(0)
network = build_network("digits-cnn", num_classes=10, in_channels=1).eval()
source = load_source("digits")
smoothed = SmoothedClassifier(
    network, num_classes=10, sigma=HalvingSearch(initial=0.25, pilot=32), levels=source.levels, batch_size=batch
)
points = smoothed.certify(torch.from_numpy(source.images(order)), n=500, alpha=0.2, indices=order)
for index, point in sorted(zip(order, points)):
    print(index, point)
"""


def certify(threads: int, batch: int, order: list[int]) -> list[str]:
    said = subprocess.run(
        [sys.executable, "-c", CERTIFY, str(threads), str(batch), ",".join(map(str, order))],
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.splitlines()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    lines = certify(1, 64, [0, 3, 5, 8, 11, 20])
    assert len(set(lines)) == 6
    assert any("label=None" not in line for line in lines)
    return lines


@pytest.mark.parametrize(
    ("threads", "batch", "order"),
    [(2, 64, [0, 3, 5, 8, 11, 20]), (1, 256, [0, 3, 5, 8, 11, 20]), (2, 256, [20, 5, 0, 11, 3, 8])],
)
def test_threads_batches_and_order_change_nothing(
    expected: list[str], threads: int, batch: int, order: list[int]
) -> None:
    assert certify(threads, batch, order) == expected


def test_two_processes_together_give_what_one_gives(expected: list[str]) -> None:
    parts = certify(1, 64, [0, 8, 20]) + certify(1, 64, [3, 5, 11])
    assert sorted(parts) == sorted(expected)
