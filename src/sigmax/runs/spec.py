"""The request: one typed value with everything that decides the answers of a certification.

The command line and an experiment's file parse into it, an engine executes it, `config.json` holds it, resuming
compares it, and reports read it back.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar, final

from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.errors import InvalidInputError, RecordError, without_password
from sigmax.experts import Bounds, ClassRule
from sigmax.models.reference import ModelReference
from sigmax.named import name_of
from sigmax.noise import Gaussian, SmoothingDistribution, Uniform
from sigmax.plain import from_plain, to_plain
from sigmax.routing import Route
from sigmax.search.base import SigmaSearch

VERSION = 1
T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One of several parts of a request that run separately, such as the first of four."""

    number: int  # from 1 on
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InvalidInputError(f"expected a shard from 1/{self.count} to {self.count}/{self.count}, got {self}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, blocks: Sequence[T]) -> list[T]:
        """The blocks of this shard: every count-th, so that all shards take about as long."""
        return list(blocks[self.number - 1 :: self.count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found when a request was resolved. A run is resumed or repeated only if the same is found again."""

    fingerprint: str  # of model, backend, noise and kind of device
    data: str  # digest of shape, labels and images
    device: str  # kind of device: another kind rounds differently
    levels: int | None = None  # pixels are multiples of 1 / levels and noise is exact; None: in floating point
    frozen: str | None = None  # digest of the frozen memory that answers follow from
    backend: str | None = None  # what ran the network, with its version; None: a function of one's own
    trained: str | None = None  # how the network was trained, such as cohen or macer-ds2; None: unknown
    trained_noise: str | None = None  # the name of the noise of that training
    arch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertReference:
    """A further network to choose from, with its noise levels."""

    model: ModelReference
    sigma: float  # its sigma0
    bounds: Bounds = None  # of its sigma; None: [sigma0 / 4, 2 sigma0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReference:
    """A router, its noise level, and what it picks from."""

    model: ModelReference
    sigma: float
    routes: tuple[Route, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CertificationSpec:
    """Certify these images of this data set by this model, under this noise, with sigma chosen this way.

    Args:
        model: The model and how it runs.
        experts: Further networks. The search then chooses the network of each input too; the model is the first.
        class_rule: Which class is certified if there are several networks; see `Experts`.
        route: A router that chooses network and sigma instead of the search; see `RoutedClassifier`. Its certificates
            need no memory.
        data: Which images.
        search: How sigma is chosen, with its limits.
        noise: The smoothing distribution.
        exact: Draw exact noise if the images are on a grid.
        budget: How each input is sampled, with the seed.
        family_alpha: Failure probability of the whole table; the alpha of each input is an equal share of it. None:
            `budget.alpha` is the alpha of each input.
        batch: Noisy samples per forward pass; None: the fastest, found by a probe.
        memory: A memory to settle answers in; by default per-input runs keep their own.
        frozen: The memory is frozen: answers are those of its fixed classifier, and nothing is stored.
        shard: The part of the inputs to certify, without settling; None: all of them.
        found: Which model and data were found; None: not resolved yet.
        version: The version of this format.
    """

    model: ModelReference
    data: DataReference
    search: SigmaSearch
    experts: tuple[ExpertReference, ...] = ()
    class_rule: ClassRule = "first"
    route: RouterReference | None = None
    noise: SmoothingDistribution = field(default_factory=Gaussian)
    exact: bool = True
    budget: Budget = field(default_factory=Budget)
    family_alpha: float | None = None
    batch: int | None = None
    memory: str | None = None
    frozen: bool = False
    shard: Shard | None = None
    found: Found | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InvalidInputError(f"expected a request of version {VERSION}, got version={self.version}")
        if self.batch is not None and self.batch < 1:
            raise InvalidInputError(f"expected batch >= 1, got batch={self.batch}")
        how = {(each.backend, each.device) for each in (*self.models, *([self.route.model] if self.route else []))}
        if len(how) > 1:
            raise InvalidInputError(f"expected one backend and device for all networks, got {sorted(map(str, how))}")
        if self.route is not None and (self.search.is_per_input or self.memory is not None):
            got = "a search" if self.search.is_per_input else f"memory={self.memory}"
            raise InvalidInputError(
                f"expected a router alone to choose, without search and memory, got {got}; "
                "leave out --per-input, --search and --memory"
            )
        if self.shard is not None and self.memory is not None:
            raise InvalidInputError(
                f"expected a shard without a memory, because only the merged run is settled, got memory={self.memory}; "
                "give --memory to sigmax merge"
            )
        if self.memory is not None and self.memory != (safe := without_password(self.memory)):
            raise InvalidInputError(
                f"expected a memory URL without a password, because runs record it, got memory={safe} with one; "
                "set PGPASSWORD or use a .pgpass file"
            )
        if self.frozen and self.memory is None:
            raise InvalidInputError("expected a frozen memory, got frozen=True without a memory; name it by --memory")
        if self.frozen and self.is_per_input:
            raise InvalidInputError(
                "expected one sigma outside the balls of a frozen memory, got per-input sigma; leave out --per-input"
            )

    @property
    def models(self) -> tuple[ModelReference, ...]:
        """All networks to choose from; certificates name them by their places here."""
        return (self.model, *(expert.model for expert in self.experts))

    @property
    def is_per_input(self) -> bool:
        """Whether sigma may differ from input to input."""
        return self.search.is_per_input or self.route is not None

    @property
    def needs_memory(self) -> bool:
        """Whether answers could contradict each other without a memory; routed answers cannot."""
        return self.search.is_per_input

    @property
    def method(self) -> str | None:
        """The paper's name for training and certification together; None: it has none.

        Trained with one sigma: cohen, or cohen-ds with a search. Trained with per-input sigma: cohen-ds2 with a search;
        without one cohen-ds2-fixed, which is not in the paper. Plain training under uniform noise is yang. A network
        certified under other noise than in training, which is not in the paper, is cohen-l1 or yang-l2.
        """
        if self.found is None or self.found.trained is None or self.experts or self.route:
            return None
        base, is_ds2, _ = self.found.trained.partition("-ds2")
        noise = name_of(type(self.noise))
        trained_noise = self.found.trained_noise or noise
        name = "yang" if trained_noise == Uniform.name and base == "cohen" else base
        if trained_noise != noise:
            name += f"-l{self.noise.norm}"
        if is_ds2:
            return f"{name}-ds2" if self.is_per_input else f"{name}-ds2-fixed"
        return f"{name}-ds" if self.is_per_input else name

    def with_models(self, change: Callable[[ModelReference], ModelReference]) -> Self:
        """The same request with each of its models changed so."""
        return replace(
            self,
            model=change(self.model),
            experts=tuple(replace(expert, model=change(expert.model)) for expert in self.experts),
            route=self.route and replace(self.route, model=change(self.route.model)),
        )

    def to_json(self) -> str:
        """The request as text, for files and people."""
        return json.dumps(to_plain(self), indent=2) + "\n"

    def decisive(self) -> dict[str, Any]:
        """All that decides the answers, as plain values.

        Left out: how many inputs, since rows are independent; and where things are, once `found` says what they are.
        """
        plain: dict[str, Any] = to_plain(self)
        del plain["data"]["max"]
        if self.found is not None:
            del plain["data"]["name"], plain["data"]["preprocess"]
            for owner in (plain, *plain["experts"], *([plain["route"]] if self.route else [])):
                del owner["model"]["name"], owner["model"]["device"]
        return plain


def read_spec(path: Path) -> CertificationSpec:
    """The request in a JSON file."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: expected a request in JSON, got: {error}") from error
    try:
        return from_plain(CertificationSpec, content)
    except InvalidInputError as error:
        raise RecordError(f"{path}: {error}") from error
