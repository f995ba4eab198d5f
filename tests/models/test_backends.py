"""Faster backends: the same answers up to rounding, gradients of the network itself, a fingerprint of their own."""

import copy
import shutil
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from sigmax import AscentSearch, SmoothedClassifier
from sigmax.errors import InvalidInputError, ModelError
from sigmax.models import Normalize, build_network, with_normalisation
from sigmax.models.backends import FastModel, accelerate
from sigmax.models.classifier import BaseClassifier


def network() -> nn.Module:
    torch.manual_seed(0)
    return with_normalisation(
        build_network("digits-cnn", num_classes=10, in_channels=1), Normalize([0.3], [0.4])
    ).eval()


@pytest.fixture(scope="module", params=["compile", "openvino"])
def fast(request: pytest.FixtureRequest) -> nn.Module:
    if request.param == "compile" and not any(shutil.which(compiler) for compiler in ("g++", "c++", "clang++")):
        pytest.skip("torch.compile needs a C++ compiler")
    return accelerate(network(), request.param, batch_shape=(64, 1, 8, 8))


def test_a_backend_answers_like_the_network(fast: nn.Module) -> None:
    x = torch.rand(64, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), network()(x), rtol=1e-4, atol=1e-5)
        other = torch.rand(8, 8, 8, 1).permute(0, 3, 1, 2)  # another batch size, another layout
        torch.testing.assert_close(fast(other), network()(other), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_the_network(fast: nn.Module) -> None:
    x = torch.rand(4, 1, 8, 8)
    slopes = []
    for model in (fast, network()):
        place = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(place).square().sum(), place)
        slopes.append(slope)
    assert torch.equal(*slopes)


def test_a_backend_has_a_fingerprint_of_its_own_and_leaves_that_of_the_network(fast: nn.Module) -> None:
    backend, own = (BaseClassifier(model, num_classes=10).fingerprint for model in (fast, network()))
    assert backend != own
    inner = fast.model
    assert isinstance(inner, nn.Module)
    assert BaseClassifier(inner, num_classes=10).fingerprint == own


def test_certificates_of_a_backend(fast: nn.Module) -> None:
    x = torch.rand(3, 1, 8, 8)
    found, expected = (
        SmoothedClassifier(
            model, num_classes=10, sigma=AscentSearch(initial=0.25, steps=3, pilot=100), batch_size=64
        ).certify(x, n=2_000)
        for model in (fast, network())
    )
    for a, b in zip(found, expected, strict=True):
        assert a.label == b.label
        assert a.p_lower == pytest.approx(b.p_lower, abs=0.01)


class Stubborn(nn.Module):
    """Its answer depends on numbers in a way that no backend can follow."""

    def forward(self, x: Tensor) -> Tensor:
        import json

        return torch.tensor([json.loads(str(float(row.sum()))) for row in x])[:, None].expand(-1, 10)


def test_what_cannot_be_run_says_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match="compile, openvino"):
        accelerate(network(), "abacus", batch_shape=(4, 1, 8, 8))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="eager"):
        accelerate(Stubborn().eval(), "openvino", batch_shape=(4, 1, 8, 8))


@pytest.mark.parametrize("backend", ["openvino", "openvino-int8"])
def test_an_interrupt_after_backends_are_gone_is_an_interrupt(backend: str) -> None:
    pytest.importorskip("openvino")
    script = f"""
import signal, torch
from sigmax.models import build_network
from sigmax.models.backends import accelerate

def backend(rows):
    network = build_network("digits-cnn", num_classes=10, in_channels=1).eval()
    fast = accelerate(network, "{backend}", batch_shape=(rows, 1, 8, 8))
    fast(torch.rand(rows + 1, 1, 8, 8))
    return fast

backends = [backend(rows) for rows in (2, 4, 6)]
while backends:
    backends.pop(0)  # the first that came is the first to go
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_eager_is_the_network_itself() -> None:
    model = network()
    assert accelerate(model, "eager", batch_shape=(4, 1, 8, 8)) is model


def test_a_backend_does_not_answer_for_weights_it_was_not_built_from() -> None:
    """Its certificates would go into the memory of another network."""
    layer = nn.Linear(12, 3)
    model = nn.Sequential(nn.Flatten(), layer).eval()
    kept = copy.deepcopy(model)
    fast = FastModel(model, kept, "a backend")
    smoothed = SmoothedClassifier(nn.Sequential(fast).eval(), num_classes=3, sigma=0.25)
    x = torch.rand(1, 3, 2, 2)
    smoothed.certify(x, n=10)
    with torch.no_grad():
        layer.weight.mul_(-1)
    with pytest.raises(ModelError, match="a backend"):
        smoothed.certify(x, n=10)
    model.load_state_dict(kept.state_dict())  # it is again the network that the backend was built from
    smoothed.predict(x)
    layer.weight.data.mul_(-1)  # torch does not count this as a change
    with pytest.raises(ModelError, match="accelerate"):
        smoothed.predict(x)
    layer.weight.data.mul_(-1)
    assert BaseClassifier(FastModel(model, kept, "a backend"), num_classes=3).fingerprint == (
        BaseClassifier(FastModel(kept, model, "a backend"), num_classes=3).fingerprint
    )


class Scaled(nn.Module):
    """Its scale is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale[0]


