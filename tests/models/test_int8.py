"""Networks in 8-bit integers: one fixed function, whose answers are nearly those of the network."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import Run
from sigmax import GridSearch, HalvingSearch, SmoothedClassifier
from sigmax.data import load_source
from sigmax.errors import ModelError
from sigmax.models import load_model
from sigmax.models.backends import accelerate
from sigmax.models.checkpoint import zoo
from sigmax.models.classifier import BaseClassifier
from sigmax.models.int8 import calibration_images

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def digits_network(digits_model: Path) -> nn.Module:
    network = load_model(str(digits_model)).model
    assert isinstance(network, nn.Module)
    return network


@pytest.fixture(scope="module")
def integers(digits_network: nn.Module) -> nn.Module:
    return accelerate(digits_network, "openvino-int8", batch_shape=(64, *SHAPE))


def noisy_digits() -> tuple[Tensor, Tensor]:
    source = load_source("digits")
    x = torch.from_numpy(source.images(range(320)))
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return x + 0.25 * noise, torch.from_numpy(source.labels[:320])


def answers(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(batch) for batch in torch.split(x, 64)]).argmax(dim=1)


def test_it_answers_nearly_like_the_network_and_as_well(digits_network: nn.Module, integers: nn.Module) -> None:
    x, truth = noisy_digits()
    own, plain = answers(integers, x), answers(digits_network, x)
    assert (own == plain).float().mean() > 0.95
    assert (own == truth).float().mean() > (plain == truth).float().mean() - 0.02


def test_a_row_has_the_same_answer_in_every_place_of_every_batch(integers: nn.Module) -> None:
    """A certificate speaks of one function: integers add up to the same in any order."""
    x, _ = noisy_digits()
    with torch.no_grad():
        whole = integers(x[:64])
        assert torch.equal(integers(x[:64].flip(0)).flip(0), whole)
        assert torch.equal(torch.cat([integers(part) for part in torch.split(x[:64], 16)]), whole)


def test_it_is_the_same_function_however_it_is_built(digits_network: nn.Module, integers: nn.Module) -> None:
    def fingerprint(model: nn.Module) -> str:
        return BaseClassifier(model, num_classes=10).fingerprint

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        again = accelerate(digits_network, "openvino-int8", batch_shape=(32, *SHAPE))
    finally:
        torch.set_num_threads(threads)
    plain = accelerate(digits_network, "openvino", batch_shape=(64, *SHAPE))
    assert fingerprint(again) == fingerprint(integers)
    assert len({fingerprint(model) for model in (integers, plain, digits_network)}) == 3


def test_all_searches_run_in_integers(integers: nn.Module) -> None:
    x = torch.from_numpy(load_source("digits").images(range(3)))
    for search in (0.25, HalvingSearch(initial=0.25), GridSearch(initial=0.25, evaluations=8, upper=0.25)):
        found = SmoothedClassifier(integers, num_classes=10, sigma=search, batch_size=64).certify(x, n=500)
        assert [one.label for one in found if one.label is not None]


@pytest.mark.parametrize("name", zoo())
def test_networks_of_the_zoo_in_integers_are_as_good_as_written(name: str, cifar10_folder: Path) -> None:
    loaded = load_model(f"zoo:{name}")
    assert isinstance(loaded.model, nn.Module)
    assert loaded.card is not None
    assert loaded.card.sigma is not None
    source = load_source(f"cifar10:{cifar10_folder}")
    places = range(0, len(source), 5)
    x, truth = torch.from_numpy(source.images(places)), torch.from_numpy(source.labels[places])
    noisy = x + loaded.card.sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    integers = accelerate(loaded.model, "openvino-int8", batch_shape=(64, *source.shape))
    own, plain = answers(integers, noisy), answers(loaded.model, noisy)
    assert (own == plain).float().mean() > 0.96
    assert abs((own == truth).float().mean() - (plain == truth).float().mean()) < 0.01


def test_made_up_images_look_like_noisy_photographs() -> None:
    images = calibration_images((3, 16, 16))
    assert torch.equal(images, calibration_images((3, 16, 16)))
    clean = images[::4]  # every fourth has no noise
    assert clean.min() >= 0
    assert clean.max() <= 1
    apart = (clean[..., 1:] - clean[..., :-1]).square().mean()
    assert apart < 0.5 * (clean[..., 8:] - clean[..., :8]).square().mean()  # neighbours are alike
    assert images[3::4].std() > 1  # of these the noise has sigma 1


def test_what_is_no_image_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    with pytest.raises(ModelError, match=r"expected images \(channels, height, width\) for 8-bit integers"):
        accelerate(model, "openvino-int8", batch_shape=(8, 4))


def test_nothing_but_json_is_printed(run: Run, digits_model: Path, tmp_path: Path) -> None:
    code, said, log = run(
        *("certify", digits_model, "--data", "digits", "--n", 500, "--max", 2, "--backend", "openvino-int8"),
        *("--out", tmp_path / "run", "--json"),
    )
    assert code == 0, log
    assert json.loads(said)
