"""Cards of networks, and the list of those in this package."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from commands import Run
from sigmax import FixedSigma, SmoothedClassifier
from sigmax.cards import ZOO_ALIASES, read_card, replace_card, zoo, zoo_file
from sigmax.errors import ModelError
from sigmax.models import load_model


def test_another_card_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    path.write_bytes(zoo_file("cifar10-cohen-0.25").read_bytes())
    before, card = load_file(path), read_card(path)
    assert card is not None
    for licence in ("MIT", "x" * 999):  # longer and shorter headers
        other = replace(card, licence=licence, noisy_accuracy=((0.25, 0.5), (0.5, 0.25)))
        replace_card(path, other)
        assert read_card(path) == load_model(str(path)).card == other
    after = load_file(path)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_file_may_have_no_card_or_be_broken(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "bare.safetensors")
    assert read_card(tmp_path / "bare.safetensors") is None
    for content in (b"", b"\xff" * 20):
        (tmp_path / "broken.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match="broken"):
            read_card(tmp_path / "broken.safetensors")


def test_the_list_of_networks(run: Run) -> None:
    code, said, _ = run("models", "--json")
    assert code == 0
    found = {entry["name"]: entry for entry in json.loads(said)}
    assert {f"zoo:{name}" for name in zoo()} <= found.keys()
    own = found["zoo:cifar10-cohen-0.25"]
    assert (own["data"], own["sigma"], own["licence"]) == ("cifar10", 0.25, "MIT")
    assert own["noisy_accuracy"] == [[0.25, 0.771]]
    assert own["bytes"] == zoo_file("cifar10-cohen-0.25").stat().st_size
    assert "zoo:cifar10-cohen-0.12" in run("models")[1]


def test_the_list_of_networks_fits_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("models")  # which imports it
    terminal = Console(force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(sys.modules["sigmax.cli.models"], "out_console", terminal)
    _, said, _ = run("models")
    assert max(map(len, said.splitlines())) <= 80
    for name in (*zoo(), *ZOO_ALIASES):
        assert f"zoo:{name}" in said  # whole: it can be copied
    for card in (read_card(zoo_file(name)) for name in zoo()):
        assert card is not None
        assert all(f"{share:.3f}" in said for _, share in card.noisy_accuracy)


def test_a_network_has_one_file_under_all_its_names() -> None:
    for alias, name in ZOO_ALIASES.items():
        assert zoo_file(alias, is_new=True) == zoo_file(name, is_new=True)
        assert alias not in zoo()


def test_a_network_of_the_zoo_is_ready() -> None:
    smoothed = SmoothedClassifier.from_pretrained("zoo:cifar10-cohen-0.25", batch_size=16)
    assert (smoothed.search, smoothed.levels, smoothed.noise.norm) == (FixedSigma(0.25), 255, 2)
    assert smoothed.classifier.num_classes == 10
    assert len(smoothed.certify(torch.zeros(1, 3, 32, 32), n=100)) == 1
