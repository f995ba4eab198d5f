"""What several tests need: a small trained network, and the data beside the repository."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from commands import Run, call
from places import SHARED
from sigmax.data import load_source
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.train import Recipe, train

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("sigmax", deadline=None)
hypothesis.settings.load_profile("sigmax")
DIGITS_RECIPE = Recipe(arch="digits-cnn", sigma=0.25, epochs=20, batch=64)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that tests find out goes into the user's cache, nor comes from it; also in processes they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGMAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def digits_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a network trained on the digits under noise of sigma 0.25, in a few seconds."""
    out = tmp_path_factory.mktemp("model")
    train(DIGITS_RECIPE, load_source("digits", split="train"), out)
    return out / MODEL_FILE


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


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a command line in this process: exit code, stdout, stderr."""
    return call
