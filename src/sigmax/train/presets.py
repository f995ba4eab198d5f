"""Settings with a name: those of the paper, those for a machine without an accelerator, and sensible defaults.

What the paper leaves open follows the field: stochastic gradient descent with momentum 0.9, weight decay
1e-4, batches of 256, and a learning rate that falls to a tenth every 50 epochs, on ImageNet 30. MACER has its own:
weight decay 5e-4, batches of 64, and a first drop after 200 epochs.
"""

from dataclasses import dataclass, field
from typing import Any

from sigmax.errors import InvalidInputError, did_you_mean
from sigmax.models import ModelCard
from sigmax.noise import Uniform
from sigmax.train.objectives import make_objective
from sigmax.train.recipe import PER_INPUT, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Fields of a `Recipe`; the objective as `method` and `options`."""

    data: str  # the data set it is for
    says: str
    settings: dict[str, Any]
    method: str = "cohen"
    options: dict[str, Any] = field(default_factory=dict)
    options_at: dict[float, dict[str, Any]] = field(default_factory=dict)  # those that depend on sigma
    sigmas: tuple[float, ...] = ()  # those of the paper; empty: any
    fine_tunes: bool = False  # it starts from a trained network


_STEP = {
    "batch": 256,
    "optimizer": "sgd",
    "lr": 0.1,
    "schedule": "step",
    "drop_every": 50,
    "weight_decay": 1e-4,
}
_CIFAR10 = {"arch": "resnet18", "normalize": "cifar10", "augment": "crop-flip", "epochs": 200, **_STEP}
_IMAGENET = {"arch": "resnet50", "normalize": "imagenet", "augment": "crop-flip", "epochs": 90, **_STEP}
_MACER = {"lr": 0.01, "drop_every": 200, "weight_decay": 5e-4, "batch": 64}  # each example is 64 noisy copies
_FIFTY_FIRST = {"per_input": True, "warmup": 50, "search_steps": 1}  # 50 epochs with one sigma, 150 with their own
# Thirty epochs of fine-tuning; the learning rate is ours, the end of the schedule that trained the network.
_FINE_TUNE = {"per_input": True, "warmup": 0, "search_steps": 1, "epochs": 30, "lr": 1e-3, "schedule": "cosine"}
# For two cores: docs/training.md has what it reaches.
_CPU = {
    "arch": "patch-resnet10",
    "normalize": "cifar10",
    "augment": "crop-flip",
    "epochs": 19,
    "batch": 256,
    "optimizer": "muon",
    "lr": 0.02,
    "weight_decay": 0.05,
}
# Two epochs from a network of the above. The step on sigma is longer than the paper's 1e-4, so that two visits can
# move it as far as the paper's 150.
_CPU_FINE_TUNE = {**_CPU, "epochs": 2, "lr": 0.005, "schedule": "cosine"}
_CPU_PER_INPUT = {"per_input": True, "search_steps": 1, "step_size": 7.5e-3}
_ZETA = {0.25: {"epsilon": 0.5}, 0.50: {"epsilon": 1.0}, 1.0: {"epsilon": 1.0}}  # the paper's, on ImageNet
_SMALL, _LARGE = (0.12, 0.25, 0.50), (0.25, 0.50, 1.0)

PRESETS: dict[str, Preset] = {
    "cpu-cifar10-cohen": Preset(data="cifar10", says="Cohen on two cores, 19 epochs", settings=_CPU),
    "cpu-cifar10-cohen-retuned": Preset(
        data="cifar10",
        says="Cohen on two cores, 6 epochs from a network trained at another sigma",
        settings={**_CPU, "epochs": 6, "lr": 0.01},
        fine_tunes=True,
    ),
    "cpu-cifar10-cohen-ds2": Preset(
        data="cifar10",
        says="Cohen with per-input sigma on two cores, 2 epochs of fine-tuning",
        settings={**_CPU_FINE_TUNE, **_CPU_PER_INPUT},
        fine_tunes=True,
    ),
    "cpu-cifar10-smoothadv": Preset(
        data="cifar10",
        says="SmoothAdv on two cores, 2 epochs of fine-tuning",
        method="smoothadv",
        options={"warmup": 1},
        settings=_CPU_FINE_TUNE,
        fine_tunes=True,
    ),
    "cpu-cifar10-macer": Preset(
        data="cifar10",
        says="MACER with 8 noisy copies instead of 64 on two cores, 1 epoch of fine-tuning",
        method="macer",
        options={"draws": 8},
        settings={**_CPU_FINE_TUNE, "epochs": 1, "clip": 1.0},
        fine_tunes=True,
    ),
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
        data="cifar10", says="MACER, 200 epochs", method="macer", settings={**_CIFAR10, **_MACER}, sigmas=_SMALL
    ),
    "paper-cifar10-macer-ds2": Preset(
        data="cifar10",
        says="MACER with per-input sigma after 50 of 200 epochs",
        method="macer",
        settings={**_CIFAR10, **_FIFTY_FIRST, **_MACER, "search_samples": 8},
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
        says="SmoothAdv, 90 epochs",
        method="smoothadv",
        options_at=_ZETA,
        settings={**_IMAGENET, "drop_every": 30},
        sigmas=_LARGE,
    ),
    "paper-imagenet-smoothadv-ds2": Preset(
        data="imagenet",
        says="SmoothAdv, 30 epochs of fine-tuning with per-input sigma",
        method="smoothadv",
        options={"warmup": 0},
        options_at=_ZETA,
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
        raise InvalidInputError(
            f"expected a preset among {', '.join(PRESETS)}, got preset={name!r}{did_you_mean(name, PRESETS)}"
        )
    preset = PRESETS[name]
    if preset.data != data:
        raise InvalidInputError(f"expected {preset.data} for preset {name}, got data={data!r}")
    return preset


def make_recipe(
    data: str,
    given: dict[str, Any],
    *,
    method: str | None = None,
    options: dict[str, Any] | None = None,
    preset: str | None = None,
    inherited: dict[str, Any] | None = None,
) -> Recipe:
    """What was asked; else what the network to start from says; else the preset, or what suits the data set.

    Args:
        data: The data set, as `load_source` takes it.
        given: Fields of the recipe.
        method: The objective.
        options: Of the objective.
        preset: Settings by name.
        inherited: Fields that a network to start from decides; None: there is none.
    """
    kind = data.partition(":")[0]
    chosen = find_preset(preset, kind) if preset else None
    settings: dict[str, Any] = dict(chosen.settings if chosen else DEFAULTS.get(kind, {}))
    if given.get("optimizer", settings.get("optimizer")) != settings.get("optimizer"):
        # The learning rate of one optimizer means nothing to another.
        settings = {name: value for name, value in settings.items() if name not in ("lr", "weight_decay")}
    if inherited is None and chosen and chosen.fine_tunes:
        raise InvalidInputError(f"expected --from NETWORK with preset {preset}, which fine-tunes; got none")
    settings |= {**(inherited or {}), **given}
    for needed in ("sigma", "arch"):
        if needed not in settings:
            raise InvalidInputError(f"expected --{needed}, got none; say it, or start --from a network that does")
    idle = [f"{name}={given[name]}" for name in PER_INPUT if name in given]
    if idle and not settings.get("per_input"):
        raise InvalidInputError(
            f"expected per-input sigma with {', '.join(idle)}, got one sigma for all; "
            "add --per-input (in a file: per_input = true), or leave these out"
        )
    method = method or (chosen.method if chosen else "cohen")
    merged: dict[str, Any] = {}
    if chosen and method == chosen.method:
        merged = {**chosen.options, **chosen.options_at.get(settings["sigma"], {})}
    return Recipe(objective=make_objective(method, merged | (options or {})), **settings)


def decided_by(card: ModelCard) -> dict[str, Any]:
    """The fields of a recipe that a network to start from decides."""
    numbers = "/".join(",".join(str(value) for value in part) for part in (card.mean, card.std))
    settings: dict[str, Any] = {"arch": card.arch, "normalize": numbers if card.mean else "none"}
    if card.sigma is not None:
        settings["sigma"] = card.sigma
    if card.noise is not None:
        settings["norm"] = "l1" if card.noise == Uniform.name else "l2"
    return settings
