"""What several tests need: a small trained network, and the data beside the repository."""

import os
from pathlib import Path

import pytest
import torch

from sigmax.data import load_source
from sigmax.models import ModelCard, build_network, save_model
from sigmax.noise import Gaussian
from sigmax.train import train_under_noise

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def digits_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a network trained on the digits under noise of sigma 0.25, in a few seconds."""
    source = load_source("digits", split="train")
    torch.manual_seed(0)
    network = build_network("digits-cnn", num_classes=10, in_channels=1)
    x = torch.from_numpy(source.images(range(len(source))))
    train_under_noise(network, x, torch.from_numpy(source.labels), noise=Gaussian(), sigma=0.25, epochs=12)
    path = tmp_path_factory.mktemp("model") / "digits.safetensors"
    card = ModelCard(
        arch="digits-cnn",
        num_classes=10,
        input_shape=(1, 8, 8),
        class_names=source.class_names,
        sigma=0.25,
        noise="gaussian",
    )
    save_model(path, network, card)
    return path


@pytest.fixture
def published_logs() -> Path:
    """The folder of published certification logs."""
    folder = SHARED / "data" / "published-logs"
    if not folder.is_dir():
        pytest.skip("the published logs are not beside the repository (../shared/data/published-logs)")
    return folder


@pytest.fixture
def cifar10_folder() -> Path:
    """Where the real CIFAR-10 is, if anywhere."""
    folder = Path(os.environ.get("SIGMAX_CIFAR10") or "not set")
    if not folder.is_dir():
        pytest.skip("set SIGMAX_CIFAR10 to a folder with cifar-10-batches-bin to run this")
    return folder
