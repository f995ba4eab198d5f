"""Searches stay in the range of sigma that a network was trained for: on the command line, in Python and in TOML."""

from pathlib import Path

import pytest
import torch
from torch import nn

from commands import Run
from sigmax import AscentSearch, FixedSigma, HalvingSearch, SmoothedClassifier
from sigmax.errors import InvalidInputError
from sigmax.models import ModelCard, build_network, save_model
from sigmax.paper.experiment import load_experiment
from sigmax.runs import read_spec, read_table
from sigmax.search import search_for, start_of

RANGE = (0.06, 1.0)
CARD = ModelCard(
    arch="patch-resnet10-aware",
    num_classes=10,
    input_shape=(3, 16, 16),
    sigma=0.245,
    sigma_range=RANGE,
    noise="gaussian",
    method="cohen",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A noise-aware network whose level matters."""
    path = tmp_path_factory.mktemp("aware") / "model.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(CARD.arch, num_classes=10, in_channels=3)
        for name, parameter in network.named_parameters():
            if "film" in name:
                nn.init.normal_(parameter, std=0.1)
    save_model(path, network, CARD)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np

    path = tmp_path_factory.mktemp("images") / "data.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16)) / 255
    np.savez(path, x=pixels.astype(np.float32), y=np.arange(4))
    return path


def test_searches_take_the_range_of_the_training() -> None:
    trained = (0.245, RANGE)
    assert search_for(*trained, "halving") == HalvingSearch(initial=0.12, bounds=RANGE)
    assert search_for(*trained, "ascent", initial=0.5) == AscentSearch(initial=0.5, bounds=RANGE)
    assert search_for(*trained, "halving", bounds=[0.25, 0.5]) == HalvingSearch(initial=0.3, bounds=(0.25, 0.5))
    assert search_for(*trained, "fixed") == FixedSigma(0.245)
    assert search_for(*trained, "ascent-paper") == AscentSearch.paper(initial=0.245)
    assert search_for(0.25, None, "halving") == HalvingSearch(initial=0.25)
    with pytest.raises(InvalidInputError, match=r"sigma0=2.*0\.06"):
        search_for(*trained, "halving", initial=2.0)
    with pytest.raises(InvalidInputError, match="--sigma"):
        search_for(None, None, "halving")


def test_the_start_is_low_in_its_range() -> None:
    assert start_of(RANGE) == 0.12
    for low, high in ((0.25, 1.0), (0.01, 0.02), (1.0, 100.0)):
        assert low < start_of((low, high)) < (low * high) ** 0.5
    with pytest.raises(InvalidInputError, match="low < high"):
        start_of((-1.0, 1.0))


def test_certify_per_input_needs_neither_sigma_nor_bounds(run: Run, model: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, _, log = run("certify", model, "--data", f"arrays:{images}", "--per-input", "--n", 200, "--out", out)
    assert code == 0, log
    assert read_spec(out / "config.json").search == HalvingSearch(initial=0.12, bounds=RANGE)
    table = read_table(out)
    assert all(RANGE[0] - 1e-6 <= sigma <= RANGE[1] + 1e-6 for sigma in table.sigma)


def test_a_pretrained_network_is_ready(model: Path) -> None:
    x = torch.randint(0, 256, (2, 3, 16, 16)) / 255
    for sigma, search in (
        (None, FixedSigma(0.245)),
        ("halving", HalvingSearch(initial=0.12, bounds=RANGE)),
        (0.5, FixedSigma(0.5)),
    ):
        smoothed = SmoothedClassifier.from_pretrained(str(model), sigma=sigma, batch_size=32)
        assert (smoothed.search, smoothed.levels, smoothed.noise.norm) == (search, 255, 2)
        points = smoothed.certify(x, n=100)
        assert all(point.tau == point.sigma for point in points)
    with pytest.raises(InvalidInputError, match="card"):
        SmoothedClassifier.from_pretrained("toy:half_space")


def test_an_experiment_takes_the_range_too(model: Path, images: Path, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(f"""
        data = {{ name = "arrays:{images}" }}
        report = {{ title = "t", paper = "cifar10" }}
        [networks.aware]
        model = "{model}"
        [[certify]]
        networks = "aware"
        search = "halving"
        [[certify]]
        networks = "aware"
        search = "fixed"
    """)
    runs = load_experiment(str(tmp_path / "e.toml")).certifications
    assert runs["aware-halving"].spec.search == HalvingSearch(initial=0.12, bounds=RANGE)
    assert runs["aware-fixed"].spec.search == FixedSigma(0.245)
