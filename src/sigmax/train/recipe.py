"""The request of a training: all that decides what it gives, in one frozen value.

The command line, presets and experiments parse into it, checkpoints and summaries hold it, and resuming compares it.
"""

from dataclasses import dataclass, field
from typing import Literal, final, get_args, get_origin, get_type_hints

from sigmax.errors import InvalidInputError
from sigmax.named import name_of
from sigmax.noise import Gaussian, SmoothingDistribution
from sigmax.train.examples import Augment
from sigmax.train.objectives import Objective
from sigmax.train.objectives.cohen import Cohen
from sigmax.train.optimizers import Optimizer
from sigmax.train.schedule import Schedule
from sigmax.train.sigma import ConstantSigma, SigmaSource

Precision = Literal["32-true", "16-mixed", "bf16-mixed"]
_POSITIVE = ("sigma", "lr", "clip")
_LEAST = {"epochs": 1, "batch": 1, "drop_every": 1, "momentum": 0, "weight_decay": 0, "ema": 0, "seed": 0}
_BELOW = {"ema": 1, "seed": 2**63}  # each step adds to the seed, and torch takes 64 bits


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a training."""

    arch: str  # the network; see `sigmax.models.build_network`
    sigma: float  # the noise level that the network is made for; per-input sigma starts there
    sigma_source: SigmaSource = field(default_factory=ConstantSigma)  # or SigmaTable, SigmaRange
    objective: Objective = field(default_factory=Cohen)  # what is minimised
    noise: SmoothingDistribution = field(default_factory=Gaussian)
    normalize: str = "none"  # the normalisation before the network
    epochs: int = 30
    batch: int = 256  # examples per step, over all processes
    lr: float = 0.1  # the highest learning rate
    schedule: Schedule = "one-cycle"  # how the learning rate moves; see `learning_rate`
    drop_every: int = 50  # epochs between the drops of the "step" schedule
    optimizer: Optimizer = "sgd"  # see `make_optimizer`
    momentum: float = 0.9  # in Nesterov's form
    weight_decay: float = 5e-4  # not on biases and batch norm
    clip: float | None = None  # the largest norm of the gradient; None: any
    ema: float = 0.0  # decay per step of the average of the weights, which is then certified; 0: no average
    augment: Augment = "none"  # how images are varied; see `ExampleStream`
    seed: int = 0  # decides initial weights, order, augmentation and noise
    precision: Precision = "32-true"  # of the arithmetic

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if name in _POSITIVE and value is not None and not 0 < value < float("inf"):
                raise InvalidInputError(f"expected {name} > 0, got {name}={value}")
            if name in _LEAST and not _LEAST[name] <= value < _BELOW.get(name, float("inf")):
                below = f" and < {_BELOW[name]}" if name in _BELOW else ""
                raise InvalidInputError(f"expected {name} >= {_LEAST[name]}{below}, got {name}={value}")
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise InvalidInputError(f"expected {name} to be {' or '.join(get_args(hint))}, got {name}={value!r}")
        self.sigma_source.check(self.sigma)
        if not 0 <= self.sigma_source.warmup < self.epochs:
            raise InvalidInputError(
                f"expected 0 <= warmup < epochs, got warmup={self.sigma_source.warmup}, epochs={self.epochs}; "
                "lower warmup: no epoch would be left for per-input sigma"
            )

    @property
    def method(self) -> str:
        """The method as the paper calls it, such as cohen or macer-ds2."""
        return name_of(type(self.objective)) + self.sigma_source.suffix

    @property
    def passes(self) -> int:
        """Forward passes per example over all epochs, a backward pass counting as two: for planning."""
        source = self.sigma_source
        return self.epochs * self.objective.passes + (self.epochs - source.warmup) * source.passes
