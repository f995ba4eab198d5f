"""The forms in which others publish checkpoints, written here as their code writes them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from places import SHARED
from sigmax.data import load_source
from sigmax.errors import ModelError
from sigmax.models import LoadedModel, build_network, load_model
from sigmax.models.architectures import PaddedShortcut

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def resnet(arch: str = "resnet20") -> nn.Module:
    """A network whose batch norms have moved, as by training."""
    torch.manual_seed(0)
    network = build_network(arch, num_classes=10, in_channels=3).eval()
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.1, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return network


def prefixed(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def save(path: Path, content: Any, *, legacy: bool = False) -> str:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return str(path)


def check(
    loaded: LoadedModel,
    network: nn.Module,
    *,
    mean: Sequence[float] = (0, 0, 0),
    std: Sequence[float] = (1, 1, 1),
    side: int = 8,
) -> None:
    """The loaded model answers as the network does to images standardised by NumPy."""
    x = np.random.default_rng(0).random((3, 3, side, side))
    inputs = (x - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    pixels, standardised = (torch.from_numpy(array.astype(np.float32)) for array in (x, inputs))
    with torch.inference_mode():
        got, raw, expected = loaded.model(pixels), network(pixels), network(standardised)
    spread = float(expected.std(dim=0).max())  # what the answer owes to the input
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3 * spread)
    assert spread > 1e-2
    assert (float((got - raw).abs().max()) > 0.1 * spread) == (tuple(mean) != (0, 0, 0))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before 2020"])
def test_cohen_on_cifar10(tmp_path: Path, legacy: bool) -> None:
    network = resnet()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9)
    network(torch.rand(2, 3, 8, 8)).sum().backward()
    optimizer.step()  # so that the file holds momentum buffers too
    content = {
        "epoch": 90,
        "arch": "cifar_resnet20",
        "state_dict": prefixed("1.", network.state_dict()),
        "optimizer": optimizer.state_dict(),
    }
    loaded = load_model(save(tmp_path / "checkpoint.pth.tar", content, legacy=legacy), normalize="cifar10")
    assert loaded.card is not None
    assert (loaded.card.arch, loaded.card.num_classes) == ("resnet20", 10)
    assert (loaded.card.mean, loaded.card.std) == (MEAN, STD)
    check(loaded, network, mean=MEAN, std=STD)


def test_cohen_on_imagenet(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_network("resnet50", num_classes=1000, in_channels=3).eval()
    state = prefixed("1.module.", network.state_dict())
    path = save(tmp_path / "checkpoint.pth.tar", {"epoch": 90, "arch": "resnet50", "state_dict": state})
    loaded = load_model(path, normalize="imagenet")
    assert loaded.card is not None
    assert (loaded.card.arch, loaded.card.num_classes) == ("resnet50", 1000)
    check(loaded, network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), side=32)


def test_smoothadv_with_the_mean_alone(tmp_path: Path) -> None:
    network = resnet()
    content = {"arch": "cifar_resnet20", "state_dict": prefixed("1.", network.state_dict())}
    loaded = load_model(save(tmp_path / "checkpoint.pth.tar", content), normalize="cifar10-mean")
    check(loaded, network, mean=MEAN)


def test_macer_takes_pixels_as_they_are(tmp_path: Path) -> None:
    network = resnet("resnet110")
    loaded = load_model(save(tmp_path / "440.pth", {"net": network.state_dict(), "epoch": 440}))
    assert loaded.card is not None
    assert (loaded.card.arch, loaded.card.mean) == ("resnet110", ())
    check(loaded, network)
    said = load_model(str(tmp_path / "440.pth"), normalize="cifar10").card
    assert said is not None
    assert said.mean == MEAN


@pytest.mark.parametrize("prefix", ["", "module.", "network.", "module.1."])
def test_a_plain_state_dict_is_recognised_by_its_tensors(tmp_path: Path, prefix: str) -> None:
    network = resnet()
    loaded = load_model(save(tmp_path / "plain.pt", prefixed(prefix, network.state_dict())), normalize="none")
    assert loaded.card is not None
    assert loaded.card.arch == "resnet20"
    check(loaded, network)


def test_what_the_file_calls_itself_does_not_hinder(tmp_path: Path) -> None:
    content = {"arch": "my-own-name", "state_dict": resnet().state_dict()}
    card = load_model(save(tmp_path / "own.pt", content), normalize="none").card
    assert card is not None
    assert card.arch == "resnet20"


def test_a_resnet50_does_not_tell_whose_it_is(tmp_path: Path) -> None:
    with torch.device("meta"):
        names = build_network("resnet50", num_classes=1000, in_channels=3).state_dict()
    # Tensors of the right shapes that take no room in the file.
    state = {name: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape) for name, tensor in names.items()}
    path = save(tmp_path / "resnet50.pt", state)
    with pytest.raises(ModelError, match=r"resnet50 or resnet50-keras.*--arch") as caught:
        load_model(path, normalize="imagenet")
    assert path in str(caught.value)
    card = load_model(path, arch="resnet50-keras", normalize="imagenet-keras").card
    assert card is not None
    assert (card.arch, card.num_classes) == ("resnet50-keras", 1000)


def test_a_missing_normalisation_is_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path / "plain.pt", resnet().state_dict())
    with pytest.raises(ModelError, match="--normalize none, cifar10") as caught:
        load_model(path)
    assert path in str(caught.value)


def test_a_normalisation_of_other_channels_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "plain.pt", resnet().state_dict())
    with pytest.raises(ModelError, match="3 channels"):
        load_model(path, normalize="0.5/0.2")


@pytest.mark.parametrize("arch", ["resnet56", "resnet18", "digits-cnn"])
def test_another_architecture_is_refused(tmp_path: Path, arch: str) -> None:
    path = save(tmp_path / "plain.pt", resnet().state_dict())
    with pytest.raises(ModelError, match=f"{arch}.*--arch") as caught:
        load_model(path, arch=arch, normalize="none")
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_is_told_what_there_is(tmp_path: Path) -> None:
    path = save(tmp_path / "plain.pt", resnet().state_dict())
    with pytest.raises(ModelError, match=r"digits-cnn, .*arch='vgg16'"):
        load_model(path, arch="vgg16", normalize="none")
    with pytest.raises(ModelError, match="--arch"):
        load_model(save(tmp_path / "other.pt", nn.Linear(3, 2).state_dict()), normalize="none")


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before 2020"])
@pytest.mark.parametrize("part", [0.0, 0.0001, 0.01, 0.5, 0.9, 0.99])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, part: float, legacy: bool) -> None:
    path = tmp_path / "plain.pt"
    save(path, resnet().state_dict(), legacy=legacy)
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(ModelError) as caught:
        load_model(str(path), normalize="none")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class MakesFolder:
    """Runs code when it is unpickled by anybody less careful."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before 2020"])
