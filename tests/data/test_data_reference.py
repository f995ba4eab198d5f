"""Data by name: which images of which data set."""

import pytest

from sigmax.data import load_source
from sigmax.data.reference import DataReference


@pytest.mark.parametrize(
    ("reference", "indices"),
    [
        (DataReference(name="digits"), list(range(10))),
        (DataReference(name="digits", skip=4), [0, 4, 8]),
        (DataReference(name="digits", skip=4, max=2), [0, 4]),
        (DataReference(name="digits", max=99), list(range(10))),
    ],
)
def test_every_so_many_images_are_taken_up_to_a_number(reference: DataReference, indices: list[int]) -> None:
    assert reference.indices(10) == indices


def test_a_reference_loads_the_part_that_it_names() -> None:
    for split in ("test", "train", "tune"):
        found = DataReference(name="digits", split=split).load()
        assert found.digest() == load_source("digits", split=split).digest()


def test_the_kind_has_no_place() -> None:
    assert [DataReference(name=name).kind for name in ("cifar10", "cifar10:a/b", "folder:c:d")] == [
        *("cifar10", "cifar10", "folder"),
    ]
