"""The plan: what is done, what is left, and what that will cost."""

from collections import defaultdict
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, final

import numpy as np

from sigmax.errors import DataError, InvalidInputError
from sigmax.records import TABLE, read_table
from sigmax.reproduce.experiment import Certification, Experiment, Network
from sigmax.reproduce.machine import Machine, Speed, measure_speed
from sigmax.reproduce.sources import Sources, load_sources
from sigmax.train.run import CHECKPOINT, SUMMARY, read_checkpoint

NETWORKS, RUNS = "networks", "runs"  # folders of an experiment
_SMALL_BATCHES = ("ascent", "ascent-paper", "grid")  # searches that do not fill batches


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training or a certification."""

    kind: Literal["train", "certify"]
    name: str
    done: int  # training steps, or inputs
    total: int
    passes: int  # forward passes left, a backward pass counting as two
    seconds: float  # for these, by estimate

    @property
    def state(self) -> str:
        """What people read."""
        if self.done >= self.total:
            return "done"
        return f"partly, {self.done:,} of {self.total:,}" if self.done else "to do"

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.done >= self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """What a plan must know of a data set."""

    train: int
    test: int
    shape: tuple[int, ...]
    classes: int


# So that a plan can be made before the data is here.
_KNOWN = {
    "mnist": DataSize(train=60_000, test=10_000, shape=(1, 28, 28), classes=10),
    "fashion-mnist": DataSize(train=60_000, test=10_000, shape=(1, 28, 28), classes=10),
    "cifar10": DataSize(train=50_000, test=10_000, shape=(3, 32, 32), classes=10),
    "imagenet": DataSize(train=1_281_167, test=50_000, shape=(3, 224, 224), classes=1_000),
}


def make_plan(
    experiment: Experiment, out: Path, *, machine: Machine, only: str = "*", sources: Sources | None = None
) -> list[Step]:
    """Every step in its order: each network, then what is certified with it.

    Args:
        experiment: What is asked.
        out: The folder, in which some of it may be done.
        machine: Where it will run.
        only: A pattern: only certifications with such names, and the networks they need.
        sources: The images, where they are read already; by default as `find_sources` finds them.
    """
    runs = [run for run in experiment.certifications if fnmatchcase(run.name, only)]
    if not runs:
        names = ", ".join(run.name for run in experiment.certifications)
        raise InvalidInputError(f"expected a pattern for some of {names}, got only={only!r}")
    return _Planner(experiment, out, machine, size_of(experiment, sources or find_sources(experiment))).steps(runs)


@final
class _Planner:
    """Looks into the folder, and times what it must."""

    def __init__(self, experiment: Experiment, out: Path, machine: Machine, size: DataSize) -> None:
        self.experiment = experiment
        self.out = out
        self.size = size
        self.inputs = len(experiment.indices(self.size.test))
        # Forward passes and seconds of what was done before, by (architecture, what was done).
        self.past: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)

        @cache
        def measured(arch: str) -> Speed:
            return measure_speed(arch, shape=self.size.shape, classes=self.size.classes, machine=machine)

        self.measured = measured

    def steps(self, runs: list[Certification]) -> list[Step]:
        networks = self._needed(runs)
        done = {run.name: self._rows(run) for run in runs}
        trained = {network.name: self._trained(network) for network in networks if network.recipe}
        found = []
        for network in networks:
            if network.recipe is not None:
                found.append(self._training(network, trained[network.name]))
            found += [self._certification(run, done[run.name]) for run in runs if run.network is network]
        return found

    def _needed(self, runs: list[Certification]) -> list[Network]:
        names = {run.network.name for run in runs}
        for network in reversed(self.experiment.networks):  # what is fine-tuned comes after what it starts from
            if network.name in names and network.start:
                names.add(network.start)
        return [network for network in self.experiment.networks if network.name in names]

    def _rows(self, run: Certification) -> int:
        folder = self.out / RUNS / run.name
        if not (folder / TABLE).exists():
            return 0
        table = read_table(folder)
        seconds = float(np.nansum(table.seconds))
        if seconds:
            passes = int(table.samples.sum()) + len(table) * (run.budget.n0 + run.search.cost())
            self.past[run.network.arch, run.search_name].append((passes, seconds))
        return len(table)

    def _trained(self, network: Network) -> int:
        """Training steps done."""
        folder = self.out / NETWORKS / network.name
        if not (folder / CHECKPOINT).exists():
            return 0
        content = read_checkpoint(folder / CHECKPOINT)
        steps, all_steps = int(content["steps_done"]), self._all_steps(network)
        assert network.recipe is not None
        self.past[network.arch, "train"].append(
            (self.size.train * network.recipe.passes * steps // all_steps, float(content["seconds"]))
        )
        # The last step is there before the network is written.
        return steps if (folder / SUMMARY).exists() else min(steps, all_steps - 1)

    def _all_steps(self, network: Network) -> int:
        assert network.recipe is not None
        return network.recipe.epochs * max(1, self.size.train // min(network.recipe.batch, self.size.train))

    def _training(self, network: Network, done: int) -> Step:
        assert network.recipe is not None
        total = self._all_steps(network)
        passes = self.size.train * network.recipe.passes * (total - done) // total
        past = self.past[network.arch, "train"]
        seconds = _at_pace(past, passes) if past else passes / self.measured(network.arch).search if passes else 0.0
        return Step(kind="train", name=network.name, done=done, total=total, passes=passes, seconds=seconds)

    def _certification(self, run: Certification, done: int) -> Step:
        left = max(0, self.inputs - done)
        passes = left * _passes(run)
        past = self.past[run.network.arch, run.search_name]
        seconds = _at_pace(past, passes) if past else self._by_measure(run, left) if left else 0.0
        return Step(kind="certify", name=run.name, done=done, total=self.inputs, passes=passes, seconds=seconds)

    def _by_measure(self, run: Certification, inputs: int) -> float:
        speed, search = self.measured(run.network.arch), run.search.cost()
        is_small = run.search_name in _SMALL_BATCHES
        sampling = (_passes(run) - search) / speed.sampling
        return inputs * (sampling + search / (speed.search if is_small else speed.sampling))


def _passes(run: Certification) -> int:
    """Forward passes for an input; at most, where it may stop early or get fewer."""
    return run.budget.n0 + run.budget.n + run.search.cost()


def _at_pace(past: list[tuple[int, float]], passes: int) -> float:
    """Seconds for so many passes, at the pace of what was done before."""
    return passes * sum(seconds for _, seconds in past) / max(1, sum(done for done, _ in past))


def find_sources(experiment: Experiment) -> Sources | None:
    """The images, where they are here; None where they are not and a plan can do without them."""
    try:
        return load_sources(experiment)
    except DataError:
        if _kind(experiment) not in _KNOWN:
            raise
        return None


def size_of(experiment: Experiment, sources: Sources | None = None) -> DataSize:
    """Of the data, where it is here; else what is known of the data set."""
    if sources is None:
        return _KNOWN[_kind(experiment)]
    test, train = sources.test, sources.train
    return DataSize(
        train=len(train) if train else 0, test=len(test), shape=tuple(test.shape), classes=len(test.class_names)
    )


def _kind(experiment: Experiment) -> str:
    return experiment.data.name.partition(":")[0]
