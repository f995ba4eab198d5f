"""The images of an experiment: those that are certified, and those that networks are trained on."""

from dataclasses import dataclass
from typing import final

from sigmax.data import ImageSource, load_source
from sigmax.errors import DataError
from sigmax.reproduce.experiment import Experiment


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Both, read once for all that needs them."""

    test: ImageSource
    train: ImageSource | None  # None: nothing is trained

    def digests(self) -> dict[str, str]:
        """What tells each from other images."""
        parts = {"test": self.test, "train": self.train}
        return {part: source.digest() for part, source in parts.items() if source is not None}


def load_sources(experiment: Experiment, *, download: bool = False) -> Sources:
    """Read what the experiment names; fetch it when allowed."""
    is_trained = any(network.recipe for network in experiment.networks)
    test = load_source(experiment.data.name, split="test", download=download)
    train = load_source(experiment.train_data, split="train", download=download) if is_trained else None
    if train is not None and train.digest() == test.digest():
        raise DataError(
            f"expected other images to train on than those to certify, got data.name={experiment.data.name} and "
            f"data.train={experiment.train_data}, which are the same; name others by data.train (or --train-data)"
        )
    return Sources(test=test, train=train)
