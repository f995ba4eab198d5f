from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import nn

from sigmax.errors import ModelError
from sigmax.models import ARCHITECTURES, build_network
from sigmax.models.architectures import matching_architectures

Array = NDArray[np.float64]


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def resnet_size(depths: Sequence[int], widths: Sequence[int], *, stem: int, expansion: int, classes: int) -> int:
    """The parameters of a residual network, counted from the paper of He et al. 2016."""
    total = 3 * widths[0] * stem**2 + 2 * widths[0]  # convolutions have no bias; batch norm has scale and shift
    inputs = widths[0]
    for depth, width in zip(depths, widths, strict=True):
        outputs = expansion * width
        for _ in range(depth):
            if expansion == 1:
                total += 9 * inputs * width + 9 * width**2 + 2 * 2 * width
            else:
                total += inputs * width + 9 * width**2 + width * outputs + 2 * (2 * width + outputs)
            if inputs != outputs:
                total += inputs * outputs + 2 * outputs  # 1 x 1 convolution and batch norm on the shortcut
            inputs = outputs
    return total + (inputs + 1) * classes


@pytest.mark.parametrize(
    ("arch", "blocks", "published"), [("resnet20", 3, 272_474), ("resnet56", 9, 855_770), ("resnet110", 18, 1_730_714)]
)
def test_cifar_resnets_have_the_published_size(arch: str, blocks: int, published: int) -> None:
    network = build_network(arch, num_classes=10, in_channels=3)
    expected = resnet_size([blocks] * 3, [16, 32, 64], stem=3, expansion=1, classes=10)
    assert count(network) == expected == published
    for stage in ("layer1", "layer2", "layer3"):
        assert len(list(network.get_submodule(stage).children())) == blocks


def test_imagenet_resnet50_has_the_names_and_the_size_of_torchvision() -> None:
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in norm)}
    for layer, depth in enumerate([3, 4, 6, 3], start=1):
        for i in range(depth):
            block = f"layer{layer}.{i}"
            names |= {f"{block}.conv{j}.weight" for j in (1, 2, 3)}
            names |= {f"{block}.bn{j}.{part}" for j in (1, 2, 3) for part in norm}
        names |= {f"layer{layer}.0.downsample.0.weight", *(f"layer{layer}.0.downsample.1.{part}" for part in norm)}
    assert len(names) == 320
    for arch in ("resnet50", "resnet50-keras"):
        with torch.device("meta"):
            network = build_network(arch, num_classes=1000, in_channels=3)
        assert set(network.state_dict()) == names
        expected = resnet_size([3, 4, 6, 3], [64, 128, 256, 512], stem=7, expansion=4, classes=1000)
        assert count(network) == expected == 25_557_032


