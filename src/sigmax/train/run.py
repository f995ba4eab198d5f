"""A whole training, in a folder that survives interruptions: checkpoints, curves, the network and a summary."""

import io
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, final

import torch
from lightning_fabric import Fabric
from torch import nn

from sigmax.cards import card_entry
from sigmax.data import ImageSource
from sigmax.errors import InvalidInputError, TrainingError, one_line
from sigmax.files import lock_folder, write_atomically
from sigmax.models import ModelCard, save_model
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.models.normalisation import Normalize
from sigmax.named import name_of
from sigmax.plain import to_plain
from sigmax.runs.folder import check_same
from sigmax.train.curves import LogTo, curves
from sigmax.train.evaluation import noisy_accuracy
from sigmax.train.recipe import Recipe
from sigmax.train.training import StepReport, Training

T = TypeVar("T")
CHECKPOINT, SUMMARY = "checkpoint.pt", "summary.json"
# Steps between two checkpoints inside an epoch: minutes, with networks that take minutes for an epoch.
CHECKPOINT_STEPS = 500
_CONTENT = {"recipe", "data", "start", "seconds", "steps_done", "weights", "optimizer", "sigma", "precision"}
# Noise levels at which a network for a range of sigma is judged, if they are inside the range.
_JUDGED = (0.12, 0.25, 0.5, 1.0)
_HELD_OUT = 1_000  # images, evenly spread, on which the network is judged after each epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """How a training went."""

    method: str
    sigma: float
    epochs: int
    seconds: float  # without interruptions
    noisy_accuracy: dict[float, float]  # by sigma: on held-out images under one draw of noise; empty: none were given
    mean_sigma: float  # over the training examples
    processes: int


def train(
    recipe: Recipe,
    source: ImageSource,
    out: Path,
    *,
    held_out: ImageSource | None = None,
    fabric: Fabric | None = None,
    network: nn.Module | None = None,
    resume: bool = False,
    checkpoint_steps: int = CHECKPOINT_STEPS,
    log_to: LogTo = "tensorboard",
    on_step: Callable[[StepReport], None] | None = None,
) -> TrainingSummary:
    """Train into the folder `out`: model.safetensors for certification, checkpoints, curves and a summary.

    Args:
        recipe: The settings.
        source: The training examples.
        out: The folder.
        held_out: Images on which accuracy is measured: after each epoch on at most 1,000, in the end on all.
        fabric: Where it runs, already launched; by default in this process.
        network: A network to fine-tune, for pixels in the data's own space; by default fresh weights.
        resume: Continue a training with the same settings; only `epochs` may be larger.
        checkpoint_steps: Steps between checkpoints; there is always one at the end of an epoch.
        log_to: Where the curves go.
        on_step: Called after each step. If it raises, the training stops and can be resumed from there.
    """
    if checkpoint_steps < 1:
        raise InvalidInputError(f"expected checkpoint_steps >= 1, got checkpoint_steps={checkpoint_steps}")
    training = Training(recipe, source, fabric=fabric, network=network)
    with ExitStack() as stack:
        if training.fabric.is_global_zero:
            stack.callback(lock_folder(out).release)
        folder = _TrainingFolder(out, training, held_out)
        folder.open(resume=resume)
        with curves(out, training, log_to) if folder.is_first else nullcontext(lambda _: None) as draw:
            folder.run(checkpoint_steps, draw, on_step)
        return folder.finish()


