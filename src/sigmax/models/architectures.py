"""Network architectures. Parameter names follow the published checkpoints, so that these load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, relu

from sigmax.errors import ModelError, did_you_mean
from sigmax.models.levels import LEVEL_PARTS, LevelCode, LevelNorm, chain, takes_level, told

Norm = Callable[[int], nn.Module]  # builds the normalisation of this many channels
AWARE = "-aware"  # ends the names of architectures that take a noise level


def _conv(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=(kernel - 1) // 2, bias=False)


def _unit(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Convolution, norm, ReLU. A stride of 1 keeps the size of a map, a stride of 2 halves it."""
    return chain(_conv(inputs, outputs, kernel=kernel, stride=stride), norm(outputs), nn.ReLU())


@final
class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every `stride`-th pixel, with as many empty channels before as after."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, outputs, h / stride, w / stride)."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class _Block(nn.Module):
    """Convolutions, given by output channels, kernel and stride, each followed by its norm, around a shortcut.

    Where the shape changes, the shortcut is a convolution, or has no parameters if `is_padded`.
    """

    def __init__(
        self, inputs: int, layers: Sequence[tuple[int, int, int]], norm: Norm, *, is_padded: bool = False
    ) -> None:
        super().__init__()
        channels, reduction = inputs, 1
        for i, (outputs, kernel, stride) in enumerate(layers, start=1):
            self.add_module(f"conv{i}", _conv(channels, outputs, kernel=kernel, stride=stride))
            self.add_module(f"bn{i}", norm(outputs))
            channels, reduction = outputs, reduction * stride
        self.downsample: nn.Module | None = None
        if (reduction > 1 or channels != inputs) and is_padded:
            self.downsample = PaddedShortcut(inputs, channels, stride=reduction)
        elif reduction > 1 or channels != inputs:
            self.downsample = chain(_conv(inputs, channels, kernel=1, stride=reduction), norm(channels))

    @property
    def takes_level(self) -> bool:
        """Whether it takes a code of the noise level."""
        return takes_level(self.bn1)

    def forward(self, x: Tensor, code: Tensor | None = None) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, channels, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else told(self.downsample, x, code)
        parts = [module for name, module in self.named_children() if name != "downsample"]
        for conv, norm in zip(parts[:-2:2], parts[1:-2:2], strict=True):
            x = relu(told(norm, conv(x), code))
        return relu(told(parts[-1], parts[-2](x), code) + shortcut)


@final
class BasicBlock(_Block):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, *, stride: int, norm: Norm, is_padded: bool = False) -> None:
        super().__init__(inputs, [(width, 3, stride), (width, 3, 1)], norm, is_padded=is_padded)


@final
class Bottleneck(_Block):
    """1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut; the 3 x 3 one has the stride by default."""

    def __init__(self, inputs: int, width: int, *, stride: int, norm: Norm, stride_first: bool = False) -> None:
        first, second = (stride, 1) if stride_first else (1, stride)
        super().__init__(inputs, [(width, 1, first), (width, 3, second), (4 * width, 1, 1)], norm)


@final
class ResNet(nn.Module):
    """The residual networks of He et al. 2016, for small images or for ImageNet.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: Blocks in each stage.
        widths: Channels of each stage, before the block's expansion.
        small_images: Use a 3 x 3 stem without pooling instead of 7 x 7 and max-pooling.
        expansion: Output channels of a block divided by its width.
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
        norm: Norm = nn.BatchNorm2d,
        expansion: int = 1,
    ) -> None:
        super().__init__()
        self.small_images = small_images
        kernel, stride = (3, 1) if small_images else (7, 2)
        self.conv1 = _conv(in_channels, widths[0], kernel=kernel, stride=stride)
        self.bn1 = norm(widths[0])
        channels = widths[0]
        self.stages = [f"layer{i + 1}" for i in range(len(depths))]
        for i, (name, depth, width) in enumerate(zip(self.stages, depths, widths, strict=True)):
            blocks = []
            for j in range(depth):
                blocks.append(block(channels, width, stride=2 if i > 0 and j == 0 else 1, norm=norm))
                channels = width * expansion
            self.add_module(name, chain(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        self.level = LevelCode() if takes_level(self.bn1) else None
        for module in self.modules():
            # The meta device needs shapes only, and normal_ would take a second to import its code there.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def takes_level(self) -> bool:
        """Whether it takes a noise level."""
        return self.level is not None

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """Map images to logits; a noise-aware network also takes their noise levels."""
        code = None if self.level is None else self.level(tau)
        x = relu(told(self.bn1, self.conv1(x), code))
        if not self.small_images:
            x = max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for name in self.stages:
            x = told(self.get_submodule(name), x, code)
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@final
class FastResNet(nn.Module):
    """Nine narrow residual layers with max-pooling."""

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
    """Ten layers, none of which runs at full resolution.

    The first convolution sees overlapping patches of 6 x 6 pixels, two pixels apart. So the width goes where it is
    cheap: to maps of 16 x 16, 8 x 8 and 4 x 4.
    """

    def __init__(self, *, num_classes: int, in_channels: int = 3, width: int = 48, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        unit = partial(_unit, norm=norm)
        self.stem = unit(in_channels, width, kernel=6, stride=2)
        self.residual1 = chain(unit(width, width), unit(width, width))
        self.down1 = unit(width, 2 * width, stride=2)
        self.residual2 = chain(unit(2 * width, 2 * width), unit(2 * width, 2 * width))
        self.down2 = unit(2 * width, 4 * width, stride=2)
        self.residual3 = chain(unit(4 * width, 4 * width), unit(4 * width, 4 * width))
        self.fc = nn.Linear(4 * width, num_classes)
        self.level = LevelCode() if takes_level(self.stem) else None

    @property
    def takes_level(self) -> bool:
        """Whether it takes a noise level."""
        return self.level is not None

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """Map images to logits; a noise-aware network also takes their noise levels."""
        code = None if self.level is None else self.level(tau)
        x = told(self.stem, x, code)
        x = told(self.down1, x + told(self.residual1, x, code), code)
        x = told(self.down2, x + told(self.residual2, x, code), code)
        x = x + told(self.residual3, x, code)
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@final
class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers for 8 x 8 images."""

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


