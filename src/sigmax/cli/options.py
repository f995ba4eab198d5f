"""Options that several commands share, and what they build."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sigmax.cli.console import log_console
from sigmax.errors import InvalidInputError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from sigmax.models import LoadedModel
    from sigmax.sigma import SigmaSearch
    from sigmax.smoothed import SmoothedClassifier


class Norm(StrEnum):
    """The norm of the certified balls."""

    L2 = "l2"
    L1 = "l1"


class Search(StrEnum):
    """How sigma is chosen for each input."""

    HALVING = "halving"
    ASCENT = "ascent"
    ASCENT_PAPER = "ascent-paper"
    GRID = "grid"


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


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A checkpoint, an ONNX file, a folder with a model.safetensors, zoo:NAME or package.module:factory."
    ),
]
SigmaOption = Annotated[
    float | None,
    typer.Option(help="Noise level; where a search starts. By default what the model was trained with."),
]
NormOption = Annotated[
    Norm | None,
    typer.Option(
        help="l2: Gaussian noise; l1: uniform noise of half-width sigma. By default that of the training, else l2.",
        show_default=False,
    ),
]
PerInputOption = Annotated[bool, typer.Option("--per-input", help="Choose sigma for each input.")]
SearchOption = Annotated[
    Search | None,
    typer.Option(
        help="How sigma is chosen (implies --per-input): halving tries a few sigmas, fits a curve to their answers and "
        "needs no gradients; ascent follows the gradient of the radius; both keep sigma0 where a pilot finds it "
        "better; ascent-paper is the paper's Algorithm 1; grid is its baseline.",
        show_default="halving",
    ),
]
StepsOption = Annotated[
    int | None,
    typer.Option(help="K, ascent steps; the grid gets 2 K evaluations, as the paper counts.", show_default="900"),
]
SearchSamplesOption = Annotated[
    int | None, typer.Option(help="Noise draws per ascent step or grid point.", show_default="1")
]
StepSizeOption = Annotated[
    float | None, typer.Option("--search-step-size", help="Of the ascent on sigma.", show_default="0.0001")
]
BoundsOption = Annotated[
    str | None,
    typer.Option(
        help="Sigma of each input stays inside, for halving and ascent, such as 0.05,0.8. Far above its training sigma "
        "a network answers one class for everything, and radii grow without meaning.",
        show_default="sigma / 4, 2 sigma",
    ),
]
ArchOption = Annotated[
    str | None, typer.Option(help="Architecture, where the checkpoint does not say it.", show_default=False)
]
NormalizeOption = Annotated[
    str | None,
    typer.Option(
        help="Normalisation before the network, where the checkpoint does not say it: none, cifar10, imagenet, "
        "cifar10-mean, imagenet-mean, imagenet-keras, or MEAN,…/STD,….",
        show_default=False,
    ),
]
OutputsOption = Annotated[Outputs | None, typer.Option(help="What a model of your own returns.", show_default="logits")]
ClassesOption = Annotated[
    int | None,
    typer.Option(help="Classes of a model of your own that does not say; certify takes those of the data."),
]
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
        "openvino-int8, the network in 8-bit integers, which is fastest on CPUs and what is certified then. "
        "Answers of one do not mix with those of another in a memory."
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="Where the model runs; by default an accelerator if any.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DownloadOption = Annotated[bool, typer.Option("--download", help="Allow fetching CIFAR-10 where it is missing.")]
SeedOption = Annotated[int, typer.Option(help="Seeds all noise.")]
AlphaOption = Annotated[float, typer.Option(help="Failure probability of each certificate.")]
SelectionOption = Annotated[int, typer.Option("--n0", help="Samples that select the class.")]


def load(model: str, arch: str | None, normalize: str | None, device: str | None) -> "LoadedModel":
    """The model that a command names, on its device."""
    import torch

    from sigmax.models import load_model
    from sigmax.models.backends import place_model

    loaded = load_model(model, arch=arch, normalize=normalize)
    if isinstance(loaded.model, torch.nn.Module):
        place_model(loaded.model, device)
    elif device:
        raise InvalidInputError(f"expected no --device for a model that is no torch.nn.Module, got device={device}")
    return loaded


def make_search(
    loaded: "LoadedModel",
    sigma: float | None,
    per_input: bool,
    search: Search | None,
    steps: int | None,
    samples: int | None,
    step_size: float | None,
    bounds: str | None,
) -> "SigmaSearch":
    """The search that the options ask for."""
    from sigmax.sigma import named_search

    initial = sigma if sigma is not None else (loaded.card.sigma if loaded.card else None)
    if initial is None:
        raise InvalidInputError("expected --sigma, got none, and the model does not say what it was trained with")
    name = search.value if search else "halving" if per_input else "fixed"
    given = {key: value for key, value in {"steps": steps, "samples": samples}.items() if value is not None}
    if given and name in ("halving", "fixed"):
        raise InvalidInputError(f"expected --steps and --search-samples with --search ascent or grid, got {name}")
    return named_search(name, initial=initial, step_size=step_size, bounds=parse_range("--bounds", bounds), **given)


def make_smoothed(
    loaded: "LoadedModel",
    search: "SigmaSearch",
    norm: Norm | None,
    outputs: Outputs | None,
    batch: int | None,
    backend: Backend,
    *,
    classes: int | None,
    shape: tuple[int, ...],
    out: "Path | None" = None,
) -> "SmoothedClassifier":
    """The smoothed classifier that the options ask for.

    `classes` is for a model that does not say how many it has; `out` is the run folder, where there is one.
    """
    from sigmax.engine import batch_of
    from sigmax.models import BaseClassifier
    from sigmax.noise import Gaussian, Uniform
    from sigmax.probe import fastest_batch
    from sigmax.smoothed import SmoothedClassifier

    has = loaded.num_classes or classes
    if has is None:
        raise InvalidInputError("expected --classes for a model of your own, got none")
    if classes not in (None, has):
        raise InvalidInputError(
            f"expected the {has} classes that the model says, got --classes {classes}; leave it out"
        )
    if norm is None:
        norm = Norm.L1 if loaded.card and loaded.card.noise == Uniform.name else Norm.L2
    kind = loaded.card.outputs if loaded.card else (outputs or Outputs.LOGITS).value
    if outputs not in (None, kind):
        raise InvalidInputError(f"expected the {kind} that the model says, got --outputs {outputs}; leave it out")
    if batch is None:
        # Of the network as it is: an engine may take half a minute to build for each size.
        plain = BaseClassifier(loaded.model, num_classes=has, outputs=kind, identity=loaded.identity)
        batch = batch_of(out, plain, shape) if out else fastest_batch(plain, shape)
    return SmoothedClassifier(
        _accelerated(loaded.model, backend, shape, batch),
        num_classes=has,
        noise=Uniform() if norm is Norm.L1 else Gaussian(),
        sigma=search,
        outputs=kind,
        batch_size=batch,
        identity=loaded.identity,
    )


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


def _accelerated(
    model: "Callable[[Tensor], Tensor]", backend: Backend, shape: tuple[int, ...], batch: int
) -> "Callable[[Tensor], Tensor]":
    """The model behind the engine that was asked for; as it is, with a message, where that cannot run it.

    But for 8-bit integers: they are another function, and the one that was asked for.
    """
    import math

    from torch import nn

    from sigmax.models.backends import accelerate
    from sigmax.sampling import batch_rows

    if not isinstance(model, nn.Module):
        if backend is not Backend.EAGER:
            raise InvalidInputError(f"expected a torch.nn.Module for --backend {backend}, got {type(model).__name__}")
        return model
    try:
        return accelerate(model, backend.value, batch_shape=(batch_rows(math.prod(shape), batch), *shape))
    except ModelError as error:
        if backend is Backend.OPENVINO_INT8:
            raise
        log_console.print(f"note: {error}; going on without it", style="yellow", soft_wrap=True)
        return model
