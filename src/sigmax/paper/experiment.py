"""An experiment, read from a small TOML file: data, networks, certifications, and what to set beside them."""

import tomllib
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, final

from sigmax.budget import Budget
from sigmax.data import check_spelling, has_splits
from sigmax.engine import paper_method
from sigmax.errors import DataError, InvalidInputError, ModelError, did_you_mean
from sigmax.models import load_model
from sigmax.noise import Gaussian, SmoothingDistribution, Uniform
from sigmax.reproduce.settings import hints_of, read_table, read_values
from sigmax.sigma import SigmaSearch, named_search
from sigmax.sigma.named import SearchName
from sigmax.train import Recipe
from sigmax.train.presets import decided_by, make_recipe
from sigmax.train.run import method_name

_FOLDER = Path(__file__).parent / "presets"
_STEPPED = ("ascent", "ascent-paper", "grid")  # searches that K and n say something to
_INHERITED = ("arch", "normalize", "sigma", "norm")  # what a network of the file hands down to its fine-tuning

PaperTable = Literal["best", "gain", "per-sigma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Which images are certified, and which are trained on."""

    name: str  # as `sigmax certify --data` takes it
    train: str | None = None  # by default the training part of the same
    skip: int = 1  # every so many
    max: int | None = None  # at most so many

    def __post_init__(self) -> None:
        if self.skip < 1 or (self.max is not None and self.max < 1):
            raise InvalidInputError(f"expected data.skip >= 1 and data.max >= 1, got {self.skip} and {self.max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the report says beside the numbers."""

    title: str
    paper: Literal["cifar10", "imagenet"]  # whose numbers of the paper are set beside ours
    tables: tuple[PaperTable, ...] = ("best", "gain", "per-sigma")
    scaled_down: tuple[str, ...] = ()  # where this is less than the paper did


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network: trained by a recipe, or one that exists."""

    name: str
    family: str  # the name without sigma
    sigma: float
    arch: str
    trained: str | None  # the method of its training; None: unknown
    noise: SmoothingDistribution
    recipe: Recipe | None = None  # None: it exists
    start: str | None = None  # the network of the file that it is fine-tuned from
    model: str | None = None  # where it exists
    loading: dict[str, str] = field(default_factory=dict)  # what `load_model` must be told about it

    def settings(self) -> dict[str, Any]:
        """All that decides it."""
        if self.recipe is None:
            return {"model": self.model, "sigma": self.sigma, "trained": self.trained, **self.loading}
        return {**self.recipe.as_dict(), "from": self.start}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """A network certified with a search."""

    name: str
    network: Network
    search: SigmaSearch
    search_name: SearchName
    noise: SmoothingDistribution
    budget: Budget

    @property
    def method(self) -> str | None:
        """What the paper calls it; None: the training is not known."""
        if self.network.trained is None:
            return None
        return paper_method(
            self.network.trained,
            is_per_input=self.search.is_per_input,
            noise=self.noise,
            trained_noise=self.network.noise.name,
        )

    def settings(self) -> dict[str, Any]:
        """All that decides it beside the network and the data."""
        return {
            "network": self.network.name,
            "search": self.search.settings(),
            "noise": self.noise.name,
            **asdict(self.budget),
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All that is trained and certified, in the order of the file."""

    name: str
    text: str  # of the file
    data: Data
    networks: tuple[Network, ...]
    certifications: tuple[Certification, ...]
    report: ReportSettings

    @property
    def train_data(self) -> str:
        """What networks are trained on."""
        return self.data.train or self.data.name

    def indices(self, inputs: int) -> list[int]:
        """The places of the images to certify, of so many."""
        return list(range(0, inputs, self.data.skip))[: self.data.max]

    def network(self, name: str) -> Network:
        """The network of this name."""
        return next(network for network in self.networks if network.name == name)

    def settings(self) -> dict[str, dict[str, Any]]:
        """What decides each network and each certification, by its name."""
        inputs = {"skip": self.data.skip, "max": self.data.max}
        return {
            **{f"network {network.name}": network.settings() for network in self.networks},
            **{f"certification {run.name}": run.settings() | inputs for run in self.certifications},
        }


def presets() -> dict[str, str]:
    """The experiments that come with this package, and what each is."""
    paths = sorted(_FOLDER.glob("*.toml"))
    return {path.stem: path.read_text().splitlines()[0].removeprefix("# ") for path in paths}


def load_experiment(spec: str, *, data: str | None = None, train_data: str | None = None) -> Experiment:
    """Read an experiment: the name of a preset, or a TOML file.

    Args:
        spec: The preset or the file.
        data: The same data set from another place.
        train_data: As above, for the images that networks are trained on.
    """
    path = _FOLDER / f"{spec}.toml" if spec in presets() else Path(spec)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        hint = did_you_mean(spec, presets())
        raise InvalidInputError(
            f"expected a file or one of {', '.join(presets())}, got {spec!r}: {error}{hint}"
        ) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"{spec}: expected TOML, got: {error}") from error
    places = {name: place for name, place in (("name", data), ("train", train_data)) if place is not None}
    if places and isinstance(content.setdefault("data", {}), dict):  # what is no table is refused below, by its name
        content["data"] |= places
    try:
        return _experiment(path.stem, text, content)
    except (InvalidInputError, DataError) as error:
        raise InvalidInputError(f"{spec}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    data: dict[str, Any]
    networks: dict[str, Any]
    certify: tuple[dict[str, Any], ...]
    report: dict[str, Any]
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certify:
    networks: tuple[str, ...]
    search: SearchName
    steps: tuple[int, ...] = (900,)
    samples: int = 1
    step_size: float | None = None
    norm: Literal["l1", "l2"] | None = None
    label: str | None = None


def _experiment(name: str, text: str, content: dict[str, Any]) -> Experiment:
    file = read_table(_File, content, "the file")
    data = read_table(Data, file.data, "data")
    for spec in (data.name, data.train or data.name):
        check_spelling(spec)
    sampling = read_values(hints_of(Budget), file.sampling, "sampling")
    networks: dict[str, Network] = {}
    for family, table in file.networks.items():
        for network in _family(family, table, data, networks):
            networks[network.name] = network
    if not (data.train or has_splits(data.name)) and any(network.recipe for network in networks.values()):
        raise InvalidInputError(
            f"expected data.train (or --train-data), got none: {data.name} has no part to train on but the images "
            "that are certified"
        )
    certifications: dict[str, Certification] = {}
    for i, table in enumerate(file.certify):
        for run in _certifications(table, f"certify[{i}]", sampling, networks):
            if run.name in certifications:
                raise InvalidInputError(f"expected one certification {run.name}, got two; give one of them a label")
            certifications[run.name] = run
    return Experiment(
        name=name,
        text=text,
        data=data,
        networks=tuple(networks.values()),
        certifications=tuple(certifications.values()),
        report=read_table(ReportSettings, file.report, "report"),
    )


def _family(family: str, table: Any, data: Data, known: dict[str, Network]) -> list[Network]:
    """The networks of a table, one for each sigma."""
    where = f"networks.{family}"
    recipe_hints = {name: hint for name, hint in hints_of(Recipe).items() if name not in ("objective", "sigma")}
    own = {"sigma": tuple[float, ...], "method": str}
    trained = {"preset": str, "from": str, "options": dict[str, Any], **recipe_hints}
    exists = {"model": str, "arch": str, "normalize": str}
    is_model = isinstance(table, dict) and "model" in table
    values = read_values(own | (exists if is_model else trained), table, where)
    if not values.get("sigma"):
        raise InvalidInputError(f"expected {where}.sigma, a number or several, got none")
    make = _existing if is_model else _trained
    try:
        return [make(family, sigma, {**values, "sigma": sigma}, data, known) for sigma in values["sigma"]]
    except (InvalidInputError, ModelError) as error:
        raise InvalidInputError(f"{where}: {error}") from error


def _existing(family: str, sigma: float, values: dict[str, Any], _data: Data, _known: dict[str, Network]) -> Network:
    model = values["model"].replace("{sigma}", level_name(sigma))
    loading: dict[str, str] = {name: values[name] for name in ("arch", "normalize") if name in values}
    card = load_model(model, **loading).card
    if card is None:
        raise InvalidInputError(f"expected a checkpoint or a network of the zoo, got model={model!r}")
    return Network(
        name=f"{family}-{level_name(sigma)}",
        family=family,
        sigma=sigma,
        arch=card.arch,
        trained=values.get("method", card.method),
        noise=Uniform() if card.noise == Uniform.name else Gaussian(),
        model=model,
        loading=loading,
    )


def _trained(family: str, sigma: float, values: dict[str, Any], data: Data, known: dict[str, Network]) -> Network:
    start = _start(values.pop("from", None), sigma, known)
    inherited = None
    if start is not None and start.recipe is not None:
        inherited = {name: getattr(start.recipe, name) for name in _INHERITED}
    elif start is not None and start.model is not None:
        card = load_model(start.model, **start.loading).card
        inherited = decided_by(card) if card else None
    recipe = make_recipe(
        data.train or data.name,
        {name: value for name, value in values.items() if name not in ("method", "options", "preset")},
        method=values.get("method"),
        options=values.get("options"),
        preset=values.get("preset"),
        inherited=inherited,
    )
    return Network(
        name=f"{family}-{level_name(sigma)}",
        family=family,
        sigma=sigma,
        arch=recipe.arch,
        trained=method_name(recipe),
        noise=recipe.noise,
        recipe=recipe,
        start=start.name if start else None,
    )


def _start(name: str | None, sigma: float, known: dict[str, Network]) -> Network | None:
    """The network to fine-tune: by its whole name, or the one of a family with the same sigma."""
    if name is None:
        return None
    found = known.get(name) or known.get(f"{name}-{level_name(sigma)}")
    if found is None:
        raise InvalidInputError(
            f"expected from to be a network further up in the file ({', '.join(known) or 'none'}), got from={name!r}"
        )
    return found


def _certifications(
    table: dict[str, Any], where: str, sampling: dict[str, Any], networks: dict[str, Network]
) -> list[Certification]:
    values = read_values(hints_of(_Certify) | hints_of(Budget), table, where)
    budget = Budget(**sampling | {name: values.pop(name) for name in hints_of(Budget) if name in values})
    block = read_table(_Certify, {name: table[name] for name in values}, where)
    for name in ("steps", "samples"):
        if name in values and block.search not in _STEPPED:
            raise InvalidInputError(
                f"expected {where}.{name} only for {', '.join(_STEPPED)}, got search={block.search!r}"
            )
    chosen = []
    for pattern in block.networks:
        found = [n for n in networks.values() if any(fnmatchcase(name, pattern) for name in (n.name, n.family))]
        if not found:
            raise InvalidInputError(
                f"expected {where}.networks to name some of {', '.join(networks)}, got {pattern!r}; "
                "a family, a network or a pattern like *-ds2"
            )
        chosen += [network for network in found if network not in chosen]
    return [
        _certification(block, network, steps, budget)
        for network in chosen
        for steps in (block.steps if block.search in _STEPPED else (0,))
    ]


def _certification(block: _Certify, network: Network, steps: int, budget: Budget) -> Certification:
    noise = {"l1": Uniform(), "l2": Gaussian(), None: network.noise}[block.norm]
    parts = [network.name, block.search]
    if block.search in _STEPPED:
        parts += [f"k{steps}"] + ([f"n{block.samples}"] if block.samples > 1 else [])
    if noise.name != network.noise.name:
        parts.append(f"l{noise.norm}")
    if block.label:
        parts.append(block.label)
    return Certification(
        name="-".join(parts),
        network=network,
        search=named_search(
            block.search, initial=network.sigma, steps=steps, samples=block.samples, step_size=block.step_size
        ),
        search_name=block.search,
        noise=noise,
        budget=budget,
    )


def level_name(sigma: float) -> str:
    """Sigma in a name: two decimals, as the field writes it, or more where it has more."""
    return f"{sigma:.2f}" if round(sigma, 2) == sigma else f"{sigma:g}"
