"""An experiment, read from a small TOML file: data, networks, certifications, and what to set beside them."""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, TypeVar, final

from sigmax.budget import Budget
from sigmax.data import check_spelling, has_splits
from sigmax.data.reference import DataReference
from sigmax.errors import DataError, InvalidInputError, ModelError
from sigmax.experts import ClassRule
from sigmax.models import ModelCard, load_model
from sigmax.models.reference import ModelReference
from sigmax.noise import Gaussian, SmoothingDistribution, find_noise
from sigmax.paper.presets import read_file
from sigmax.plain import from_plain, to_plain
from sigmax.runs import CertificationSpec, ExpertReference
from sigmax.search import search_for, start_of
from sigmax.train import Recipe
from sigmax.train.presets import decided_by, make_recipe

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network: trained by a recipe, or one that exists."""

    name: str
    family: str  # the name without sigma
    sigma: float
    arch: str
    noise: SmoothingDistribution  # of its training
    trained: str | None  # the method of its training; None: unknown
    model: ModelReference  # of a trained one: its place in the folder of the experiment
    recipe: Recipe | None = None  # None: it exists
    start: str | None = None  # the network of the file that it is fine-tuned from
    sigma_range: tuple[float, float] | None = None  # of its training: the limits of searches


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """A network certified with a search."""

    name: str
    network: Network
    spec: CertificationSpec  # but for where it runs
    experts: tuple[Network, ...] = ()  # further networks, among which the search chooses

    @property
    def networks(self) -> tuple[Network, ...]:
        """All networks that it needs."""
        return (self.network, *self.experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What the report says beside the numbers."""

    title: str
    paper: Literal["cifar10", "imagenet"]  # whose numbers of the paper stand beside ours
    tables: tuple[Literal["best", "gain", "per-sigma"], ...] = ("best", "gain", "per-sigma")
    scaled_down: tuple[str, ...] = ()  # where this is less than the paper did


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """All that is trained and certified, in the order of the file."""

    name: str
    text: str  # of the file
    data: DataReference
    train_data: DataReference | None  # None: nothing is trained
    networks: dict[str, Network]  # by name, as certifications
    certifications: dict[str, Certification]
    report: ReportSettings

    def settings(self) -> dict[str, dict[str, Any]]:
        """All that decides the results, beside the images, as plain values."""
        runs = {
            name: {"network": run.network.name}
            | {part: to_plain(getattr(run.spec, part)) for part in ("search", "noise", "budget")}
            | ({"experts": [e.name for e in run.experts], "class_rule": run.spec.class_rule} if run.experts else {})
            for name, run in self.certifications.items()
        }
        data = {"skip": self.data.skip, "max": self.data.max}
        return {"data": data, "networks": to_plain(self.networks), "certifications": runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The whole file, but for `data.train`."""

    data: DataReference
    networks: dict[str, dict[str, Any]]
    certify: tuple[dict[str, Any], ...]
    report: ReportSettings
    sampling: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Networks:
    """`[networks.…]`; further keys are of `ModelReference` where there is a model, else of `_Training`."""

    sigma: float | tuple[float, ...] | None = None  # a network for each; None: one, at the sigma that it says itself
    method: str | None = None
    model: str | None = None  # one that exists; {sigma} stands for the sigma of each


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Networks to train; further keys are fields of `Recipe`."""

    start: str | None = None  # in the file: from
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the method


@dataclass(frozen=True, slots=True, kw_only=True)
class _Certify:
    """`[[certify]]`; further keys are fields of `Budget`, else settings of the search."""

    networks: str | tuple[str, ...]  # families, networks, or patterns of either
    search: str
    steps: int | tuple[int, ...] = ()  # K of the search: a certification for each
    noise: str | None = None  # by default that of the training
    experts: tuple[str, ...] = ()  # further networks, among which the search chooses for each input
    class_rule: ClassRule = "first"
    label: str | None = None


def load_experiment(experiment: str, *, data: str | None = None, train_data: str | None = None) -> Experiment:
    """Read an experiment: the name of a preset, or a TOML file.

    Args:
        experiment: The preset or the file.
        data: The same data set from another place.
        train_data: As above, for the images that networks are trained on.
    """
    name, text = read_file(experiment)
    with _at(experiment):
        content = tomllib.loads(text)
        if isinstance(content.get("data"), dict):  # what is no table is refused below, by its name
            said = content["data"].pop("train", None)
            train_data = said if train_data is None else train_data
            content["data"] |= {} if data is None else {"name": data}
        file = from_plain(_File, content)
        split = from_plain(DataReference, {"name": train_data or file.data.name, "split": "train"}, where="data.train")
        for each in (file.data, split):
            check_spelling(each.name)
        networks: dict[str, Network] = {}
        for family, table in file.networks.items():
            with _at(f"networks.{family}"):
                networks |= {network.name: network for network in _networks(family, table, split, networks)}
        train = split if any(network.recipe for network in networks.values()) else None
        if train and not (train_data or has_splits(train.name)):
            raise InvalidInputError(
                f"expected data.train (or --train-data), got none; all images of {train.name} are certified"
            )
        runs: dict[str, Certification] = {}
        for place, table in enumerate(file.certify):
            with _at(f"certify[{place}]"):
                for run in _certifications(table, file, networks):
                    if run.name in runs:
                        raise InvalidInputError(f"expected one certification {run.name}, got two; give one a label")
                    runs[run.name] = run
    return Experiment(
        name=name,
        text=text,
        data=file.data,
        train_data=train,
        networks=networks,
        certifications=runs,
        report=file.report,
    )


def _networks(family: str, table: dict[str, Any], data: DataReference, known: dict[str, Network]) -> Iterator[Network]:
    """The networks of a table, one for each sigma."""
    given = {"start" if key == "from" else key: value for key, value in table.items()}
    block = from_plain(_Networks, _take(_Networks, given))
    training = from_plain(_Training, _take(_Training, given) if block.model is None else {})
    for sigma in _each(block.sigma):
        level = "" if sigma is None else level_name(sigma)
        name = f"{family}-{level}".rstrip("-")
        network = partial(Network, name=name, family=family)
        if block.model is not None:
            model = from_plain(ModelReference, given | {"name": block.model.replace("{sigma}", level)})
            card = _card(model)
            trained = card.sigma if sigma is None else sigma
            if trained is None:
                raise InvalidInputError(f"expected sigma, got none; {model.name} does not record it")
            yield network(
                sigma=trained,
                model=model,
                arch=card.arch,
                noise=find_noise(card.noise or Gaussian.name),
                trained=block.method or card.method,
                sigma_range=card.sigma_range,
            )
            continue
        start = known.get(training.start or "") or known.get(f"{training.start}-{level}")
        if training.start and start is None:
            names = ", ".join(known) or "none"
            raise InvalidInputError(f"expected from to be an earlier network ({names}), got from={training.start!r}")
        recipe = make_recipe(
            data.name,
            given if sigma is None else {**given, "sigma": sigma},
            method=block.method,
            options=training.options,
            preset=training.preset,
            inherited=_inherited(start) if start else None,
        )
        yield network(
            sigma=recipe.sigma,
            model=ModelReference(name=f"networks/{name}"),
            arch=recipe.arch,
            noise=recipe.noise,
            trained=recipe.method,
            recipe=recipe,
            start=start.name if start else None,
            sigma_range=recipe.sigma_source.bounds,
        )


def _inherited(start: Network) -> dict[str, Any]:
    """What a network decides for its fine-tuning."""
    if start.recipe is None:
        return decided_by(_card(start.model))
    return {name: getattr(start.recipe, name) for name in ("arch", "normalize", "sigma", "noise")}


def _card(model: ModelReference) -> ModelCard:
    """What a network that exists says about itself."""
    card = load_model(model.name, arch=model.arch, normalize=model.normalize).card
    if card is None:
        raise InvalidInputError(f"expected a checkpoint or a network of the zoo, got model={model.name!r}")
    return card


def _certifications(table: dict[str, Any], file: _File, networks: dict[str, Network]) -> Iterator[Certification]:
    """The certifications of a table: of each network, with each K."""
    settings = dict(table)
    block = from_plain(_Certify, _take(_Certify, settings))
    budget = from_plain(Budget, to_plain(file.sampling) | _take(Budget, settings))
    for network in _matching(_each(block.networks), networks):
        experts = tuple(each for each in _matching(block.experts, networks) if each is not network)
        noise = find_noise(block.noise) if block.noise else network.noise
        for given in [{"steps": steps, **settings} for steps in _each(block.steps)] or [settings]:
            search = search_for(network.sigma, network.sigma_range, block.search, **given)
            steps, samples = getattr(search, "steps", given.get("steps")), given.get("samples", 1)
            parts = [network.name, block.search.rpartition(":")[2]]
            parts += [f"k{steps}"] if steps is not None else []
            parts += [f"n{samples}"] if samples != 1 else []
            parts += [f"l{noise.norm}"] if noise != network.noise else []
            parts += ["experts"] if experts else []
            parts += [block.label] if block.label else []
            spec = CertificationSpec(
                model=network.model,
                data=file.data,
                search=search,
                experts=tuple(_expert(each) for each in experts),
                class_rule=block.class_rule,
                noise=noise,
                budget=budget,
            )
            yield Certification(name="-".join(parts), network=network, spec=spec, experts=experts)


def _expert(network: Network) -> ExpertReference:
    """A network as one to choose from."""
    sigma = start_of(network.sigma_range) if network.sigma_range else network.sigma
    return ExpertReference(model=network.model, sigma=sigma, bounds=network.sigma_range)


def _matching(patterns: tuple[str, ...], networks: dict[str, Network]) -> list[Network]:
    """The networks whose name or family matches a pattern, each once."""
    found: dict[str, Network] = {}
    for pattern in patterns:
        some = {name: n for name, n in networks.items() if fnmatchcase(name, pattern) or fnmatchcase(n.family, pattern)}
        if not some:
            names = ", ".join(networks)
            raise InvalidInputError(f"expected a network or a pattern for some of {names}, got networks={pattern!r}")
        found |= some
    return list(found.values())


def level_name(sigma: float) -> str:
    """Sigma in a name: two decimals, as the field writes it, or more where it has more."""
    return f"{sigma:.2f}" if round(sigma, 2) == sigma else f"{sigma:g}"


def _take(kind: Any, table: dict[str, Any]) -> dict[str, Any]:
    """Take the fields of a dataclass out of a table."""
    return {each.name: table.pop(each.name) for each in fields(kind) if each.name in table}


def _each(value: T | tuple[T, ...]) -> tuple[T, ...]:
    """One value alone is a list of one."""
    return value if isinstance(value, tuple) else (value,)


@contextmanager
def _at(place: str) -> Iterator[None]:
    """What is refused inside is refused with this place."""
    try:
        yield
    except (tomllib.TOMLDecodeError, InvalidInputError, DataError, ModelError) as error:
        raise InvalidInputError(f"{place}: {error}") from error
