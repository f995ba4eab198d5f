import numpy as np
import pytest
import torch

from sigmax.errors import ModelError
from sigmax.models import BaseClassifier, Normalize, build_network, with_normalisation

CIFAR10 = ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
# Keras' weights take 255 x - mean, and (x - mean / 255) / (1 / 255) is the same.
KERAS = ([123.68 / 255, 116.779 / 255, 103.939 / 255], [1 / 255] * 3)


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("cifar10", *CIFAR10),
        ("cifar10-mean", CIFAR10[0], [1, 1, 1]),
        ("imagenet", *IMAGENET),
        ("imagenet-mean", IMAGENET[0], [1, 1, 1]),
        ("imagenet-keras", *KERAS),
        ("0.1,0.2,-0.3/1,2,3", [0.1, 0.2, -0.3], [1, 2, 3]),
        ("none", [0, 0, 0], [1, 1, 1]),
    ],
)
def test_every_spelling_shifts_and_scales_each_channel(text: str, mean: list[float], std: list[float]) -> None:
    x = np.random.default_rng(0).random((2, 3, 4, 5))
    expected = (x - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    got = Normalize.parse(text)(torch.from_numpy(x.astype(np.float32))).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("text", ["cifar100", "", "0.5", "0.5/", "0.1/0.2/0.3", "a/b"])
def test_an_unknown_normalisation_is_told_what_there_is(text: str) -> None:
    with pytest.raises(ModelError, match=r"cifar10-mean, imagenet.*MEAN,…/STD,…"):
        Normalize.parse(text)


@pytest.mark.parametrize("text", ["0.5/0", "0.5/-1", "0.5/nan", "0.5/inf", "nan/1", "inf/1", "0.1,0.2/1"])
def test_numbers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ModelError, match="std"):
        Normalize.parse(text)


def test_a_gray_image_is_not_made_a_coloured_one() -> None:
    # Broadcasting would turn (1, 1, 32, 32) into (1, 3, 32, 32), which the network takes.
    network = build_network("fast-resnet9", num_classes=10, in_channels=3)
    classifier = BaseClassifier(with_normalisation(network, Normalize.parse("cifar10")).eval(), num_classes=10)
    assert classifier.scores(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ModelError, match=r"\(1, 32, 32\).*3 channels"):
        classifier.scores(torch.zeros(2, 1, 32, 32))


def test_the_numbers_are_no_part_of_the_state_dict() -> None:
    network = build_network("digits-cnn", num_classes=10, in_channels=1)
    wrapped = with_normalisation(network, Normalize([0.5], [0.2]))
    assert set(wrapped.state_dict()) == {f"network.{name}" for name in network.state_dict()}
