"""Everything that decides what a training gives, in one frozen value."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from sigmax.errors import InvalidInputError
from sigmax.noise import Gaussian, SmoothingDistribution, Uniform
from sigmax.sigma import AscentSearch
from sigmax.sigma.ascent import PAPER_STEP
from sigmax.train.examples import AUGMENTS, Augment
from sigmax.train.objectives import Objective, method_spec
from sigmax.train.objectives.cohen import Cohen
from sigmax.train.optimizers import OPTIMIZERS, Optimizer
from sigmax.train.schedule import SCHEDULES, Schedule

Precision = Literal["32-true", "16-mixed", "bf16-mixed"]
PER_INPUT = ("warmup", "search_steps", "search_samples", "step_size")  # settings that only `per_input` looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings of a training.

    Args:
        arch: The network; see `sigmax.models.build_network`.
        sigma: The noise level; with `per_input`, where each example's own level starts.
        sigma_range: Lowest and highest level: each visit to an example draws its own, uniformly in log sigma.
        objective: What is minimised.
        norm: "l2": Gaussian noise; "l1": uniform noise of half-width sigma.
        normalize: The normalisation in front of the network.
        epochs: Passes over the data.
        batch: Examples per step, over all processes.
        lr: The highest learning rate.
        schedule: How the learning rate moves; see `learning_rate`.
        drop_every: Epochs between the drops of the "step" schedule.
        optimizer: "sgd" or "muon"; see `make_optimizer`.
        momentum: Of the optimizer, in Nesterov's form.
        weight_decay: On weights; not on biases and batch norm.
        clip: The gradient's norm is cut to this; None: it is not.
        augment: How images are varied; see `ExampleStream`.
        per_input: Algorithm 2: each example has its own sigma, and keeps it across epochs.
        warmup: Epochs with one sigma for all before that begins.
        search_steps: K, ascent steps on each example's sigma per visit.
        search_samples: Noise draws per ascent step.
        step_size: Of the ascent.
        seed: Decides initial weights, order, augmentation and noise.
        precision: Of the arithmetic.
    """

    arch: str
    sigma: float
    sigma_range: tuple[float, float] | None = None
    objective: Objective = field(default_factory=Cohen)
    norm: Literal["l2", "l1"] = "l2"
    normalize: str = "none"
    epochs: int = 30
    batch: int = 256
    lr: float = 0.1
    schedule: Schedule = "one-cycle"
    drop_every: int = 50
    optimizer: Optimizer = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float | None = None
    augment: Augment = "none"
    per_input: bool = False
    warmup: int = 0
    search_steps: int = 1
    search_samples: int = 1
    step_size: float = PAPER_STEP
    seed: int = 0
    precision: Precision = "32-true"

    def __post_init__(self) -> None:
        for name in ("sigma", "lr", "step_size"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidInputError(f"expected {name} > 0, got {name}={getattr(self, name)}")
        for name, least in {
            "epochs": 1,
            "batch": 1,
            "drop_every": 1,
            "warmup": 0,
            "search_steps": 0,
            "seed": 0,
            "search_samples": 1,
            "momentum": 0,
            "weight_decay": 0,
        }.items():
            if not getattr(self, name) >= least:
                raise InvalidInputError(f"expected {name} >= {least}, got {name}={getattr(self, name)}")
        for name, known in {
            "schedule": SCHEDULES,
            "augment": AUGMENTS,
            "norm": ("l2", "l1"),
            "optimizer": OPTIMIZERS,
            "precision": get_args(Precision),
        }.items():
            if getattr(self, name) not in known:
                raise InvalidInputError(f"expected {name} to be {' or '.join(known)}, got {getattr(self, name)!r}")
        if self.seed >= 2**63:  # each step adds to it, and torch takes 64 bits
            raise InvalidInputError(f"expected seed < 2**63, got seed={self.seed}")
        if self.clip is not None and not self.clip > 0:
            raise InvalidInputError(f"expected clip > 0, got clip={self.clip}")
        if self.sigma_range is not None:
            low, high = self.sigma_range
            if not 0 < low < high < float("inf") or self.per_input:
                raise InvalidInputError(
                    f"expected 0 < low < high in sigma_range, without per_input, got {low},{high}, "
                    f"per_input={self.per_input}"
                )
        if self.per_input and self.warmup >= self.epochs:
            raise InvalidInputError(
                f"expected warmup < epochs with per_input, got warmup={self.warmup}, epochs={self.epochs}: "
                "no epoch would be left in which examples have their own sigma; lower warmup"
            )

    @property
    def noise(self) -> SmoothingDistribution:
        """The smoothing distribution."""
        return Gaussian() if self.norm == "l2" else Uniform()

    @property
    def search(self) -> AscentSearch:
        """Algorithm 1 as Algorithm 2 uses it: as the paper does, but inside the usual bounds."""
        return AscentSearch(
            initial=self.sigma,
            steps=self.search_steps,
            samples=self.search_samples,
            step_size=self.step_size,
            fixes_class=False,
            pilot=0,
        )

    @property
    def passes(self) -> int:
        """Forward passes per example over all epochs, a backward pass counting as two: for planning."""
        visits = self.epochs - self.warmup if self.per_input else 0
        return self.epochs * self.objective.passes + 3 * visits * self.search_steps * self.search_samples

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for checkpoints and people; the objective under its name and its options."""
        objective = {"method": method_spec(self.objective), **asdict(self.objective)}  # type: ignore[call-overload]
        return {**{name: getattr(self, name) for name in self.__slots__}, "objective": objective}
