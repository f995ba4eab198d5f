from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sigmax import AscentSearch, SmoothedClassifier
from sigmax.errors import ModelError
from sigmax.models import BaseClassifier

X = torch.tensor([[0.1, 0.9, 0.4], [0.8, 0.3, 0.2]])
Pair = namedtuple("Pair", ["scores", "features"])


def scores(model: Any, num_classes: int = 3, outputs: Any = "logits", x: Tensor = X) -> Tensor:
    return BaseClassifier(model, num_classes=num_classes, outputs=outputs).scores(x)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: SimpleNamespace(logits=x, hidden_states=None),
        lambda x: (x,),
        lambda x: (x, x[:, :2]),
        lambda x: [None, x],
        lambda x: Pair(x, x[:, :1]),
        lambda x: {"logits": x, "loss": None},
        lambda x: {"out": x},
        lambda x: x.numpy(),
        lambda x: x.numpy().astype(np.float64)[:, ::1],
        lambda x: (x.numpy(), "more"),
    ],
)
def test_clear_outputs_are_taken(wrap: Any) -> None:
    torch.testing.assert_close(scores(wrap).float(), X)


def test_one_number_for_two_classes_is_that_of_class_one() -> None:
    for wrap in (lambda x: x[:, 0] - 0.5, lambda x: x[:, :1] - 0.5):
        found = scores(wrap, 2)
        assert found.argmax(dim=1).tolist() == [0, 1]
        torch.testing.assert_close(found.softmax(dim=1)[:, 1], (X[:, 0] - 0.5).sigmoid())
    torch.testing.assert_close(
        scores(lambda x: x[:, 0], 2, "probabilities"), torch.stack([1 - X[:, 0], X[:, 0]], dim=1)
    )


@pytest.mark.parametrize("wrap", [lambda x: x.argmax(dim=1), lambda x: x.argmax(dim=1).int().numpy()])
def test_integer_labels_are_taken(wrap: Any) -> None:
    assert scores(wrap).argmax(dim=1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda x: x[:, :2], "got (2, 2)"),
        (lambda x: x[:, 0], "got (2,)"),
        (lambda x: (x, x), "got tuple of (2, 3), (2, 3)"),
        (lambda x: (), "tuple of nothing"),
        (lambda x: {"a": x, "b": x}, "got dict of a: (2, 3), b:"),
        (lambda x: np.array([["a", "b", "c"]] * 2), "array of <U1 (2, 3)"),
        (lambda x: "cat", "got str"),
        (lambda x: None, "got NoneType"),
        (lambda x: x > 0.5, "got booleans"),
        (lambda x: torch.tensor([0, 3]), "labels from 0 to 3"),
    ],
)
def test_other_outputs_are_named(wrap: Any, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        scores(wrap)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("wrap", "hint"),
    [
        (lambda x: x[:, :2], "check num_classes=3"),
        (lambda x: x[:, :1], "num_classes=2"),
        (lambda x: (x, x), "scores alone"),
        (lambda x: None, "scores alone"),
    ],
)
def test_other_outputs_are_told_what_to_do(wrap: Any, hint: str) -> None:
    with pytest.raises(ModelError) as refused:
        scores(wrap)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        ("model.pt", "load_model('model.pt')"),
        (Path("model.pt"), "load_model("),
        (SimpleNamespace(predict_proba=None), "predict_proba"),
        ({"fc.weight": X}, "state dict"),
        (3, "function"),
    ],
)
def test_what_is_no_model_is_told_what_to_pass(model: Any, hint: str) -> None:
    with pytest.raises(ModelError) as refused:
        BaseClassifier(model, num_classes=3)
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("x", "hint"),
    [
        (torch.rand(3, 8, 8), "x[None]"),
        (torch.rand(2, 8, 8, 3), "x.permute(0, 3, 1, 2)"),
        (torch.rand(2, 3, 8, 8).double(), "x.float()"),
        (torch.rand(2, 1, 8, 8), "check channels"),
    ],
)
def test_a_model_that_fails_on_an_input_gives_a_hint(x: Tensor, hint: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(10))
    network(torch.rand(1, 3, 8, 8))
    with pytest.raises(ModelError) as refused:
        SmoothedClassifier(network.eval(), num_classes=10).certify(x, n=20)
    assert hint in str(refused.value)


def test_an_ascent_on_a_black_box_is_told_to_halve() -> None:
    for model in (lambda x: x.numpy(), lambda x: torch.from_numpy(x.detach().numpy().copy())):
        g = SmoothedClassifier(model, num_classes=3, sigma=AscentSearch(initial=0.25, steps=2))
        with pytest.raises(ModelError, match="HalvingSearch"):
            g.certify(X, n=20)
