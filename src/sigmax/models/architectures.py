"""Network definitions. State dicts keep the usual names, so that published checkpoints load."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Protocol, final

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, max_pool2d, relu, silu

from sigmax.errors import ModelError


class Builder(Protocol):
    """Builds a network for so many classes and input channels."""

    def __call__(self, *, num_classes: int, in_channels: int) -> nn.Module:
        """Return the network with fresh weights."""
        ...


AWARE = "-aware"  # the end of an architecture's name: it takes a noise level beside its input
_CODE = 64  # numbers that stand for the level inside a network


def takes_level(network: object) -> bool:
    """Whether a network is called with a noise level for each row beside the inputs."""
    return bool(getattr(network, "takes_level", False))


def told(network: Callable[..., Tensor], x: Tensor, tau: Tensor | None) -> Tensor:
    """f(x, tau): a noise-aware network is told the level of each row, others see the input alone."""
    return network(x, tau) if takes_level(network) else network(x)


@final
class LevelCode(nn.Module):
    """Noise levels (batch,) as codes (batch, 64): a small network on log tau."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, _CODE)
        self.out = nn.Linear(_CODE, _CODE)

    def forward(self, tau: Tensor) -> Tensor:
        """Map levels to codes, in full precision: bfloat16 would tell nearby levels apart badly."""
        with torch.autocast(tau.device.type, enabled=False):
            u = (tau.float() / 0.25).log().unsqueeze(-1)  # batch 1: around 0 for the usual levels
            return silu(self.out(silu(self.hidden(u))))


@final
class LevelNorm(nn.BatchNorm2d):
    """Batch norm whose scale and shift follow the level that the network is told; plain batch norm at the start."""

    takes_level = True

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps)
        self.film = nn.Linear(_CODE, 2 * channels)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:  # type: ignore[override]
        """Normalise, then scale and shift: every row by its own level, or all by one where there is one code."""
        scale, shift = self.film(code).chunk(2, dim=-1)  # codes channels
        if len(code) == 1 and not self.training:  # one level for the batch costs nothing: it joins batch norm's own
            scale, shift = 1 + scale[0], shift[0]
            weight, bias = self.weight * scale, self.bias * scale + shift
            return batch_norm(x, self.running_mean, self.running_var, weight, bias, eps=self.eps)
        y = super().forward(x)
        return torch.addcmul(shift[..., None, None], y, 1 + scale[..., None, None])


@final
class LevelChain(nn.Sequential):
    """Modules one after another; those that take a level, or its code, are given it."""

    takes_level = True

    def forward(self, x: Tensor, level: Tensor) -> Tensor:  # type: ignore[override]
        """Map x through all modules."""
        for module in self:
            x = told(module, x, level)
        return x


def _chain(*modules: nn.Module) -> nn.Sequential:
    """The modules one after another, with the level for those that take one."""
    return (LevelChain if any(map(takes_level, modules)) else nn.Sequential)(*modules)


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

    @property
    def takes_level(self) -> bool:
        """Whether it is called with a code of the noise level."""
        return takes_level(self.bn1)

    def forward(self, x: Tensor, code: Tensor | None = None) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, width, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else told(self.downsample, x, code)
        out = relu(told(self.bn1, self.conv1(x), code))
        return relu(told(self.bn2, self.conv2(out), code) + shortcut)


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

    @property
    def takes_level(self) -> bool:
        """Whether it is called with a code of the noise level."""
        return takes_level(self.bn1)

    def forward(self, x: Tensor, code: Tensor | None = None) -> Tensor:
        """Map (batch, inputs, h, w) to (batch, 4 width, h / stride, w / stride)."""
        shortcut = x if self.downsample is None else told(self.downsample, x, code)
        out = relu(told(self.bn1, self.conv1(x), code))
        out = relu(told(self.bn2, self.conv2(out), code))
        return relu(told(self.bn3, self.conv3(out), code) + shortcut)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return _chain(_conv(inputs, outputs, kernel=1, stride=stride), norm(outputs))


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
            self.add_module(name, _chain(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        self.level = LevelCode() if takes_level(self.bn1) else None
        for module in self.modules():
            # On the meta device only shapes count, and normal_ takes a second to import what it needs.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def takes_level(self) -> bool:
        """Whether it is told a noise level."""
        return self.level is not None

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """Map images, and the levels that a noise-aware network is told, to logits."""
        code = None if self.level is None else self.level(tau)
        x = relu(told(self.bn1, self.conv1(x), code))
        if not self.small_images:
            x = max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for name in self.stages:
            x = told(self.get_submodule(name), x, code)
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

    def __init__(
        self,
        *,
        num_classes: int,
        in_channels: int = 3,
        width: int = 48,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        unit = partial(_unit, norm=norm)
        self.stem = unit(in_channels, width, kernel=6, stride=2)
        self.residual1 = _chain(unit(width, width), unit(width, width))
        self.down1 = unit(width, 2 * width, stride=2)
        self.residual2 = _chain(unit(2 * width, 2 * width), unit(2 * width, 2 * width))
        self.down2 = unit(2 * width, 4 * width, stride=2)
        self.residual3 = _chain(unit(4 * width, 4 * width), unit(4 * width, 4 * width))
        self.fc = nn.Linear(4 * width, num_classes)
        self.level = LevelCode() if takes_level(self.stem) else None

    @property
    def takes_level(self) -> bool:
        """Whether it is told a noise level."""
        return self.level is not None

    def forward(self, x: Tensor, tau: Tensor | None = None) -> Tensor:
        """Map images, and the levels that a noise-aware network is told, to logits."""
        code = None if self.level is None else self.level(tau)
        x = told(self.stem, x, code)
        x = told(self.down1, x + told(self.residual1, x, code), code)
        x = told(self.down2, x + told(self.residual2, x, code), code)
        x = x + told(self.residual3, x, code)
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _unit(
    inputs: int,
    outputs: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
) -> nn.Sequential:
    """Convolution, batch norm, ReLU; a stride of 1 keeps the size of a map, one of 2 halves it."""
    return _chain(_conv(inputs, outputs, kernel=kernel, stride=stride), norm(outputs), nn.ReLU())


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


def _cifar_resnet(depth: int) -> Callable[..., nn.Module]:
    blocks = (depth - 2) // 6
    return partial(ResNet, BasicBlock, [blocks] * 3, [16, 32, 64])


def _with_aware(plain: dict[str, Callable[..., nn.Module]]) -> dict[str, Builder]:
    """Each network, and its form that is told a noise level."""
    return plain | {name + AWARE: partial(builder, norm=LevelNorm) for name, builder in plain.items()}


_WIDE = [64, 128, 256, 512]
_RESNET50 = partial(ResNet, depths=[3, 4, 6, 3], widths=_WIDE, small_images=False, expansion=4)
ARCHITECTURES: dict[str, Builder] = {
    "digits-cnn": DigitsCNN,
    "fast-resnet9": FastResNet,
    **_with_aware(
        {
            "patch-resnet10": PatchResNet,
            "patch-resnet10-wide": partial(PatchResNet, width=96),
            "resnet18": partial(ResNet, BasicBlock, [2, 2, 2, 2], _WIDE),  # CIFAR form
            "resnet20": _cifar_resnet(20),
            "resnet56": _cifar_resnet(56),
            "resnet110": _cifar_resnet(110),
        }
    ),
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