def convolve(x: Array, weight: Array, *, stride: int) -> Array:
    pad = weight.shape[-1] // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]  # n c h w k k
    return np.tensordot(windows, weight, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def resnet_in_numpy(
    state: dict[str, Array], x: Array, *, depths: Sequence[int], convs: int, strided: int, eps: float, imagenet: bool
) -> Array:
    """The forward pass from the weights alone; `strided` of the `convs` in a block carries its stride."""

    def unit(x: Array, conv: str, bn: str, stride: int) -> Array:
        x = convolve(x, state[f"{conv}.weight"], stride=stride)
        weight, bias, mean, var = (
            state[f"{bn}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / np.sqrt(var + eps) * weight + bias

    x = np.maximum(unit(x, "conv1", "bn1", 2 if imagenet else 1), 0)
    if imagenet:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))  # zeros do, after a rectifier
        x = sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max(axis=(4, 5))
    for layer, depth in enumerate(depths, start=1):
        for i in range(depth):
            block, stride = f"layer{layer}.{i}", 2 if layer > 1 and i == 0 else 1
            out = x
            for j in range(1, convs + 1):
                out = unit(out, f"{block}.conv{j}", f"{block}.bn{j}", stride if j == strided else 1)
                out = np.maximum(out, 0) if j < convs else out
            if f"{block}.downsample.0.weight" in state:
                x = unit(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            x = np.maximum(out + x, 0)
    scores: Array = x.mean(axis=(2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    return scores


@pytest.mark.parametrize(
    ("arch", "depths", "convs", "strided", "eps", "imagenet"),
    [
        ("resnet20", [3, 3, 3], 2, 1, 1e-5, False),
        ("resnet18", [2, 2, 2, 2], 2, 1, 1e-5, False),
        ("resnet50", [3, 4, 6, 3], 3, 2, 1e-5, True),
        ("resnet50-keras", [3, 4, 6, 3], 3, 1, 1e-3, True),
    ],
)
def test_the_forward_pass_is_that_of_the_paper(
    arch: str, depths: list[int], convs: int, strided: int, eps: float, imagenet: bool
) -> None:
    torch.manual_seed(0)
    network = build_network(arch, num_classes=7, in_channels=3).eval()
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.1, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.1, 0.3)  # small, so that eps shows
    x = torch.rand(2, 3, 17, 16)
    state = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    expected = resnet_in_numpy(
        state, x.double().numpy(), depths=depths, convs=convs, strided=strided, eps=eps, imagenet=imagenet
    )
    assert np.isfinite(expected).all()
    assert expected.std(axis=0).max() > 1e-3 * np.abs(expected).max()  # the answer owes something to the input
    with torch.inference_mode():
        got = network.double()(x.double()).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.parametrize("arch", ["digits-cnn", "fast-resnet9", "patch-resnet10", "resnet20"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_network_takes_these_channels_and_gives_these_classes(arch: str, channels: int) -> None:
    network = build_network(arch, num_classes=5, in_channels=channels).eval()
    with torch.inference_mode():
        assert network(torch.rand(2, channels, 8, 8)).shape == (2, 5)


def test_the_small_networks_are_small() -> None:
    # 3 x 3 convolutions from the docstring, batch norm on each, and the last layer.
    widths = [(3, 16), (16, 32), (32, 32), (32, 32), (32, 64), (64, 128), (128, 128), (128, 128)]
    fast = sum(9 * i * o + 2 * o for i, o in widths) + 129 * 10
    assert count(build_network("fast-resnet9", num_classes=10, in_channels=3)) == fast
    assert 350_000 < fast < 450_000
    widths = [(48, 48), (48, 48), (48, 96), (96, 96), (96, 96), (96, 192), (192, 192), (192, 192)]
    patch = 36 * 3 * 48 + 2 * 48 + sum(9 * i * o + 2 * o for i, o in widths) + 193 * 10
    assert count(build_network("patch-resnet10", num_classes=10, in_channels=3)) == patch
    assert 1_000_000 < patch < 1_150_000
    digits = (9 * 1 + 1) * 16 + (9 * 16 + 1) * 32 + (32 * 16 + 1) * 64 + 65 * 10
    assert count(build_network("digits-cnn", num_classes=10, in_channels=1)) == digits


def test_a_patch_network_halves_the_maps_exactly() -> None:
    network = build_network("patch-resnet10", num_classes=10, in_channels=3).eval()
    x = torch.rand(1, 3, 32, 32)
    sizes = []
    with torch.inference_mode():
        for name in ("stem", "down1", "down2"):
            x = network.get_submodule(name)(x)
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(48, 16, 16), (96, 8, 8), (192, 4, 4)]


def test_an_unknown_architecture_is_told_what_there_is() -> None:
    with pytest.raises(ModelError, match=r"digits-cnn, .*resnet110.*arch='vgg16'"):
        build_network("vgg16", num_classes=10, in_channels=3)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_is_recognised_by_its_tensors_in_any_order(arch: str) -> None:
    with torch.device("meta"):
        state = build_network(arch, num_classes=17, in_channels=2).state_dict()
    expected = ["resnet50", "resnet50-keras"] if arch.startswith("resnet50") else [arch]
    assert matching_architectures(state) == expected
    assert matching_architectures(dict(sorted(state.items()))) == expected  # as safetensors gives it
    assert matching_architectures(dict(reversed(state.items()))) == expected


def test_tensors_of_another_shape_or_name_match_nothing() -> None:
    state = build_network("resnet20", num_classes=10, in_channels=3).state_dict()
    assert matching_architectures({}) == []
    assert matching_architectures({**state, "layer1.0.conv1.weight": torch.zeros(16, 16, 5, 5)}) == []
    assert matching_architectures({**state, "fc.weight": torch.zeros(10)}) == []
    assert matching_architectures({**state, "extra": torch.zeros(1)}) == []
    del state["fc.bias"]
    assert matching_architectures(state) == []
