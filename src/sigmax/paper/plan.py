"""The plan: which images there are, what is done, what is left, and what that will cost."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Literal, final

import numpy as np

from sigmax.data import ImageSource
from sigmax.errors import DataError, InvalidInputError
from sigmax.paper.experiment import Certification, Experiment, Network
from sigmax.paper.machine import Machine, measure_speed
from sigmax.runs import TABLE, read_table
from sigmax.search import AscentSearch, GridSearch
from sigmax.train import Recipe
from sigmax.train.run import CHECKPOINT, SUMMARY, read_checkpoint

RUNS = "runs"  # the folder of certifications
Sources = dict[str, ImageSource]  # "test": those that are certified; "train": those that networks are trained on


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


def load_sources(experiment: Experiment, *, download: bool = False, is_needed: bool = True) -> Sources:
    """Read the images; fetch them when allowed. If they are missing and not needed, a known size will do."""
    parts = {"test": experiment.data, "train": experiment.train_data}
    try:
        sources = {part: named.load(download=download) for part, named in parts.items() if named}
    except DataError:
        if is_needed or experiment.data.kind not in _KNOWN:
            raise
        return {}
    digests = [source.digest() for source in sources.values()]
    if len(set(digests)) < len(digests):
        raise DataError(
            f"expected different images for training and certification, got the same in {experiment.data.name}; name "
            "others by data.train (or --train-data)"
        )
    return sources


def size_of(experiment: Experiment, sources: Sources | None = None) -> DataSize:
    """The size of the images, or without them what is known of the data set."""
    if not sources:
        return _KNOWN[experiment.data.kind]
    test, train = sources["test"], len(sources.get("train", ()))
    return DataSize(train=train, test=len(test), shape=tuple(test.shape), classes=len(test.class_names))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A training or a certification."""

    kind: Literal["train", "certify"]
    name: str
    pace: tuple[str, str]  # architecture and work: steps that share these go at one pace
    done: int  # training steps, or inputs
    total: int
    passes: int  # forward passes left, a backward pass counting as two
    slow: int  # so many of these in the small batches of trainings and gradient searches
    past: tuple[int, float]  # passes done, and the seconds they took
    seconds: float = 0.0  # for the passes left, by estimate

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.done >= self.total

    @property
    def state(self) -> str:
        """What people read."""
        if self.is_done:
            return "done"
        return f"partly, {self.done:,} of {self.total:,}" if self.done else "to do"


def make_plan(experiment: Experiment, out: Path, *, machine: Machine, sources: Sources, only: str = "*") -> list[Step]:
    """Every step in its order: each network, then what is certified with it and those before.

    A step goes at the pace of the same work on the same architecture before in this folder; where there was none, the
    machine is timed.

    Args:
        experiment: What is asked.
        out: The folder, in which some of it may be done.
        machine: Where it will run.
        sources: The images; none: those of a data set whose size is known.
        only: A pattern: only certifications with such names, and the networks they need.
    """
    runs = [run for run in experiment.certifications.values() if fnmatchcase(run.name, only)]
    if not runs:
        names = ", ".join(experiment.certifications)
        raise InvalidInputError(f"expected a pattern for some of {names}, got only={only!r}")
    needed = {network.name for run in runs for network in run.networks}
    for network in reversed(experiment.networks.values()):  # what is fine-tuned comes after what it starts from
        if network.name in needed and network.start:
            needed.add(network.start)
    size = size_of(experiment, sources)
    inputs = len(experiment.data.indices(size.test))
    steps: list[Step] = []
    order = list(experiment.networks)
    for network in (network for name, network in experiment.networks.items() if name in needed):
        if network.recipe is not None:
            steps.append(_training(network, network.recipe, out / network.model.name, size))
        ready = [run for run in runs if max(run.networks, key=lambda each: order.index(each.name)) is network]
        steps += [_certification(run, out / RUNS / run.name, inputs) for run in ready]
    speed = cache(partial(measure_speed, shape=size.shape, classes=size.classes, machine=machine))

    def seconds(step: Step) -> float:
        past = [each.past for each in steps if each.pace == step.pace]
        passes, taken = sum(done for done, _ in past), sum(seconds for _, seconds in past)
        if not step.passes or taken:
            return step.passes * taken / max(1, passes)
        measured = speed(step.pace[0])
        return (step.passes - step.slow) / measured.sampling + step.slow / measured.search

    return [replace(step, seconds=seconds(step)) for step in steps]


def _training(network: Network, recipe: Recipe, folder: Path, size: DataSize) -> Step:
    total = recipe.epochs * max(1, size.train // min(recipe.batch, size.train))
    steps, seconds = 0, 0.0
    if (folder / CHECKPOINT).exists():
        content = read_checkpoint(folder / CHECKPOINT)
        steps, seconds = int(content["steps_done"]), float(content["seconds"])
    # The last step is there before the network is written.
    done = steps if (folder / SUMMARY).exists() else min(steps, total - 1)
    passes = size.train * recipe.passes * (total - done) // total
    pace, past = (network.arch, "training"), (size.train * recipe.passes * steps // total, seconds)
    return Step(
        kind="train", name=network.name, pace=pace, done=done, total=total, passes=passes, slow=passes, past=past
    )


def _certification(run: Certification, folder: Path, inputs: int) -> Step:
    budget, search = run.spec.budget, run.spec.search
    choosing = (budget.n0 + search.cost()) * len(run.networks)
    done, past = 0, (0, 0.0)
    if (folder / TABLE).exists():
        table = read_table(folder)
        done = len(table)
        past = int(table.samples.sum()) + done * choosing, float(np.nansum(table.seconds))
    left, pace = max(0, inputs - done), (run.network.arch, search.label())
    passes = left * (choosing + budget.n)  # at most: an input may stop early or get fewer
    slow = left * search.cost() if isinstance(search, AscentSearch | GridSearch) else 0
    return Step(kind="certify", name=run.name, pace=pace, done=done, total=inputs, passes=passes, slow=slow, past=past)