def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(tmp_path: Path, legacy: bool) -> None:
    proof = tmp_path / "proof"
    content = {"state_dict": resnet().state_dict(), "extra": MakesFolder(proof)}
    path = save(tmp_path / "bad.pt", content, legacy=legacy)
    with pytest.raises(ModelError, match=r"\w+\.mkdir") as caught:
        load_model(path, normalize="none")
    assert path in str(caught.value)
    assert not proof.exists()
    torch.load(path, weights_only=False)
    assert proof.exists()


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "module.pt", nn.Linear(3, 2))
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear"):
        load_model(path, normalize="none")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ({"model": {"fc.weight": torch.zeros(1)}, "epoch": 3}, r"\['model', 'epoch'\]"),
        ({"state_dict": [torch.zeros(1)]}, r"\['state_dict'\]"),
        ({0: torch.zeros(1)}, r"\['0'\]"),
        ([torch.zeros(1)], "list"),
        (torch.zeros(1), "Tensor"),
    ],
)
def test_a_file_of_another_form_is_told_what_is_read(tmp_path: Path, content: object, got: str) -> None:
    path = save(tmp_path / "other.pt", content)
    with pytest.raises(ModelError, match=got) as caught:
        load_model(path, normalize="none")
    assert path in str(caught.value)


def _common_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of the most copied ResNets for CIFAR-10, saved from `DataParallel`."""
    renamed = {name.replace("fc.", "linear.").replace("downsample", "shortcut"): t for name, t in state.items()}
    # Written by a torch that did not count batches yet.
    return {f"module.{name}": tensor for name, tensor in renamed.items() if not name.endswith("_tracked")}


@pytest.mark.parametrize("arch", ["resnet20-padded", "resnet18"])
def test_the_most_common_names_are_known(arch: str, tmp_path: Path) -> None:
    network = build_network(arch, num_classes=10, in_channels=3).eval()
    torch.save({"net": _common_names(network.state_dict()), "acc": 93.4, "epoch": 7}, tmp_path / "model.th")
    with pytest.raises(ModelError, match="--normalize"):  # unlike MACER's files, these do not say it
        load_model(str(tmp_path / "model.th"))
    loaded = load_model(str(tmp_path / "model.th"), normalize="none")
    assert loaded.card is not None
    assert loaded.card.arch == arch
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), network(x))


def test_a_shortcut_without_parameters_skips_pixels_and_adds_empty_channels() -> None:
    x = torch.rand(2, 16, 8, 8)
    found = PaddedShortcut(16, 32, stride=2)(x)
    assert found.shape == (2, 32, 4, 4)
    assert torch.equal(found[:, 8:24], x[:, :, ::2, ::2])
    assert not found[:, :8].any()
    assert not found[:, 24:].any()


def test_a_real_network_off_the_shelf_has_its_accuracy(cifar10_folder: Path) -> None:
    path = SHARED / "data" / "off-the-shelf" / "cifar10-resnet56-akamaster.th"
    if not path.is_file():
        pytest.skip("the network is not beside the repository (../shared/data/off-the-shelf)")
    loaded = load_model(str(path), normalize="imagenet")
    assert loaded.card is not None
    assert loaded.card.arch == "resnet56-padded"
    source = load_source(f"cifar10:{cifar10_folder}")
    few = list(range(0, 10_000, 200))
    with torch.no_grad():
        hits = int((loaded.model(torch.from_numpy(source.images(few))).argmax(1).numpy() == source.labels[few]).sum())
    assert hits >= 40  # 93.4 % of all: fewer of 50 has probability 0.001
