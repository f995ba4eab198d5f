from pathlib import Path

import pytest
import torch
from torch import nn

from commands import Run
from sigmax.cards import zoo
from sigmax.data import load_source
from sigmax.errors import ModelError
from sigmax.models import load_model
from sigmax.models.levels import told
from sigmax.noise import Gaussian
from sigmax.train.evaluation import noisy_accuracy

# Sigma and method of the training, and the accuracy under noise that is written in docs/training.md.
AWARE = "cifar10-aware-cohen"  # told sigma; trained without the images of the split tune
NETWORKS = {
    "cifar10-cohen-0.12": (0.12, "cohen", 0.836),
    "cifar10-cohen-0.25": (0.25, "cohen", 0.771),
    "cifar10-cohen-0.50": (0.50, "cohen", 0.647),
    "cifar10-cohen-ds2-0.25": (0.25, "cohen-ds2", 0.765),
    "cifar10-macer-0.25": (0.25, "macer", 0.747),
    "cifar10-smoothadv-0.25": (0.25, "smoothadv", 0.752),
}
# What is written is from one draw of noise per image, and so is what is measured here. Over 10,000 images the
# difference of two such shares has a deviation of sqrt(2 v / 10,000): v is the mean of p (1 - p), where p is the
# probability of a hit. That is 0.003 for v = 0.05, and never above 0.0071.
LUCK = 0.012


def test_the_zoo_is_what_the_documentation_says() -> None:
    assert zoo() == sorted([AWARE, *NETWORKS])
    with pytest.raises(ModelError, match=r"cifar10-cohen-0.25.*'nothing'"):
        load_model("zoo:nothing")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_zoo_knows_how_it_was_trained(name: str) -> None:
    loaded = load_model(f"zoo:{name}")
    card = loaded.card
    assert card is not None
    sigma, method, _ = NETWORKS[name]
    assert (card.sigma, card.noise, card.method, card.num_classes) == (sigma, "gaussian", method, 10)
    assert card.class_names[3] == "cat"
    assert told(loaded.model, torch.rand(2, 3, 32, 32), torch.full((2,), sigma)).shape == (2, 10)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_are_as_accurate_under_noise_as_written(name: str, cifar10_folder: Path) -> None:
    sigma, _, written = NETWORKS[name]
    network = load_model(f"zoo:{name}").model
    assert isinstance(network, nn.Module)
    source = load_source(f"cifar10:{cifar10_folder}", split="test")
    assert noisy_accuracy(network, source, noise=Gaussian(), sigma=sigma, seed=1) > written - LUCK


def test_the_noise_aware_network_is_as_accurate_as_its_card_says(cifar10_folder: Path) -> None:
    loaded = load_model("zoo:cifar10-aware")
    assert loaded.card is not None
    assert loaded.card.sigma_range == (0.06, 1.4)
    assert isinstance(loaded.model, nn.Module)
    source = load_source(f"cifar10:{cifar10_folder}", split="tune")
    for sigma, written in loaded.card.noisy_accuracy:
        found = noisy_accuracy(loaded.model, source, noise=Gaussian(), sigma=sigma, seed=1)
        assert abs(found - written) < 2 * LUCK  # half as many images


def test_certify_takes_a_network_of_the_zoo(run: Run, cifar10_folder: Path, tmp_path: Path) -> None:
    code, said, log = run(
        *("certify", "zoo:cifar10-cohen-0.25", "--data", f"cifar10:{cifar10_folder}"),
        *("--n", 500, "--max", 4, "--skip", 100, "--out", tmp_path / "run"),
    )
    assert code == 0, log
    assert "certificates.tsv" in said
