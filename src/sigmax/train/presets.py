"""Settings with a name: those of the paper, those for a machine without an accelerator, and sensible defaults.

What the paper leaves open follows the field: stochastic gradient descent with momentum 0.9, weight decay
1e-4, batches of 256, and a learning rate that falls to a tenth every 50 epochs.
"""

from dataclasses import dataclass, field
from typing import Any

from sigmax.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Fields of a `Recipe`; the objective as `method` and `options`."""

    data: str  # the data set it is for
    says: str
    settings: dict[str, Any]
    method: str = "cohen"
    options: dict[str, Any] = field(default_factory=dict)
    sigmas: tuple[float, ...] = ()  # those of the paper; empty: any
    fine_tunes: bool = False  # it starts from a trained network


_STEP = {"batch": 256, "lr": 0.1, "schedule": "step", "drop_every": 50, "weight_decay": 1e-4}
_CIFAR10 = {"arch": "resnet18", "normalize": "cifar10", "augment": "crop-flip", "epochs": 200, **_STEP}
_IMAGENET = {"arch": "resnet50", "normalize": "imagenet", "augment": "crop-flip", "epochs": 90, **_STEP}
_FIFTY_FIRST = {"per_input": True, "warmup": 50, "search_steps": 1}  # 50 epochs with one sigma, 150 with their own
# Thirty epochs of fine-tuning; the learning rate is ours, the end of the schedule that trained the network.
_FINE_TUNE = {"per_input": True, "warmup": 0, "search_steps": 1, "epochs": 30, "lr": 1e-3, "schedule": "cosine"}
# For two cores: under half an hour to the accuracy under noise that a wide ResNet-18 has (docs/training.md).
_CPU = {
    "arch": "fast-resnet9",
    "normalize": "cifar10",
    "augment": "crop-flip",
    "epochs": 20,
    "batch": 256,
    "optimizer": "muon",
    "lr": 0.02,
    "weight_decay": 0.05,
}
_SMALL, _LARGE = (0.12, 0.25, 0.50), (0.25, 0.50, 1.0)

PRESETS: dict[str, Preset] = {
    "cpu-cifar10-cohen": Preset(data="cifar10", says="Cohen on two cores, 20 epochs", settings=_CPU),
    "paper-cifar10-cohen": Preset(data="cifar10", says="Cohen, 200 epochs", settings=_CIFAR10, sigmas=_SMALL),
    "paper-cifar10-cohen-ds2": Preset(
        data="cifar10",
        says="Cohen with per-input sigma after 50 of 200 epochs",
        settings={**_CIFAR10, **_FIFTY_FIRST},
        sigmas=_SMALL,
    ),
    "paper-cifar10-smoothadv": Preset(
        data="cifar10", says="SmoothAdv, 200 epochs", method="smoothadv", settings=_CIFAR10, sigmas=_SMALL
    ),
    "paper-cifar10-smoothadv-ds2": Preset(
        data="cifar10",
        says="SmoothAdv, fine-tuned with per-input sigma",
        method="smoothadv",
        options={"warmup": 0},
        settings={**_CIFAR10, **_FINE_TUNE},
        sigmas=_SMALL,
        fine_tunes=True,
    ),
    "paper-cifar10-macer": Preset(
        data="cifar10", says="MACER, 200 epochs", method="macer", settings={**_CIFAR10, "lr": 0.01}, sigmas=_SMALL
    ),
    "paper-cifar10-macer-ds2": Preset(
        data="cifar10",
        says="MACER with per-input sigma after 50 of 200 epochs",
        method="macer",
        settings={**_CIFAR10, **_FIFTY_FIRST, "lr": 0.01, "search_samples": 8},
        sigmas=_SMALL,
    ),
    "paper-imagenet-cohen": Preset(
        data="imagenet", says="Cohen, 90 epochs", settings={**_IMAGENET, "drop_every": 30}, sigmas=_LARGE
    ),
    "paper-imagenet-cohen-ds2": Preset(
        data="imagenet",
        says="Cohen, 30 epochs of fine-tuning with per-input sigma",
        settings={**_IMAGENET, **_FINE_TUNE},
        sigmas=_LARGE,
        fine_tunes=True,
    ),
    "paper-imagenet-smoothadv": Preset(
        data="imagenet",
        says="SmoothAdv, 90 epochs; the paper has epsilon=0.5 at sigma 0.25, else epsilon=1",
        method="smoothadv",
        options={"epsilon": 0.5},
        settings={**_IMAGENET, "drop_every": 30},
        sigmas=_LARGE,
    ),
    "paper-imagenet-smoothadv-ds2": Preset(
        data="imagenet",
        says="SmoothAdv, 30 epochs of fine-tuning with per-input sigma",
        method="smoothadv",
        options={"epsilon": 0.5, "warmup": 0},
        settings={**_IMAGENET, **_FINE_TUNE},
        sigmas=_LARGE,
        fine_tunes=True,
    ),
}

# What a data set needs where nothing else is said.
DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"arch": "digits-cnn", "epochs": 40, "batch": 64, "lr": 0.1},
    "mnist": {"arch": "fast-resnet9", "augment": "crop", "epochs": 10},
    "fashion-mnist": {"arch": "fast-resnet9", "augment": "crop-flip", "epochs": 20},
    "cifar10": _CPU,
    "imagenet": _IMAGENET,
}


def find_preset(name: str, data: str) -> Preset:
    """The preset of this name, for this data set."""
    if name not in PRESETS:
        raise InvalidInputError(f"expected a preset among {', '.join(PRESETS)}, got preset={name!r}")
    preset = PRESETS[name]
    if preset.data != data:
        raise InvalidInputError(f"expected {preset.data} for preset {name}, got data={data!r}")
    return preset
