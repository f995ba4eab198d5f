"""A model by name: a small value that any process can load, with all that decides its answers."""

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from sigmax.errors import InvalidInputError
from sigmax.models import ModelCard, build_network, save_model
from sigmax.models.reference import ModelReference


def test_a_reference_loads_the_same_model_anywhere(digits_model: Path) -> None:
    reference = ModelReference(name=str(digits_model))
    found = [
        one.classifier(one.load()).fingerprint for one in (reference, pickle.loads(pickle.dumps(reference)), reference)
    ]
    assert len(set(found)) == 1
    model = reference.load().model
    assert isinstance(model, nn.Module)
    assert not model.training


def test_runs_are_named_after_their_model(tmp_path: Path) -> None:
    folder, file = tmp_path / "net-0.25", tmp_path / "other.pt"
    folder.mkdir()
    file.touch()
    names = {
        "zoo:cifar10-cohen-0.25": "cifar10-cohen-0.25",
        "mine:build": "mine:build",
        str(folder): "net-0.25",
        str(folder / "model.safetensors"): "net-0.25",
        str(file): "other",
    }
    assert {name: ModelReference(name=name).short_name for name in names} == names


def test_classes_and_outputs_come_from_the_card_else_from_the_user_else_from_the_data(tmp_path: Path) -> None:
    network = build_network("digits-cnn", num_classes=10, in_channels=1)
    card = ModelCard(arch="digits-cnn", num_classes=10, outputs="probabilities")
    save_model(tmp_path / "model.safetensors", network, card)
    said = ModelReference(name=str(tmp_path))
    classifier = said.classifier(said.load(), classes=3)
    assert (classifier.num_classes, classifier.outputs) == (10, "probabilities")
    for wrong in (ModelReference(name=str(tmp_path), classes=7), ModelReference(name=str(tmp_path), outputs="logits")):
        with pytest.raises(InvalidInputError, match=r"classes=7|outputs=logits"):
            wrong.classifier(wrong.load())
    own = ModelReference(name="toy:half_space")
    assert own.classifier(own.load(), classes=2).num_classes == 2
    with pytest.raises(InvalidInputError, match="--classes"):
        own.classifier(own.load())
    told = ModelReference(name="toy:half_space", classes=2, outputs="probabilities")
    assert told.classifier(told.load()).outputs == "probabilities"


def test_a_noise_aware_network_stays_one_behind_its_normalisation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_network("patch-resnet10-aware", num_classes=10, in_channels=3)
    card = ModelCard(arch="patch-resnet10-aware", num_classes=10, mean=(0.5,) * 3, std=(0.2,) * 3)
    save_model(tmp_path / "model.safetensors", network, card)
    reference = ModelReference(name=str(tmp_path))
    assert reference.classifier(reference.load()).takes_level
