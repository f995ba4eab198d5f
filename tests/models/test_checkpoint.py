import copy
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sigmax.errors import ModelError
from sigmax.models import BaseClassifier, ModelCard, Normalize, build_network, load_model, save_model

CARD = ModelCard(
    arch="digits-cnn",
    num_classes=10,
    input_shape=(1, 8, 8),
    mean=(0.1,),
    std=(1 / 3,),
    class_names=tuple("0123456789"),
    sigma=0.1 + 0.2,
    noise="gaussian",
    outputs="logits",
)


def digits_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build_network("digits-cnn", num_classes=10, in_channels=1).eval()


def module(model: object) -> nn.Module:
    assert isinstance(model, nn.Module)
    return model


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    network, path = digits_network(), tmp_path / "new" / "folder" / "model.safetensors"
    save_model(path, network, CARD)
    for spec in (path, path.parent):
        loaded = load_model(str(spec))
        assert loaded.card == CARD
        model = module(loaded.model)
        assert not any(part.training for part in model.modules())
        assert same_tensors(model.get_submodule("network").state_dict(), dict(network.state_dict()))
        x = torch.rand(4, 1, 8, 8)
        assert torch.equal(model(x), network((x - torch.tensor(0.1)) / torch.tensor(1 / 3)))


def test_weights_in_half_precision_take_half_the_room_and_compute_in_full(tmp_path: Path) -> None:
    network, whole, halved = digits_network(), tmp_path / "whole.safetensors", tmp_path / "halved.safetensors"
    save_model(whole, network, CARD)
    save_model(halved, network, CARD, in_half=True)
    assert halved.stat().st_size < 0.6 * whole.stat().st_size
    rounded = module(load_model(str(halved)).model).get_submodule("network").state_dict()
    assert same_tensors(rounded, {name: tensor.half().float() for name, tensor in network.state_dict().items()})


def test_a_card_with_the_least_in_it_comes_back(tmp_path: Path) -> None:
    card = ModelCard(arch="digits-cnn", num_classes=10)
    save_model(tmp_path / "m.safetensors", digits_network(), card)
    loaded = load_model(str(tmp_path / "m.safetensors"))
    assert loaded.card == card
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded.model(x), digits_network()(x))


def test_a_loaded_model_can_be_saved_again(tmp_path: Path) -> None:
    save_model(tmp_path / "first.safetensors", digits_network(), CARD)
    first = load_model(str(tmp_path / "first.safetensors"))
    assert first.card is not None
    save_model(tmp_path / "second.safetensors", module(first.model), first.card)
    second = load_model(str(tmp_path / "second.safetensors"))
    prints = [BaseClassifier(loaded.model, num_classes=10).fingerprint for loaded in (first, second)]
    assert prints[0] == prints[1]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The system itself stops every write beyond this size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, digits_network(seed=0), CARD)
    before = path.read_bytes()
    with pytest.raises(OSError, match="File too large"), largest_file(len(before) // 2):
        save_model(path, digits_network(seed=1), CARD)
    assert path.read_bytes() == before
    save_model(path, digits_network(seed=1), CARD)
    assert same_tensors(load_file(path), dict(digits_network(seed=1).state_dict()))


@pytest.mark.parametrize("size", [0, 4, 300, 20_000, -1])
def test_a_safetensors_file_that_is_cut_off_is_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, digits_network(), CARD)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"arch": "digits-cnn"}', "null"])
def test_a_card_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors"
    save_file(dict(digits_network().state_dict()), path, metadata={"sigmax": text})
    with pytest.raises(ModelError, match="card") as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)


def test_a_card_that_does_not_fit_its_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, digits_network(), ModelCard(arch="digits-cnn", num_classes=11))
    with pytest.raises(ModelError, match=r"digits-cnn.*size mismatch"):
        load_model(str(path))
    save_model(path, digits_network(), ModelCard(arch="resnet20", num_classes=10))
    with pytest.raises(ModelError, match="resnet20"):
        load_model(str(path))
    save_model(path, digits_network(), ModelCard(arch="digits-cnn", num_classes=10, mean=(0, 0, 0), std=(1, 1, 1)))
    with pytest.raises(ModelError, match="1 channels"):
        load_model(str(path))


@pytest.mark.parametrize("said", [{"arch": "resnet20"}, {"normalize": "none"}, {"normalize": "0.1/0.3"}])
def test_options_that_contradict_the_card_are_refused(tmp_path: Path, said: dict[str, str]) -> None:
    path = tmp_path / "model.safetensors"
    save_model(path, digits_network(), CARD)
    with pytest.raises(ModelError, match="|".join(said.values())):
        load_model(str(path), **said)
    assert load_model(str(path), arch="digits-cnn", normalize=f"0.1/{1 / 3}").card == CARD


