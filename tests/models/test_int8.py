"""Networks in 8-bit integers: one fixed function, whose answers are nearly those of the network."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import Run
from sigmax import AscentSearch, GridSearch, HalvingSearch, SmoothedClassifier
from sigmax.cards import zoo
from sigmax.data import load_source
from sigmax.errors import ModelError
from sigmax.models import Normalize, build_network, load_model, with_normalisation
from sigmax.models.backends import FastModel, accelerate
from sigmax.models.classifier import BaseClassifier
from sigmax.models.int8 import calibration_batches
from sigmax.models.levels import told
from sigmax.runs import read_run, read_spec

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


def answers(model: nn.Module, x: Tensor, sigma: float = 0.25) -> Tensor:
    with torch.no_grad():
        parts = [told(model, batch, batch.new_full((len(batch),), sigma)) for batch in torch.split(x, 64)]
    return torch.cat(parts).argmax(dim=1)


def test_it_answers_nearly_like_the_network_and_as_well(digits_network: nn.Module, integers: nn.Module) -> None:
    x, truth = noisy_digits()
    own, plain = answers(integers, x), answers(digits_network, x)
    assert (own == plain).float().mean() > 0.95
    assert (own == truth).float().mean() > (plain == truth).float().mean() - 0.02


@pytest.fixture(scope="module")
def zoo_network() -> nn.Module:
    """It has what the digits network has not: normalisation, residual sums and mean pooling."""
    network = load_model("zoo:cifar10-cohen-0.25").model
    assert isinstance(network, nn.Module)
    return network


def test_a_row_has_the_same_answer_in_every_place_of_every_batch(zoo_network: nn.Module) -> None:
    """A certificate speaks of one function: integers add up to the same in any order."""
    integers = accelerate(zoo_network, "openvino-int8", batch_shape=(64, 3, 32, 32))
    x = torch.cat(calibration_batches((3, 32, 32))[:4])
    with torch.no_grad():
        whole = integers(x)
        assert torch.equal(integers(x.flip(0)).flip(0), whole)
        for rows in (16, 64):
            assert torch.equal(torch.cat([integers(part) for part in torch.split(x, rows)]), whole)
        assert (whole.argmax(dim=1) == zoo_network(x).argmax(dim=1)).float().mean() > 0.95


def fingerprint(model: nn.Module) -> str:
    return BaseClassifier(model, num_classes=10).fingerprint


def test_it_is_the_same_function_in_another_process(
    digits_model: Path, digits_network: nn.Module, integers: nn.Module
) -> None:
    """Else no run could be resumed, and no memory opened again."""
    build = (
        "import sys, torch; from sigmax.models import load_model; from sigmax.models.backends import accelerate; "
        "from sigmax.models.classifier import BaseClassifier; torch.set_num_threads(1); "
        "fast = accelerate(load_model(sys.argv[1]).model, 'openvino-int8', batch_shape=(32, 1, 8, 8)); "
        "print(BaseClassifier(fast, num_classes=10).fingerprint)"
    )
    again = subprocess.run(
        [sys.executable, "-c", build, str(digits_model)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert again.stdout.strip() == fingerprint(integers)
    plain = accelerate(digits_network, "openvino", batch_shape=(64, *SHAPE))
    assert len({fingerprint(model) for model in (integers, plain, digits_network)}) == 3


def test_other_weights_are_another_function(digits_network: nn.Module, integers: nn.Module) -> None:
    other = copy.deepcopy(digits_network)
    with torch.no_grad():
        next(other.parameters()).mul_(1.5)
    found = accelerate(other, "openvino-int8", batch_shape=(64, *SHAPE))
    assert isinstance(found, FastModel)
    assert isinstance(integers, FastModel)
    assert found.backend_name == integers.backend_name
    assert found.digest != integers.digest


def test_all_searches_run_in_integers(integers: nn.Module) -> None:
    x = torch.from_numpy(load_source("digits").images(range(3)))
    for search in (
        0.25,
        HalvingSearch(initial=0.25),
        GridSearch(initial=0.25, evaluations=8, upper=0.25),
        AscentSearch(initial=0.25, steps=3, pilot=100),
    ):
        found = SmoothedClassifier(integers, num_classes=10, sigma=search, batch_size=64).certify(x, n=500)
        assert [one.label for one in found if one.label is not None]


@pytest.mark.parametrize("name", zoo())
def test_networks_of_the_zoo_in_integers_are_as_good_as_written(name: str, cifar10_folder: Path) -> None:
    loaded = load_model(f"zoo:{name}")
    assert isinstance(loaded.model, nn.Module)
    assert loaded.card is not None
    source = load_source(f"cifar10:{cifar10_folder}")
    places = range(0, len(source), 5)
    x, truth = torch.from_numpy(source.images(places)), torch.from_numpy(source.labels[places])
    integers = accelerate(loaded.model, "openvino-int8", batch_shape=(64, *source.shape))
    assert loaded.card.noisy_accuracy
    for sigma, _ in loaded.card.noisy_accuracy:
        noisy = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        own, plain = (answers(model, noisy, sigma) for model in (integers, loaded.model))
        assert (own == plain).float().mean() > (0.97 if loaded.card.sigma_range else 0.98)
        assert abs((own == truth).float().mean() - (plain == truth).float().mean()) < 0.01


def test_a_noise_aware_network_in_integers_answers_like_itself_at_every_level(
    zoo_network: nn.Module, cifar10_folder: Path
) -> None:
    """A network of the zoo that is also told the level, by weights that change its maps as a training does."""
    network = build_network("patch-resnet10-aware", num_classes=10, in_channels=3)
    network.load_state_dict(zoo_network.get_submodule("network").state_dict(), strict=False)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "film" in name:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=stream))
    model = with_normalisation(network, Normalize.parse("cifar10"), level_range=(0.06, 1.0)).eval()
    integers = accelerate(model, "openvino-int8", batch_shape=(64, 3, 32, 32))
    source = load_source(f"cifar10:{cifar10_folder}", split="tune")
    x = torch.from_numpy(source.images(range(512)))
    for sigma in (0.06, 0.12, 0.25, 0.5, 1.0):
        noisy = x + sigma * torch.randn(x.shape, generator=stream)
        own, plain = (answers(one, noisy, sigma) for one in (integers, model))
        assert (own == plain).float().mean() >= 0.97, sigma


def test_made_up_images_look_like_noisy_photographs() -> None:
    images, again = (torch.cat(calibration_batches((3, 16, 16))) for _ in range(2))
    assert torch.equal(images, again)
    clean = images[::4]  # every fourth has no noise
    assert clean.min() >= 0
    assert clean.max() <= 1
    apart = (clean[..., 1:] - clean[..., :-1]).square().mean()
    assert apart < 0.5 * (clean[..., 8:] - clean[..., :8]).square().mean()  # neighbours are alike
    assert images[3::4].std() > 1  # of these the noise has sigma 1


class OneBatch(nn.Module):
    """Has the size of its batch built in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.conv(x).view(len(x), 3, -1).mean(dim=2)
        return scores


