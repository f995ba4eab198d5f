from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from oracles import HalfSpace
from sigmax import Certificates, HalvingSearch, SmoothedClassifier
from sigmax.data import load_source
from sigmax.errors import InvalidInputError
from sigmax.inputs import count_inputs, read_batches

COUNT = 21  # more than a block of 16, and no multiple of any batch here
X = torch.rand(COUNT, 4, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0.5).long()


def classifier() -> SmoothedClassifier:
    search = HalvingSearch(initial=0.25, candidates=3, samples=4, rounds=1, pilot=4)
    return SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=search, batch_size=64)


def certified(inputs: Any, **more: Any) -> Certificates[Any]:
    return classifier().certify(inputs, n0=8, n=60, **more)


@pytest.fixture(scope="module")
def expected() -> Certificates[Any]:
    return certified(X)


class Dicts(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"pixel_values": X[i], "labels": Y[i]}


def batches(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from ((X[i : i + size], Y[i : i + size]) for i in range(0, COUNT, size))


@pytest.mark.parametrize(
    "inputs",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        (X, Y.tolist()),
        TensorDataset(X, Y),
        Dicts(),
        *(DataLoader(TensorDataset(X, Y), batch_size=size) for size in (1, 5, 16, 64)),
        DataLoader(Dicts(), batch_size=4),
        [(x, y) for x, y in batches(3)],
        batches(20),
    ],
)
def test_every_kind_of_labelled_inputs_gets_the_certificates_of_the_tensor(
    inputs: Any, expected: Certificates[Any]
) -> None:
    found = certified(inputs)
    assert found == expected  # numbered across batches, and whatever the batches: the same noise, the same blocks
    assert found.labels == tuple(Y.tolist())
    assert found.indices == tuple(range(COUNT))
    assert found.accuracy(0.0) == np.mean([c.label == y for c, y in zip(expected, Y.tolist(), strict=True)])


@pytest.mark.parametrize("inputs", [X, X.numpy(), DataLoader(TensorDataset(X), batch_size=4), [X[:5], X[5:]]])
def test_inputs_without_labels_are_certified_too(inputs: Any, expected: Certificates[Any]) -> None:
    found = certified(inputs)
    assert found == expected
    assert found.labels is None
    with pytest.raises(InvalidInputError, match="true classes"):
        found.accuracy(0.25)
    with pytest.raises(InvalidInputError, match="true classes"):
        _ = found.acr


def test_a_source_of_images_is_read_in_parts() -> None:
    source = load_source("digits")
    parts = list(read_batches(source))
    assert count_inputs(source) == sum(len(part.x) for part in parts) == 500
    assert torch.equal(torch.cat([part.x for part in parts]), torch.from_numpy(source.images(range(500))))
    assert [label for part in parts for label in part.labels or ()] == source.labels.tolist()


def test_own_indices_go_with_their_inputs(expected: Certificates[Any]) -> None:
    order = list(reversed(range(COUNT)))
    found = certified(DataLoader(TensorDataset(X.flip(0)), batch_size=4), indices=order)
    assert found.indices == tuple(order)
    fixed = SmoothedClassifier(HalfSpace(4).eval(), num_classes=2, sigma=0.25)
    forth, back = fixed.certify(X, n=60), fixed.certify(X.flip(0), n=60, indices=order)
    assert list(reversed(back)) == list(forth)
    for indices in (order[1:], [*order, 99]):
        with pytest.raises(InvalidInputError, match="one index per input"):
            certified([X], indices=indices)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ("images/", "read the images first"),
        (X.to(torch.uint8), "divide 8-bit images by 255"),
        (X[0], r"x\[None\]"),
        (X.long(), "embeddings"),
        (X.half(), r"x\.float\(\)"),
        ({"x": X}, "got dict"),
        (3, "got int"),
        ([{"input_ids": X.long()}], "embeddings"),
        ([(X, Y, Y)], "3 parts"),
        ([(X, Y.float())], "whole number"),
        ([(X, Y[:3])], "whole number"),
        ([(X, Y), X], "all batches or in none"),
        ([X, X[:, :3]], "one shape"),
        ([["a", "b"]], "got a list of str"),
        ([Image.new("RGB", (8, 8))], "got Image; turn each batch into a tensor"),
        (torch.full((2, 4), torch.nan), "NaN"),
    ],
)
def test_what_cannot_be_certified_is_told_what_to_do(inputs: Any, problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem):
        certified(inputs)


def test_a_bad_input_of_a_tensor_is_found_before_any_sampling() -> None:
    done: list[int] = []
    x = X.clone()
    x[20, 0] = torch.inf
    with pytest.raises(InvalidInputError, match="input 20"):
        certified(x, on_progress=done.append)
    assert not done


@pytest.mark.parametrize("inputs", [X, DataLoader(TensorDataset(X, Y), batch_size=4), [(X, Y)]])
def test_progress_is_shown_and_told_to_the_end(inputs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []
    certified(inputs, progress=True, on_progress=done.append)
    g = classifier()
    assert sum(done) == COUNT * (8 + 60 + g.search.cost())
    assert "certifying" in capsys.readouterr().err
    certified(inputs)
    assert not capsys.readouterr().err
