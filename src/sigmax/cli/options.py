"""Groups of options that several commands share, and the requests that they make."""

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigmax.errors import InvalidInputError

if TYPE_CHECKING:
    from sigmax.models import LoadedModel
    from sigmax.models.reference import ModelReference
    from sigmax.noise import SmoothingDistribution
    from sigmax.search import SigmaSearch


class Outputs(StrEnum):
    """What the model returns."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"


class Backend(StrEnum):
    """What runs the network."""

    EAGER = "eager"
    COMPILE = "compile"
    OPENVINO = "openvino"
    OPENVINO_INT8 = "openvino-int8"


BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        help="Noisy samples per forward pass.",
        show_default="the fastest of the eager network, found by a probe and remembered",
    ),
]
BackendOption = Annotated[
    Backend,
    typer.Option(
        help="What runs the network: eager; compile (torch.compile, takes half a minute to start); openvino; "
        "openvino-int8, the network in 8-bit integers: fastest on CPUs, and then the 8-bit network is certified. "
        "A memory never mixes answers of two backends."
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="Where the model runs; by default an accelerator if any.")]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        "--noise",
        "--norm",
        help="gaussian (l2 balls), uniform (l1 balls) or package.module:Class; by default that of the training.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Allow fetching CIFAR-10 where it is missing.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how it runs."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint, an ONNX file, a folder with a model.safetensors, zoo:NAME or package.module:factory.",
            show_default=False,
        ),
    ] = None
    arch: Annotated[
        str | None, typer.Option(help="Architecture, if the checkpoint does not say it.", show_default=False)
    ] = None
    normalize: Annotated[
        str | None,
        typer.Option(
            help="Normalisation before the network, if the checkpoint does not say it: none, cifar10, imagenet, "
            "cifar10-mean, imagenet-mean, imagenet-keras, or MEAN,…/STD,….",
            show_default=False,
        ),
    ] = None
    outputs: Annotated[Outputs | None, typer.Option(help="What your own model returns.", show_default="logits")] = None
    classes: Annotated[
        int | None, typer.Option(help="Classes of a model that does not say; certify takes those of the data.")
    ] = None
    batch: BatchOption = None
    backend: BackendOption = Backend.EAGER
    device: DeviceOption = None

    def reference(self) -> "ModelReference":
        """The model that the options name."""
        from sigmax.models.reference import ModelReference

        if self.model is None:
            raise InvalidInputError("expected a MODEL, got none; name a checkpoint, a folder, zoo:NAME or a factory")
        return ModelReference(
            name=self.model,
            arch=self.arch,
            normalize=self.normalize,
            outputs=None if self.outputs is None else self.outputs.value,
            classes=self.classes,
            backend=self.backend.value,
            device=self.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Which noise, and how its level is chosen."""

    sigma: Annotated[
        float | None,
        typer.Option(help="Noise level, and where a search starts. By default what the model was trained with."),
    ] = None
    per_input: Annotated[bool, typer.Option("--per-input", help="Choose sigma per input.")] = False
    search: Annotated[
        str | None,
        typer.Option(
            help="How sigma is chosen (implies --per-input). halving: tries a few sigmas and fits a curve, without "
            "gradients. ascent: follows the gradient of the radius. ascent-paper: the paper's Algorithm 1. grid: the "
            "paper's baseline. package.module:Class: your own.",
            show_default="halving",
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(help="K, ascent steps; the grid gets 2 K evaluations, as the paper counts.", show_default="900"),
    ] = None
    search_samples: Annotated[
        int | None, typer.Option(help="Noise draws per ascent step or grid point.", show_default="1")
    ] = None
    search_step_size: Annotated[
        float | None, typer.Option(help="Step size of the sigma ascent.", show_default="0.0001")
    ] = None
    bounds: Annotated[
        str | None,
        typer.Option(help="LOW,HIGH: sigma of halving and ascent stays inside.", show_default="sigma / 4, 2 sigma"),
    ] = None
    search_option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, any other setting of the search; repeatable.")
    ] = None
    noise: NoiseOption = None
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--float",
            help="Exact: integer noise on 8-bit images, and certificates that hold in floating point. "
            "Other inputs always get --float.",
        ),
    ] = True

    def make_search(self, loaded: "LoadedModel") -> "SigmaSearch":
        """The search that the options ask for."""
        from sigmax.search import make_search

        initial = self.sigma if self.sigma is not None else (loaded.card.sigma if loaded.card else None)
        if initial is None:
            raise InvalidInputError("expected --sigma, got none, and the model does not say what it was trained with")
        given: dict[str, Any] = {
            "steps": self.steps,
            "samples": self.search_samples,
            "step_size": self.search_step_size,
            "bounds": parse_range("--bounds", self.bounds),
            **parse_settings("--search-option", self.search_option),
        }
        given = {name: value for name, value in given.items() if value is not None}
        return make_search(self.search or ("halving" if self.per_input else "fixed"), initial=initial, **given)

    def make_noise(self, loaded: "LoadedModel") -> "SmoothingDistribution":
        """The noise that the options ask for, else that of the model's training."""
        from sigmax.noise import Gaussian, find_noise

        trained = loaded.card.noise if loaded.card else None
        return find_noise(self.noise or trained or Gaussian.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How an input is sampled, but for n."""

    n0: Annotated[int, typer.Option("--n0", help="Samples that select the class.")] = 100
    alpha: Annotated[float, typer.Option(help="Failure probability of each certificate.")] = 0.001
    seed: Annotated[str, typer.Option(help="Seeds all noise: a number of up to 256 bits, or random.")] = "0"


def parse_seed(text: str) -> int:
    """The seed; random: 256 bits from the operating system."""
    if text == "random":
        return secrets.randbits(256)
    try:
        return int(text, 0)
    except ValueError:
        raise InvalidInputError(f"expected --seed to be a whole number or random, got {text!r}") from None


def parse_settings(option: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, several times."""
    said = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"expected {option} NAME=VALUE, got {text!r}")
        said[name] = value
    return said


def parse_range(option: str, text: str | None) -> tuple[float, float] | None:
    """Two numbers with a comma between them."""
    if text is None:
        return None
    try:
        low, high = (float(bound) for bound in text.split(","))
    except ValueError:
        raise InvalidInputError(f"expected {option} LOW,HIGH like 0.05,0.8, got {text!r}") from None
    return low, high


def parse_radii(option: str, text: str) -> list[float]:
    """Numbers between commas, each once."""
    try:
        radii = [float(radius) for radius in text.split(",")]
    except ValueError:
        raise InvalidInputError(f"expected {option} like 0,0.25,0.5, got {text!r}") from None
    for radius in radii:
        if not 0 <= radius < float("inf"):
            raise InvalidInputError(f"expected {option} to have radii >= 0 and finite, got {radius:g}")
    return list(dict.fromkeys(radii))