@final
@dataclass(frozen=True, slots=True)
class Architecture:
    """A network that users ask for by name."""

    name: str
    description: str  # one line
    build: Callable[..., nn.Module]  # takes num_classes and in_channels, and sets fresh weights
    preprocess: str | None = None  # how image files become its inputs, where a checkpoint does not say it

    def aware(self) -> "Architecture":
        """The form that takes a noise level."""
        build = partial(self.build, norm=LevelNorm)
        return Architecture(self.name + AWARE, f"{self.description}; takes the noise level as an input", build)


def _cifar_resnet(depth: int) -> Architecture:
    build = partial(ResNet, BasicBlock, [(depth - 2) // 6] * 3, [16, 32, 64])
    return Architecture(f"resnet{depth}", f"residual network of {depth} layers for CIFAR-10", build)


def _padded_resnet(depth: int) -> Architecture:
    build = partial(ResNet, partial(BasicBlock, is_padded=True), [(depth - 2) // 6] * 3, [16, 32, 64])
    text = f"residual network of {depth} layers for CIFAR-10, with shortcuts without parameters"
    return Architecture(f"resnet{depth}-padded", text, build)


_WIDE = [64, 128, 256, 512]
_RESNET50 = partial(ResNet, depths=[3, 4, 6, 3], widths=_WIDE, small_images=False, expansion=4)
_KERAS50 = partial(_RESNET50, partial(Bottleneck, stride_first=True), norm=partial(nn.BatchNorm2d, eps=1e-3))
_PLAIN = [  # each has a form that takes a noise level
    Architecture("patch-resnet10", "1.1 M parameters, more accurate per second on CPUs than fast-resnet9", PatchResNet),
    Architecture("patch-resnet10-wide", "patch-resnet10 at twice the width", partial(PatchResNet, width=96)),
    Architecture("resnet18", "ResNet-18 for small images", partial(ResNet, BasicBlock, [2, 2, 2, 2], _WIDE)),
    *map(_cifar_resnet, (20, 56, 110)),
]
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("digits-cnn", "small network for 8 x 8 digits, trained in seconds", DigitsCNN),
        Architecture("fast-resnet9", "0.4 M parameters, made for CPUs", FastResNet),
        *_PLAIN,
        *(architecture.aware() for architecture in _PLAIN),
        *map(_padded_resnet, (20, 32, 44, 56, 110)),
        Architecture("resnet50", "ResNet-50 for ImageNet", partial(_RESNET50, Bottleneck), "imagenet"),
        Architecture(
            "resnet50-keras", "ResNet-50 of Keras: stride on the first convolution, eps = 1e-3", _KERAS50, "imagenet"
        ),
    )
}


def build_network(arch: str, *, num_classes: int, in_channels: int) -> nn.Module:
    """Build a network by name, with fresh weights."""
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"expected arch to be one of {known}, got arch={arch!r}{did_you_mean(arch, ARCHITECTURES)}")
    return ARCHITECTURES[arch].build(num_classes=num_classes, in_channels=in_channels)


def matching_architectures(state: Mapping[str, Tensor]) -> list[str]:
    """The architectures whose tensors have exactly these names and shapes."""
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    candidates = [arch for arch in ARCHITECTURES if _shapes(arch, 1, 1).keys() == shapes.keys()]
    return [arch for arch in candidates if _shapes(arch, *(network_sizes(arch, state) or (1, 1))) == shapes]


def network_sizes(arch: str, state: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Classes and input channels of these weights of `arch`; None where its first or last layer is missing.

    Layers are found by name, because safetensors sorts a state dict.
    """
    shapes = _shapes(arch, 1, 1)
    layers = [name for name, shape in shapes.items() if len(shape) >= 2 and not LEVEL_PARTS & {*name.split(".")}]
    first, last = state.get(layers[0]), state.get(layers[-1])
    if first is None or last is None or first.ndim < 2 or last.ndim < 2:
        return None
    return last.shape[0], first.shape[1]


@cache
def _shapes(arch: str, num_classes: int, in_channels: int) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        network = build_network(arch, num_classes=num_classes, in_channels=in_channels)
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
