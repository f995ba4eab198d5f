"""Load the model and the data of a request, and record what they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from sigmax.certifier import Certifier
from sigmax.data import ImageSource
from sigmax.engine.probe import fastest_batch
from sigmax.errors import DataError, ModelError
from sigmax.experts import Experts
from sigmax.memory import FrozenMemory
from sigmax.models import LoadedModel, ModelCard
from sigmax.models.classifier import BaseClassifier
from sigmax.models.reference import ModelReference
from sigmax.routing import RoutedClassifier
from sigmax.runs import CertificationSpec, Found
from sigmax.runs.folder import check_same
from sigmax.smoothed import SmoothedClassifier


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A resolved request, with its model and data loaded: what a worker needs to certify any of its inputs."""

    spec: CertificationSpec  # resolved
    smoothed: SmoothedClassifier  # of its networks
    certifier: Certifier  # what certifies: a router before the networks, else these alone
    source: ImageSource
    pixel_range: tuple[float, float] | None  # of the inputs that the model takes; None: it does not say

    @property
    def indices(self) -> list[int]:
        """The places of the inputs in the data set; they also seed the noise."""
        return self.spec.data.indices(len(self.source))


def prepare(
    spec: CertificationSpec,
    *,
    loaded: LoadedModel | None = None,
    download: bool = False,
    on_note: Callable[[str], None] | None = None,
) -> Prepared:
    """Load the model and the data of a request, and resolve what it left open.

    If the request records what was found before, the same must be found again. `loaded` is its model, if it is already
    loaded. `on_note` is told if something differs from the request, such as a backend that cannot run the model.
    """
    loaded = loaded or spec.model.load()
    spec = replace(spec, data=spec.data.suited(loaded.preprocess))
    source = spec.data.load(download=download)
    plain = spec.model.classifier(loaded, classes=len(source.class_names))
    experts = [expert.model.load() for expert in spec.experts]
    for each in (loaded, *experts):
        _check_data(source, plain.num_classes, each.card)
    if spec.family_alpha is not None:
        spec = replace(spec, budget=spec.budget.shared(spec.family_alpha, len(spec.data.indices(len(source)))))
    smoothed, reference, batch = smooth(
        spec, plain, source.shape, levels=source.levels, experts=experts, on_note=on_note
    )
    resolved = replace(spec.with_models(lambda model: replace(model, backend=reference.backend)), batch=batch)
    certifier = _routed(resolved, smoothed, source) if spec.route else smoothed
    card = loaded.card
    found = Found(
        fingerprint=certifier.fingerprint,
        data=source.digest(),
        device=smoothed.classifier.device.type,
        levels=smoothed.levels,
        frozen=FrozenMemory.digest_at(spec.memory) if spec.memory and spec.frozen else None,
        backend=smoothed.classifier.backend,
        trained=card.method if card else None,
        trained_noise=card.noise if card else None,
        arch=card.arch if card else None,
    )
    resolved = replace(resolved, found=found)
    if spec.found is not None:
        advice = "use the model, the data and the versions that the request was run with"
        check_same(spec.decisive(), resolved.decisive(), "the request", advice=advice)
    pixel_range = _pixel_range(reference, card)
    return Prepared(spec=resolved, smoothed=smoothed, certifier=certifier, source=source, pixel_range=pixel_range)


