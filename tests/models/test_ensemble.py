"""Ensembles: the mean of the logits, loaded by name, with a fingerprint and a card of their own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sigmax import Ensemble, HalvingSearch, SmoothedClassifier
from sigmax.errors import InvalidInputError, ModelError
from sigmax.models import load_model
from sigmax.models.checkpoint import save_model
from sigmax.models.reference import ModelReference
from toy import Level, half_space, small_network

ZOO = "zoo:cifar10-cohen-0.25", "zoo:cifar10-macer-0.25"


def test_scores_are_the_mean_of_the_members() -> None:
    x = torch.rand(5, 4)
    members = [small_network(), half_space()]
    torch.testing.assert_close(Ensemble(members)(x), (members[0](x) + members[1](x)) / 2)
    assert not Ensemble(members).takes_level
    assert not Ensemble(members).training
    tau = torch.full((5,), 0.3)
    aware = Ensemble([small_network(), Level().eval()])
    assert aware.takes_level
    torch.testing.assert_close(aware(x, tau), (small_network()(x) + Level()(x, tau)) / 2)
    with pytest.raises(InvalidInputError, match="at least one"):
        Ensemble([])


def test_the_fingerprint_covers_the_members_and_tau_is_searched() -> None:
    a, b = small_network(), half_space()
    prints = {
        SmoothedClassifier(Ensemble(members), num_classes=2, sigma=0.25).fingerprint
        for members in ([a, b], [b, a], [a], [a, a])
    }
    assert len(prints) == 4
    smoothed = SmoothedClassifier(Ensemble([Level().eval()]), num_classes=2, sigma=HalvingSearch(initial=0.25))
    (one,) = smoothed.certify(torch.full((1, 4), 0.6), n=300)
    assert one.tau is not None


def test_an_ensemble_is_loaded_by_its_members_names() -> None:
    loaded = load_model("+".join(ZOO))
    assert isinstance(loaded.model, Ensemble)
    assert loaded.card is not None
    assert (loaded.card.sigma, loaded.card.noise, loaded.card.method, loaded.num_classes) == (
        0.25,
        "gaussian",
        None,
        10,
    )
    x = torch.rand(2, 3, 32, 32)
    alone = [load_model(name).model(x) for name in ZOO]
    torch.testing.assert_close(loaded.model(x), (alone[0] + alone[1]) / 2)
    reference = ModelReference(name="+".join(ZOO))
    assert reference.short_name == "cifar10-cohen-0.25+cifar10-macer-0.25"
    assert load_model("zoo:cifar10-cohen-0.12+zoo:cifar10-cohen-0.25").card.sigma is None  # type: ignore[union-attr]


def test_a_file_may_have_a_plus_in_its_name(tmp_path: Path) -> None:
    loaded = load_model(ZOO[0])
    assert loaded.card is not None
    network = loaded.model.network  # type: ignore[attr-defined]
    save_model(tmp_path / "a+b.safetensors", network, loaded.card)
    assert not isinstance(load_model(str(tmp_path / "a+b.safetensors")).model, Ensemble)
    save_model(tmp_path / "other.safetensors", network, replace(loaded.card, class_names=("x",) * 10))
    with pytest.raises(ModelError, match="classes"):
        load_model(f"{ZOO[0]}+{tmp_path / 'other.safetensors'}")
    with pytest.raises(ModelError, match="no such file"):
        load_model(f"{ZOO[0]}+missing")