def test_a_foreign_safetensors_file_is_recognised(tmp_path: Path) -> None:
    # Its tensors come back sorted by name, so their order does not tell the first layer from the last.
    torch.manual_seed(0)
    network = build_network("resnet20", num_classes=7, in_channels=3).eval()
    path = tmp_path / "foreign.safetensors"
    save_file(dict(network.state_dict()), path)
    x = torch.rand(2, 3, 16, 16)
    for arch in (None, "resnet20"):
        loaded = load_model(str(path), arch=arch, normalize="none")
        assert loaded.card == ModelCard(arch="resnet20", num_classes=7)
        assert torch.equal(loaded.model(x), network(x))


@pytest.mark.parametrize("spec", ["nowhere.safetensors", "no/such/folder", "nothing", "a:b:c", ":make", "pkg.mod:"])
def test_a_model_that_is_nowhere_is_told_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = r"model\.safetensors, zoo:NAME, hf:NAME, timm:NAME or package\.module:factory"
    with pytest.raises(ModelError, match=expected) as caught:
        load_model(spec)
    assert repr(spec) in str(caught.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(str(tmp_path))


def test_what_is_no_checkpoint_is_not_said_in_the_words_of_torch(tmp_path: Path) -> None:
    """Which advises to load it with `weights_only=False`, that is, to run whatever is in it."""
    (tmp_path / "image.pt").write_bytes(b"\x89PNG and no checkpoint")
    with pytest.raises(ModelError, match=r"image\.pt") as caught:
        load_model(str(tmp_path / "image.pt"))
    assert "weights_only" not in str(caught.value)


FACTORIES = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()

def number():
    return 5

def leaving():
    raise SystemExit(0)

def nameless():
    return lambda x: x.flatten(1)[:, :10]

def named():
    ask = nameless()
    ask.identity = "version 1"
    return ask

def broken():
    return torch.nn.Linear(1, 2).no_such_thing

def greedy(size):
    return torch.nn.Linear(size, 2)
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder holds the user's module and package, and Python does not look there by itself."""
    (tmp_path / "own_package").mkdir()
    for place in ("own_module.py", "own_package/networks.py"):
        (tmp_path / place).write_text(FACTORIES)
    (tmp_path / "wrong_syntax.py").write_text("def make(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in ("own_module", "own_package", "own_package.networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("spec", ["own_module:make", "own_package.networks:make"])
@pytest.mark.usefixtures("beside")
def test_a_factory_beside_the_command_gives_the_model(spec: str) -> None:
    loaded = load_model(spec)
    assert loaded.card is None
    torch.manual_seed(0)
    same = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(loaded.model(x), same(x))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("no_such_module:make", "ModuleNotFoundError.*'no_such_module'"),
        ("own_package.nowhere:make", "ModuleNotFoundError"),
        ("own_module:no_such_factory", "AttributeError.*no_such_factory"),
        ("own_module:broken", "AttributeError.*no_such_thing"),
        ("own_module:greedy", "TypeError.*size"),
        ("own_module:number", "int"),
        ("own_module:leaving", "SystemExit: 0"),
        ("wrong_syntax:make", "SyntaxError"),
    ],
)
@pytest.mark.usefixtures("beside")
def test_a_factory_that_gives_no_model_is_named(spec: str, problem: str) -> None:
    with pytest.raises(ModelError, match=f"{spec}.*{problem}"):
        load_model(spec)


@pytest.mark.usefixtures("beside")
def test_a_function_of_ones_own_says_what_it_is() -> None:
    """The name of its factory does not tell it from what the factory returns tomorrow."""
    with pytest.raises(ModelError, match=r"own_module:nameless .*identity"):
        load_model("own_module:nameless")
    loaded = load_model("own_module:named")
    assert loaded.identity == "own_module:named version 1"
    assert loaded.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("said", [{"arch": "resnet20"}, {"normalize": "cifar10"}])
@pytest.mark.usefixtures("beside")
def test_a_factory_does_not_drop_options_in_silence(said: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"{next(iter(said))}.*own_module:make"):
        load_model("own_module:make", **said)


def test_the_normalisation_moves_with_the_model(tmp_path: Path) -> None:
    save_model(tmp_path / "m.safetensors", digits_network(), CARD)
    model = module(load_model(str(tmp_path / "m.safetensors")).model)
    twin = copy.deepcopy(model).double()
    layer = twin.get_submodule("normalize")
    assert isinstance(layer, Normalize)
    assert layer.mean.dtype == torch.float64
