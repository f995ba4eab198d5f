"""Network definitions. State dicts keep the usual names, so that published checkpoints load."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from sigmax.errors import ModelError


class Builder(Protocol):
    """Builds a network for so many classes and input channels."""

    def __call__(self, *, num_classes: int, in_channels: int) -> nn.Module:
        """Return the network with fresh weights."""
        ...


def _conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel - 1) // 2, bias=False)


@final
class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, *, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, stride=stride)
        self.bn1 = norm(width)
        self.conv2 = _conv(width, width)
        self.bn2 = norm(width)
        self.downsample = _shortcut(inputs, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, width, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(out)) + shortcut)


@final
class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut; the stride sits on the 3 x 3 one by default."""

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        stride: int,
        norm: Callable[[int], nn.Module],
        stride_first: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, kernel=1, stride=stride if stride_first else 1)
        self.bn1 = norm(width)
        self.conv2 = _conv(width, width, stride=1 if stride_first else stride)
        self.bn2 = norm(width)
        self.conv3 = _conv(width, 4 * width, kernel=1)
        self.bn3 = norm(4 * width)
        self.downsample = _shortcut(inputs, 4 * width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, 4 width, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = relu(self.bn1(self.conv1(x)))
        out = relu(self.bn2(self.conv2(out)))
        return relu(self.bn3(self.conv3(out)) + shortcut)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(_conv(inputs, outputs, kernel=1, stride=stride), norm(outputs))


@final
class ResNet(nn.Module):
    """The residual networks of He et al. 2016, for small images or for ImageNet.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: Blocks in each stage.
        widths: Channels of each stage, before the block's expansion.
        num_classes: Outputs.
        in_channels: Channels of the input.
        small_images: A 3 x 3 stem without pooling instead of 7 x 7 and max-pooling.
        norm: Builds the normalisation of so many channels.
        expansion: Channels that a block gives, per channel of its width.
    """

    def __init__(
        self,
        block: Callable[..., nn.Module],
        depths: Sequence[int],
        widths: Sequence[int],
        *,
        num_classes: int,
        in_channels: int = 3,
        small_images: bool = True,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        expansion: int = 1,
    ) -> None:
        super().__init__()
        self.small_images = small_images
        if small_images:
            self.conv1 = _conv(in_channels, widths[0])
        else:
            self.conv1 = _conv(in_channels, widths[0], kernel=7, stride=2)
        self.bn1 = norm(widths[0])
        channels = widths[0]
        self.stages = [f"layer{i + 1}" for i in range(len(depths))]
        for i, (name, depth, width) in enumerate(zip(self.stages, depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                blocks.append(block(channels, width, stride=2 if i > 0 and j == 0 else 1, norm=norm))
                channels = width * expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            # On the meta device only shapes count, and normal_ takes a second to import what it needs.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        x = relu(self.bn1(self.conv1(x)))
        if not self.small_images:
            x = max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@final
class FastResNet(nn.Module):
    """A narrow nine-layer residual network with max-pooling: 0.4 M parameters, made for CPUs."""

    def __init__(self, *, num_classes: int, in_channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.stem = _unit(in_channels, width)
        self.layer1 = _unit(width, 2 * width)
        self.residual1 = nn.Sequential(_unit(2 * width, 2 * width), _unit(2 * width, 2 * width))
        self.layer2 = _unit(2 * width, 4 * width)
        self.layer3 = _unit(4 * width, 8 * width)
        self.residual3 = nn.Sequential(_unit(8 * width, 8 * width), _unit(8 * width, 8 * width))
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        x = max_pool2d(self.layer1(self.stem(x)), 2)
        x = x + self.residual1(x)
        x = max_pool2d(self.layer2(x), 2)
        x = max_pool2d(self.layer3(x), 2)
        x = x + self.residual3(x)
        return self.fc(x.amax(dim=(2, 3)))  # type: ignore[no-any-return]


@final
class PatchResNet(nn.Module):
    """Ten layers of which none runs at full resolution: 1.1 M parameters, more accurate per second on CPUs.

    The first convolution looks at overlapping patches of 6 x 6 pixels, two apart, so that the width goes
    where it is cheap: to 16 x 16, 8 x 8 and 4 x 4 maps.
    """

    def __init__(self, *, num_classes: int, in_channels: int = 3, width: int = 48) -> None:
        super().__init__()
        self.stem = _unit(in_channels, width, kernel=6, stride=2)
        self.residual1 = nn.Sequential(_unit(width, width), _unit(width, width))
        self.down1 = _unit(width, 2 * width, stride=2)
        self.residual2 = nn.Sequential(_unit(2 * width, 2 * width), _unit(2 * width, 2 * width))
        self.down2 = _unit(2 * width, 4 * width, stride=2)
        self.residual3 = nn.Sequential(_unit(4 * width, 4 * width), _unit(4 * width, 4 * width))
        self.fc = nn.Linear(4 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        x = self.stem(x)
        x = self.down1(x + self.residual1(x))
        x = self.down2(x + self.residual2(x))
        x = x + self.residual3(x)
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _unit(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU; a stride of 1 keeps the size of a map, one of 2 halves it."""
    return nn.Sequential(_conv(inputs, outputs, kernel=kernel, stride=stride), nn.BatchNorm2d(outputs), nn.ReLU())


@final
class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers for 8 x 8 digits: seconds to train, microseconds to run."""

    def __init__(self, *, num_classes: int, in_channels: int = 1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels, 8, 8) to logits."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


def _cifar_resnet(depth: int) -> Builder:
    blocks = (depth - 2) // 6
    return partial(ResNet, BasicBlock, [blocks] * 3, [16, 32, 64])


_WIDE = [64, 128, 256, 512]
_RESNET50 = partial(ResNet, depths=[3, 4, 6, 3], widths=_WIDE, small_images=False, expansion=4)
ARCHITECTURES: dict[str, Builder] = {
    "digits-cnn": DigitsCNN,
    "fast-resnet9": FastResNet,
    "patch-resnet10": PatchResNet,
    "resnet18": partial(ResNet, BasicBlock, [2, 2, 2, 2], _WIDE),  # CIFAR form
    "resnet20": _cifar_resnet(20),
    "resnet56": _cifar_resnet(56),
    "resnet110": _cifar_resnet(110),
    "resnet50": partial(_RESNET50, Bottleneck),
    # Keras' form of the same: the stride on the first 1 x 1 convolution, batch norm with eps = 1e-3.
    "resnet50-keras": partial(
        _RESNET50, partial(Bottleneck, stride_first=True), norm=partial(nn.BatchNorm2d, eps=1e-3)
    ),
}


def build_network(arch: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """A network by its name, with fresh weights."""
    if arch not in ARCHITECTURES:
        raise ModelError(f"expected arch to be one of {', '.join(ARCHITECTURES)}, got arch={arch!r}")
    return ARCHITECTURES[arch](num_classes=num_classes, in_channels=in_channels)


def matching_architectures(state: Mapping[str, Tensor]) -> list[str]:
    """The architectures whose tensors have exactly these names and shapes."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    candidates = [arch for arch in ARCHITECTURES if _shapes(arch, 1, 1).keys() == shapes.keys()]
    return [arch for arch in candidates if _shapes(arch, *(network_sizes(arch, state) or (1, 1))) == shapes]


def network_sizes(arch: str, state: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Classes and input channels of these weights of `arch`; None where its first or last layer is missing.

    Found by name: the order of a state dict says nothing, because safetensors sorts it.
    """
    layers = [name for name, shape in _shapes(arch, 1, 1).items() if len(shape) >= 2]
    first, last = state.get(layers[0]), state.get(layers[-1])
    if first is None or last is None or first.ndim < 2 or last.ndim < 2:
        return None
    return last.shape[0], first.shape[1]


@cache
def _shapes(arch: str, num_classes: int, in_channels: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        network = build_network(arch, num_classes=num_classes, in_channels=in_channels)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