def smooth(
    spec: CertificationSpec,
    plain: BaseClassifier,
    shape: tuple[int, ...],
    *,
    levels: int | None,
    experts: Sequence[LoadedModel] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> tuple[SmoothedClassifier, ModelReference, int]:
    """The smoothed classifier of a request, the model reference in force, and the batch.

    Inputs have this shape, and are multiples of 1 / levels; None: any numbers. `experts` are the further networks of
    the request, if they are already loaded. All networks have one backend and one batch shape.
    """
    loaded = [expert.model.load() for expert in spec.experts] if experts is None else experts
    networks = [plain]
    for reference, found in zip(spec.models[1:], loaded, strict=True):
        networks.append(reference.classifier(found, classes=plain.num_classes))
    # Probed on the eager network: a backend may take half a minute to build for each size.
    batch = spec.batch or fastest_batch(plain, shape)
    reference, models = _accelerated(spec.model, [each.model for each in networks], (batch, *shape), on_note)
    smoothed = SmoothedClassifier(
        Experts(
            [
                BaseClassifier(model, num_classes=each.num_classes, outputs=each.outputs, identity=each.identity)
                for model, each in zip(models, networks, strict=True)
            ],
            sigmas=[None, *(expert.sigma for expert in spec.experts)],
            bounds=[None, *(expert.bounds for expert in spec.experts)],
            class_rule=spec.class_rule,
        ),
        num_classes=plain.num_classes,
        noise=spec.noise,
        sigma=spec.search,
        levels=levels if spec.exact and spec.noise.masses(1.0) is not None else None,
        batch_size=batch,
    )
    return smoothed, reference, batch


def _routed(spec: CertificationSpec, smoothed: SmoothedClassifier, source: ImageSource) -> RoutedClassifier:
    """The router of a request before its networks, with their backend and batch shape."""
    assert spec.route is not None, "the request has a router"
    reference, loaded = spec.route.model, spec.route.model.load()
    if loaded.card is not None:  # its classes are routes, not those of the data
        _check_data(source, smoothed.classifier.num_classes, replace(loaded.card, class_names=()))
    plain = reference.classifier(loaded, classes=len(spec.route.routes))
    shape = (smoothed.sampler.batch_size or 1, *source.shape)
    router = BaseClassifier(
        reference.accelerated(plain.model, batch_shape=shape),
        num_classes=plain.num_classes,
        outputs=plain.outputs,
        identity=plain.identity,
    )
    return RoutedClassifier(router, spec.route.routes, experts=smoothed, sigma=spec.route.sigma)


def _check_data(source: ImageSource, num_classes: int, card: ModelCard | None) -> None:
    """Refuse data whose shape or classes differ from those of the model, as far as both are known.

    Classes named by numbers fit any names.
    """
    if card and card.input_shape and source.shape != card.input_shape:
        raise DataError(
            f"{source.name}: expected inputs of shape {card.input_shape}, as in training, got {source.shape}; "
            "set --data"
        )
    ours, theirs = source.class_names, card.class_names if card else ()
    if len(ours) > num_classes:
        raise DataError(f"{source.name}: expected at most the {num_classes} classes of the model, got {len(ours)}")
    if _has_names(ours) and _has_names(theirs):
        if ours != theirs[: len(ours)]:
            raise DataError(
                f"{source.name}: expected the model's classes {_few(theirs)}, got {_few(ours)}; "
                "use the same names in the same order, or numbers"
            )
    elif source.needs_all_classes and len(ours) != num_classes:
        raise DataError(
            f"{source.name}: expected a folder for each of the model's {num_classes} classes, got {len(ours)}; "
            "name the folders by class number, because alphabetical order cannot identify the classes"
        )


def _pixel_range(reference: ModelReference, card: ModelCard | None) -> tuple[float, float] | None:
    """The range of pixels that the model declares, by its normalisation or by its backend."""
    if reference.backend == "openvino-int8":
        return 0.0, 1.0  # as the synthetic images that gave the ranges of its activations
    if card is None or not card.mean or min(card.mean) < 0:
        return None
    return next(((0.0, white) for white in (1.0, 255.0) if max(card.mean) <= white), None)


def _has_names(classes: tuple[str, ...]) -> bool:
    return not all(name.isdecimal() for name in classes)


def _few(names: tuple[str, ...], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _accelerated(
    reference: ModelReference,
    models: Sequence[Callable[..., Tensor]],
    batch_shape: tuple[int, ...],
    on_note: Callable[[str], None] | None,
) -> tuple[ModelReference, list[Callable[..., Tensor]]]:
    """The models run by their backend. If it cannot run one of them, all run eagerly, with a note.

    openvino-int8 raises instead: the 8-bit network is another function, and it is the one to certify.
    """
    try:
        return reference, [reference.accelerated(model, batch_shape=batch_shape) for model in models]
    except ModelError as error:
        if reference.backend == "openvino-int8" or on_note is None:
            raise
        on_note(f"{error}; going on without it")
        return replace(reference, backend="eager"), list(models)
