"""Groups of options that several commands share, and the requests that they make."""

import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from sigmax.errors import InvalidInputError

if TYPE_CHECKING:
    from sigmax.models import LoadedModel
    from sigmax.models.reference import ModelReference
    from sigmax.noise import SmoothingDistribution
    from sigmax.runs import ExpertReference, RouterReference
    from sigmax.search import SigmaSearch


Backend = Literal["eager", "compile", "openvino", "openvino-int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how it runs."""

    model: str | None = None
    arch: str | None = None
    normalize: str | None = None
    outputs: Literal["logits", "probabilities"] | None = None
    classes: int | None = None
    denoiser: str | None = None
    preprocess: str | None = None
    batch: int | None = None
    backend: Backend = "eager"
    device: str | None = None

    def reference(self) -> "ModelReference":
        """The model that the options name."""
        from sigmax.models.reference import ModelReference

        if self.model is None:
            raise InvalidInputError("expected a MODEL, got none; name a checkpoint, a folder, zoo:NAME or a factory")
        said = {name: value for name, value in asdict(self).items() if name not in ("model", "preprocess", "batch")}
        return ModelReference(name=self.model, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Which noise, and how its level is chosen."""

    sigma: float | None = None
    per_input: bool = False
    search: str | None = None
    steps: int | None = None
    search_samples: int | None = None
    search_step_size: float | None = None
    bounds: str | None = None
    search_option: list[str] | None = None
    noise: str | None = None
    exact: bool = True
    expert: list[str] | None = None
    class_rule: Literal["first", "vote"] = "first"

    def make_search(self, loaded: "LoadedModel") -> "SigmaSearch":
        """The search that the options ask for."""
        from sigmax.search import search_for

        given: dict[str, Any] = {
            "steps": self.steps,
            "samples": self.search_samples,
            "step_size": self.search_step_size,
            "bounds": parse_range("--bounds", self.bounds),
            **parse_settings("--search-option", self.search_option),
        }
        given = {name: value for name, value in given.items() if value is not None}
        name = self.search or ("halving" if self.per_input or self.expert else "fixed")
        card = loaded.card
        trained = (card.sigma, card.sigma_range) if card else (None, None)
        return search_for(*trained, name, initial=self.sigma, **given)

    def make_experts(self, first: "ModelReference") -> tuple["ExpertReference", ...]:
        """The further networks that the options ask for, run as the first one is."""
        from sigmax.models.reference import ModelReference
        from sigmax.runs import ExpertReference
        from sigmax.search import start_of

        found = []
        for text in self.expert or []:
            name, sigma = _name_and_sigma(text)
            model = ModelReference(name=name, backend=first.backend, device=first.device)
            card = model.load().card
            bounds = card.sigma_range if card else None
            if sigma is None and card is not None:
                sigma = start_of(bounds) if bounds else card.sigma
            if sigma is None:
                raise InvalidInputError(
                    f"expected --expert {name}@SIGMA, got no sigma; the network does not record its training sigma"
                )
            if bounds is not None and not bounds[0] <= sigma <= bounds[1]:
                raise InvalidInputError(f"expected --expert {name}@SIGMA inside its bounds {bounds}, got {sigma:g}")
            found.append(ExpertReference(model=model, sigma=sigma, bounds=bounds))
        return tuple(found)

    def make_noise(self, loaded: "LoadedModel") -> "SmoothingDistribution":
        """The noise that the options ask for, else that of the model's training."""
        from sigmax.noise import Gaussian, find_noise

        trained = loaded.card.noise if loaded.card else None
        return find_noise(self.noise or trained or Gaussian.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How an input is sampled, but for n."""

    n0: int = 100
    alpha: float = 0.001
    seed: str = "0"


def make_router(text: str, first: "ModelReference") -> "RouterReference":
    """The router ROUTER or ROUTER@SIGMA, run as the first network is. Its card names its routes."""
    from sigmax.models.reference import ModelReference
    from sigmax.routing import Route
    from sigmax.runs import RouterReference

    name, sigma = _name_and_sigma(text)
    model = ModelReference(name=name, backend=first.backend, device=first.device)
    card = model.load().card
    if card is None or not card.class_names:
        raise InvalidInputError(
            f"expected a router whose card names its routes, got {name}; train one on the data of route_examples"
        )
    if (sigma := sigma or card.sigma) is None:
        raise InvalidInputError(f"expected --route {name}@SIGMA, got no sigma; the router does not record its own")
    return RouterReference(model=model, sigma=sigma, routes=tuple(map(Route.parse, card.class_names)))


def _name_and_sigma(text: str) -> tuple[str, float | None]:
    """NAME or NAME@SIGMA."""
    name, _, sigma = text.rpartition("@")
    try:
        return (name, float(sigma)) if name else (text, None)
    except ValueError:
        return text, None  # a name with an @ in it


def parse_seed(text: str) -> int:
    """The seed; random: 256 bits from the operating system."""
    if text == "random":
        return secrets.randbits(256)
    try:
        return int(text, 0)
    except ValueError:
        raise InvalidInputError(f"expected --seed to be a whole number or random, got {text!r}") from None


def parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, several times."""
    said = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"expected {option} NAME=VALUE, got {text!r}")
        said[name] = value
    return said


def parse_settings(option: str, texts: list[str] | None) -> dict[str, str | list[str]]:
    """NAME=VALUE, several times; values with a comma are lists, also `1,`."""
    said = parse_pairs(option, texts)
    return {
        name: [part for part in value.split(",") if part] if "," in value else value for name, value in said.items()
    }


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
            raise InvalidInputError(f"expected {option} to have radii >= 0 and finite, got {radius}")
    return list(dict.fromkeys(radii))