@final
class _TrainingFolder:
    """The files of a training. Only the first process writes."""

    def __init__(self, out: Path, training: Training, held_out: ImageSource | None) -> None:
        self.out = out
        self.held_out = held_out
        self.training = training
        self.checkpoint = out / CHECKPOINT
        self.seconds = 0.0
        self.is_first = training.fabric.is_global_zero

    def open(self, *, resume: bool) -> None:
        """Load the checkpoint to resume from, if there is one."""
        # The first process reads for all: the others may be on machines without this folder.
        content = self.training.fabric.broadcast(self._read(resume=resume) if self.is_first else None)
        if content is not None:
            self.training.restore(content)
            self.seconds = content["seconds"]

    def _read(self, *, resume: bool) -> dict[str, Any] | None:
        has_checkpoint = self.checkpoint.exists()
        if has_checkpoint and not resume:
            raise TrainingError(
                f"expected a new folder, got {self.out} with a training in it; add --resume to continue"
            )
        if not has_checkpoint and (self.out / MODEL_FILE).exists():
            raise TrainingError(f"expected a new folder, got {self.out} with a network in it; name another by --out")
        if not has_checkpoint:
            return None
        content = read_checkpoint(self.checkpoint)
        decisive = self._decisive()
        begun = {name: content[name] for name in decisive}
        if begun["recipe"]["epochs"] < decisive["recipe"]["epochs"]:  # a longer training of the same kind
            begun["recipe"] = {**begun["recipe"], "epochs": decisive["recipe"]["epochs"]}
        check_same(begun, decisive, self.out)
        return content

    def _decisive(self) -> dict[str, Any]:
        """What must be the same on resume, as plain values."""
        training = self.training
        return {"recipe": to_plain(training.recipe), "data": training.source.digest(), "start": training.start}

    def run(
        self,
        checkpoint_steps: int,
        draw: Callable[[StepReport], None],
        on_step: Callable[[StepReport], None] | None,
    ) -> None:
        """Take all steps that are left."""
        training = self.training
        began = time.perf_counter() - self.seconds
        while training.steps_done < training.steps:
            with _held_interrupts() as held:  # half a step cannot be saved
                report = self._checked(training.step)
                is_epoch_end = report.step % training.examples.steps_per_epoch == 0
                if is_epoch_end:
                    report = replace(report, held_out_accuracy=self._judge(training.recipe.sigma, most=_HELD_OUT))
                self.seconds = time.perf_counter() - began
                draw(report)
                try:
                    if on_step is not None:
                        on_step(report)
                except BaseException:
                    self._save()
                    raise
                if held or is_epoch_end or report.step % checkpoint_steps == 0:
                    self._save()
            if held:
                raise KeyboardInterrupt

    def _judge(self, sigma: float, *, most: int | None = None) -> float | None:
        """Accuracy on held-out images under one draw of noise; only the first process knows it."""
        recipe = self.training.recipe
        if not self.is_first or self.held_out is None:
            return None
        return noisy_accuracy(
            self.training.result, self.held_out, noise=recipe.noise, sigma=sigma, seed=recipe.seed, most=most
        )

    def finish(self) -> TrainingSummary:
        """Write the network for certification, and the summary; other processes only return theirs."""
        training, recipe = self.training, self.training.recipe
        if self.is_first:
            self._checked(training.state)
        judged = {sigma: self._judge(sigma) for sigma in judged_at(model_card(recipe, training.source))}
        summary = TrainingSummary(
            method=recipe.method,
            sigma=recipe.sigma,
            epochs=recipe.epochs,
            seconds=self.seconds,
            noisy_accuracy={sigma: accuracy for sigma, accuracy in judged.items() if accuracy is not None},
            mean_sigma=float(training.sigma.mean()),
            processes=training.fabric.world_size,
        )
        if self.is_first:
            content = {**asdict(summary), "recipe": to_plain(recipe), "data": training.source.name}
            with _writing(self.out):
                save_model(self.out / MODEL_FILE, training.result, model_card(recipe, training.source))
                write_atomically(self.out / SUMMARY, (json.dumps(content, indent=2) + "\n").encode())
        return summary

    def _checked(self, act: Callable[[], T]) -> T:
        """Run `act`; if the training diverged, say what is kept and what to try."""
        try:
            return act()
        except TrainingError as error:
            kept = self.checkpoint.exists()
            place = f"the last good checkpoint is {self.checkpoint}" if kept else "it came before the first checkpoint"
            start = f"--from {self.checkpoint} " if kept else ""
            raise TrainingError(
                f"training diverged: {error}; {place}. "
                f"Try {start}--lr {self.training.recipe.lr / 2:g} or --clip 1 with another --out"
            ) from error

    def _save(self) -> None:
        if self.is_first:
            state = self._checked(self.training.state)
            card = model_card(self.training.recipe, self.training.source)
            buffer = io.BytesIO()
            torch.save({**card_entry(card), **self._decisive(), "seconds": self.seconds, **state}, buffer)
            with _writing(self.checkpoint):
                write_atomically(self.checkpoint, buffer.getvalue())


@contextmanager
def _held_interrupts() -> Iterator[list[int]]:
    """Hold back the first interrupt and note it in the list; a second one is not held back."""
    usual = signal.getsignal(signal.SIGINT)
    held: list[int] = []
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield held
        return

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            usual(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, usual)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"expected to write {path}, got: {error}; the last checkpoint stays: make room, then --resume"
        ) from error


def model_card(recipe: Recipe, source: ImageSource) -> ModelCard:
    """The card of a network of this recipe: what certification must know."""
    mean, std = Normalize.parse(recipe.normalize).values
    return ModelCard(
        arch=recipe.arch,
        num_classes=len(source.class_names),
        input_shape=tuple(source.shape),
        mean=mean,
        std=std,
        class_names=source.class_names,
        sigma=recipe.sigma,
        sigma_range=recipe.sigma_source.bounds,
        noise=name_of(type(recipe.noise)),
        method=recipe.method,
        data=source.name.partition(":")[0],
    )


def judged_at(card: ModelCard) -> list[float]:
    """The noise levels at which a network is judged: its sigma, or the usual ones inside its range."""
    low, high = card.sigma_range or (math.inf, -math.inf)
    usual = [sigma for sigma in _JUDGED if low <= sigma <= high]
    return usual or ([] if card.sigma is None else [card.sigma])


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read the checkpoint of a training; only tensors and plain values are loaded."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken pickle can raise anything
        raise TrainingError(
            f"{path}: expected a whole checkpoint, got: {one_line(error)}; start again in another --out"
        ) from error
    if not set(content) >= _CONTENT:
        raise TrainingError(f"{path}: expected a checkpoint of a training, got one of something else")
    return content  # type: ignore[no-any-return]
