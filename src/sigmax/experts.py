"""Experts: several networks for one task. A search chooses the network of each input, together with its noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor, nn

from sigmax.errors import InvalidInputError
from sigmax.models.classifier import BaseClassifier
from sigmax.models.outputs import Outputs

Network = Callable[..., Tensor] | BaseClassifier
Bounds = tuple[float, float] | None
ClassRule = Literal["first", "vote"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """A network that a search may choose, with its noise levels."""

    classifier: BaseClassifier
    sigma: float  # its sigma0
    bounds: Bounds = None  # of its sigma; None: the usual ones around its sigma0


@final
class Experts:
    """Several networks for one task. A search chooses one of them for each input, with its noise.

    Certificates of different networks may contradict each other, as with per-input sigma; a memory settles them.

    Args:
        models: The networks, as `SmoothedClassifier` takes them. A `BaseClassifier` brings its own kind of outputs and
            identity. Their order matters: certificates name a network by its place.
        sigmas: sigma0 of each network; None: that of the search.
        bounds: Bounds on the sigma of each network; None: around its sigma0, as the search sets them.
        class_rule: Which class is certified. Each network predicts under its sigma0. "first": the prediction of the
            first network that does not abstain. "vote": all networks vote, weighted by their expected radii.
    """

    def __init__(
        self,
        models: Sequence[Network],
        *,
        sigmas: Sequence[float | None] | None = None,
        bounds: Sequence[Bounds] | None = None,
        class_rule: ClassRule = "first",
    ) -> None:
        self.models = tuple(models)
        self.sigmas = (None,) * len(self.models) if sigmas is None else tuple(sigmas)
        self.bounds = (None,) * len(self.models) if bounds is None else tuple(bounds)
        self.class_rule = class_rule
        if not self.models:
            raise InvalidInputError("expected at least one expert, got none; pass the networks as a list")
        for name, values in (("sigma", self.sigmas), ("range", self.bounds)):
            if len(values) != len(self.models):
                raise InvalidInputError(
                    f"expected one {name} per expert, got {len(values)} for {len(self.models)} experts"
                )
        if class_rule not in get_args(ClassRule):
            raise InvalidInputError(
                f"expected class_rule to be {' or '.join(get_args(ClassRule))}, got class_rule={class_rule!r}"
            )

    def resolve(
        self, *, num_classes: int, outputs: Outputs, identity: str | None, sigma: float, bounds: Bounds
    ) -> tuple[Expert, ...]:
        """The experts, each with its noise levels; sigma and bounds are those of the search."""
        functions = {id(model) for model in self.models if not isinstance(model, BaseClassifier | nn.Module)}
        if identity is not None and len(functions) > 1:
            raise InvalidInputError(
                f"expected an identity for each function, got identity={identity!r} for {len(functions)} of them; "
                "make each a BaseClassifier(…, identity='…')"
            )
        found = []
        for model, own, limits in zip(self.models, self.sigmas, self.bounds, strict=True):
            if isinstance(model, BaseClassifier):
                classifier = model
            else:
                classifier = BaseClassifier(model, num_classes=num_classes, outputs=outputs, identity=identity)
            if classifier.num_classes != num_classes:
                raise InvalidInputError(
                    f"expected experts with {num_classes} classes, got one with {classifier.num_classes}; remove it"
                )
            if own is None:
                found.append(Expert(classifier=classifier, sigma=sigma, bounds=limits or bounds))
            else:
                found.append(Expert(classifier=classifier, sigma=float(own), bounds=limits))
        devices = {expert.classifier.device for expert in found}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise InvalidInputError(f"expected all experts on one device, got {names}; move them to one")
        return tuple(found)