def test_a_network_for_one_batch_alone_is_refused() -> None:
    with pytest.raises(ModelError, match="64 inputs"):
        accelerate(OneBatch().eval(), "openvino-int8", batch_shape=(16, *SHAPE))


def test_what_is_no_image_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3)).eval()
    with pytest.raises(ModelError, match="channels, height, width"):
        accelerate(model, "openvino-int8", batch_shape=(8, 4))


def test_certify_in_integers_is_resumed_and_prints_nothing_but_json(
    run: Run, digits_model: Path, tmp_path: Path
) -> None:
    command = ("certify", digits_model, "--data", "digits", "--n", 500, "--backend", "openvino-int8", "--json")
    for more in ((3,), (5, "--resume")):
        code, said, log = run(*command, "--out", tmp_path / "run", "--per-input", "--max", *more)
        assert code == 0, log
        assert json.loads(said)
    found = read_run(tmp_path / "run")
    assert len(found.table) == 5
    assert found.spec is not None
    assert found.spec.found is not None
    assert (found.spec.found.backend or "").startswith("openvino-int8 ")


def test_certify_does_not_fall_back_from_integers_to_another_function(
    run: Run, digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> nn.Module:
        raise ModelError("expected a compiler, got none")

    monkeypatch.setattr("sigmax.models.reference.accelerate", refuse)
    command = ("certify", digits_model, "--data", "digits", "--n", 100, "--max", 1)
    code, _, log = run(*command, "--backend", "openvino-int8", "--out", tmp_path / "integers")
    assert (code, "compiler" in log) == (2, True)
    assert not (tmp_path / "integers").exists()
    code, _, log = run(*command, "--backend", "openvino", "--out", tmp_path / "floats")
    assert (code, "compiler" in log) == (0, True)
    assert read_spec(tmp_path / "floats" / "config.json").model.backend == "eager"