def test_a_backend_does_not_answer_for_settings_it_was_not_built_from() -> None:
    model = Scaled().eval()
    smoothed = SmoothedClassifier(FastModel(model, copy.deepcopy(model), "a backend"), num_classes=3, sigma=0.25)
    x = torch.rand(1, 3)
    smoothed.certify(x, n=10)
    model.scale[0] = -1.0
    with pytest.raises(ModelError, match="accelerate"):
        smoothed.certify(x, n=10)
    with pytest.raises(ModelError, match="accelerate"):
        smoothed.predict(x)


def aware_network() -> nn.Module:
    """A noise-aware network on which the level has an effect."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network("patch-resnet10-aware", num_classes=10, in_channels=3)
        for name, parameter in network.named_parameters():
            if "film" in name:
                nn.init.normal_(parameter, std=0.2)
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
    return with_normalisation(network, Normalize([0.5] * 3, [0.25] * 3), level_range=(0.1, 0.8)).eval()


def images() -> Tensor:
    """In the shape and layout of the batches that a backend was built for: others are built when they come."""
    return torch.rand(16, 16, 16, 3).permute(0, 3, 1, 2)


@pytest.fixture(scope="module", params=["compile", "openvino", "openvino-int8"])
def aware(request: pytest.FixtureRequest) -> nn.Module:
    if request.param == "compile" and not any(shutil.which(compiler) for compiler in ("g++", "c++", "clang++")):
        pytest.skip("torch.compile needs a C++ compiler")
    return accelerate(aware_network(), request.param, batch_shape=(16, 3, 16, 16))


def test_a_backend_tells_each_row_its_own_noise_level(aware: nn.Module) -> None:
    x, tau = images(), torch.tensor([0.1, 0.2, 0.4, 0.8]).repeat_interleave(4)
    with torch.no_grad():
        found, expected = aware(x, tau), aware_network()(x, tau)
        close = 1e-4 if "int8" not in aware.extra_repr() else 0.3 * float(expected.std())
        torch.testing.assert_close(found, expected, rtol=close, atol=close)
        assert not torch.allclose(aware(x, tau.flip(0)), found, rtol=close, atol=close)
        if "openvino" in aware.extra_repr():  # bit for bit, whatever levels the other rows have
            alone = aware(x, torch.full((16,), 0.2))
            assert torch.equal(alone[4:8], found[4:8])


def test_gradients_in_the_level_are_those_of_the_network(aware: nn.Module) -> None:
    x, slopes = torch.rand(4, 3, 16, 16), []
    for model in (aware, aware_network()):
        tau = torch.tensor([0.1, 0.2, 0.4, 0.8], requires_grad=True)
        slopes.append(torch.autograd.grad(model(x, tau).square().sum(), tau)[0])
    assert torch.equal(*slopes)


def test_a_network_takes_its_nearest_level(aware: nn.Module) -> None:
    """It was trained for levels from 0.1 to 0.8. The certificate says what it was told."""
    x, classifier = images(), BaseClassifier(aware, num_classes=10)
    for sigma, level in ((0.05, 0.1), (0.25, 0.25), (0.26, 0.25), (0.35, 0.25 * 2**0.5), (1.5, 0.25 * 2 ** (13 / 8))):
        points = SmoothedClassifier(aware, num_classes=10, sigma=sigma, batch_size=16).certify(x[:2], n=64)
        assert [point.tau for point in points] == [point.sigma for point in points]
        with torch.no_grad():
            asked, nearest = (classifier.scores(x, torch.full((16,), tau)) for tau in (sigma, level))
        assert torch.equal(asked, nearest)
