"""Trainings on the digits: what they learn, and what does not change them."""

import csv
import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from sigmax import FixedSigma, SmoothedClassifier, Uniform
from sigmax.data import ArraySource, ImageSource, load_source
from sigmax.errors import InvalidInputError, ModelError, RecordError, TrainingError
from sigmax.files import lock_folder
from sigmax.models import load_model
from sigmax.noise import Gaussian
from sigmax.plain import from_plain, to_plain
from sigmax.train import (
    Batch,
    ConstantSigma,
    Objective,
    Outcome,
    Recipe,
    SigmaRange,
    SigmaSource,
    SigmaTable,
    Training,
    make_objective,
    train,
)
from sigmax.train.evaluation import noisy_accuracy
from sigmax.train.objectives import Network
from sigmax.train.run import read_checkpoint
from sigmax.train.training import StepReport, fresh_network

RECIPE = Recipe(arch="digits-cnn", sigma=0.25, epochs=12, batch=64, clip=1.0)
SHORT = replace(RECIPE, epochs=2)
OPTIONS: dict[str, dict[str, Any]] = {
    "cohen": {},
    "smoothadv": {"warmup": 4},
    "macer": {"draws": 8},
    "consistency": {"strength": 5.0},
    "catrs": {"epsilon": 0.25, "steps": 2},
}
CONSTANT, TABLE, RANGE = ConstantSigma(), SigmaTable(), SigmaRange(bounds=(0.12, 0.5))
SOURCES = [CONSTANT, replace(TABLE, warmup=2), RANGE]


@pytest.fixture(scope="module")
def digits() -> ImageSource:
    return load_source("digits", split="train")


def weights(training: Training) -> list[Tensor]:
    return [tensor.clone() for tensor in training.network.state_dict().values()]


def finish(training: Training) -> Training:
    for _ in training:
        pass
    return training


def certified_accuracy(network: nn.Module, radius: float, *, uniform: bool = False) -> float:
    test = load_source("digits", split="test")
    places = range(0, 400, 4)
    noise = Uniform() if uniform else Gaussian()
    smoothed = SmoothedClassifier(network.eval(), num_classes=10, noise=noise, sigma=FixedSigma(0.25))
    certificates = smoothed.certify(torch.from_numpy(test.images(places)), n=1_000, alpha=0.001, seed=0)
    hits = [c.label == test.labels[i] and c.radius >= radius for i, c in zip(places, certificates, strict=True)]
    return float(np.mean(hits))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("method", OPTIONS)
def test_every_objective_learns_with_every_source_of_sigma(
    digits: ImageSource, method: str, source: SigmaSource
) -> None:
    objective = make_objective(method, OPTIONS[method])
    recipe = replace(RECIPE, objective=objective, lr=0.05 if method == "macer" else 0.1, sigma_source=source)
    training = finish(Training(recipe, digits))
    # Half of what these trainings reach; with a dead gradient they stay at 0.1.
    assert certified_accuracy(training.network, 0.25) > 0.5
    moved = training.sigma != 0.25
    assert bool(moved.all() if source.is_per_input else moved.any()) == source.is_per_input


def test_uniform_noise_gives_l1_certificates(digits: ImageSource) -> None:
    training = finish(Training(replace(RECIPE, noise=Uniform()), digits))
    assert certified_accuracy(training.network, 0.1, uniform=True) > 0.6


def test_no_ascent_steps_are_exactly_the_training_with_one_sigma(digits: ImageSource) -> None:
    fixed = finish(Training(SHORT, digits))
    table = finish(Training(replace(SHORT, sigma_source=SigmaTable(search_steps=0)), digits))
    moving = finish(Training(replace(SHORT, sigma_source=TABLE), digits))
    assert all(torch.equal(a, b) for a, b in zip(weights(fixed), weights(table), strict=True))
    assert torch.equal(table.sigma, torch.full((len(digits),), 0.25))
    assert not all(torch.equal(a, b) for a, b in zip(weights(fixed), weights(moving), strict=True))


def test_warm_up_epochs_keep_one_sigma(digits: ImageSource) -> None:
    training = Training(replace(SHORT, sigma_source=SigmaTable(warmup=1)), digits)
    for report in training:
        is_warm = report.epoch == 1
        assert bool((training.sigma == 0.25).all()) == is_warm


def interrupted(recipe: Recipe, source: ImageSource, out: Path, at: int, **more: Any) -> None:
    """Train, and break off in the middle of a step."""

    def stop(report: Any) -> None:
        if report.step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, source, out, on_step=stop, **more)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "muon"},
        {"objective": make_objective("smoothadv"), "sigma_source": TABLE},
        {"sigma_source": RANGE, "ema": 0.9},
    ],
    ids=["constant", "table", "range-averaged"],
)
def test_resumed_is_bit_identical(digits: ImageSource, tmp_path: Path, change: dict[str, Any]) -> None:
    recipe = replace(SHORT, augment="crop", **change)
    train(recipe, digits, tmp_path / "whole", checkpoint_steps=7)
    for at in (3, 11, 25, 30):  # before the first checkpoint, and after others
        interrupted(recipe, digits, tmp_path / "broken", at, checkpoint_steps=7, resume=True)
    train(recipe, digits, tmp_path / "broken", checkpoint_steps=7, resume=True)
    whole, broken = (read_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("whole", "broken"))
    assert torch.equal(whole["sigma"], broken["sigma"])
    for part in ("state_dict", "weights"):
        assert all(torch.equal(whole[part][name], broken[part][name]) for name in whole[part])
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_average_of_the_weights_is_what_is_certified(digits: ImageSource, tmp_path: Path) -> None:
    recipe = replace(SHORT, ema=0.8)
    training = Training(recipe, digits)
    averages: list[Tensor] = []
    for _ in training:
        now = weights(training)
        averages = [0.8 * a + 0.2 * w for a, w in zip(averages, now, strict=True)] if averages else now
    found = list(training.result.state_dict().values())
    torch.testing.assert_close(found, averages)
    assert all(torch.equal(a, b) for a, b in zip(now, weights(finish(Training(SHORT, digits))), strict=True))
    summary = train(recipe, digits, tmp_path, held_out=load_source("digits", split="test"))
    content = read_checkpoint(tmp_path / "checkpoint.pt")
    for part, expected in (("weights", now), ("state_dict", found)):
        assert all(torch.equal(a, b) for a, b in zip(content[part].values(), expected, strict=True))
    certified = load_model(str(tmp_path)).model
    assert isinstance(certified, nn.Module)
    for name, tensor in certified.state_dict().items():
        assert torch.equal(tensor, content["state_dict"][name])
    test, noise = load_source("digits", split="test"), recipe.noise
    assert summary.noisy_accuracy == {0.25: noisy_accuracy(certified, test, noise=noise, sigma=0.25, seed=0)}


def test_an_interrupt_within_a_step_waits_for_its_end_and_loses_nothing(
    digits: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(SHORT, digits, tmp_path / "whole")
    usual = Training.step

    def interrupted_step(training: Training) -> StepReport:
        if training.steps_done == 2:
            signal.raise_signal(signal.SIGINT)
        return usual(training)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", interrupted_step)
        with pytest.raises(KeyboardInterrupt):
            train(SHORT, digits, tmp_path / "interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert read_checkpoint(tmp_path / "interrupted" / "checkpoint.pt")["steps_done"] == 3
    train(SHORT, digits, tmp_path / "interrupted", resume=True)
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "interrupted")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_second_interrupt_stops_a_training_at_once(
    digits: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_training: Training) -> StepReport:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("still here")

    monkeypatch.setattr(Training, "step", endless)
    with pytest.raises(KeyboardInterrupt):
        train(SHORT, digits, tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_finished_training_resumes_to_nothing(digits: ImageSource, tmp_path: Path) -> None:
    first = train(SHORT, digits, tmp_path / "run")
    steps: list[Any] = []
    again = train(SHORT, digits, tmp_path / "run", resume=True, on_step=steps.append)
    assert (steps, again) == ([], first)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"lr": 0.2}, "lr"),
        ({"sigma": 0.5}, "sigma"),
        ({"sigma_source": TABLE}, "sigma_source"),
        ({"ema": 0.9}, "ema"),
        ({"objective": make_objective("cohen", {"draws": 2})}, "draws"),
    ],
)
def test_other_settings_do_not_continue_a_training(
    digits: ImageSource, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    interrupted(SHORT, digits, tmp_path, 25)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(RecordError, match=named):
        train(replace(SHORT, **change), digits, tmp_path, resume=True)
    with pytest.raises(TrainingError, match="--resume"):
        train(SHORT, digits, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept


def test_other_data_does_not_continue_a_training(digits: ImageSource, tmp_path: Path) -> None:
    interrupted(SHORT, digits, tmp_path, 25)
    fewer = ArraySource("fewer", digits.images(range(100)), digits.labels[:100], digits.class_names, levels=None)
    with pytest.raises(RecordError, match="data="):
        train(SHORT, fewer, tmp_path, resume=True)


def test_another_start_does_not_continue_a_training(digits: ImageSource, tmp_path: Path) -> None:
    def start(seed: int) -> nn.Module:
        return fresh_network(replace(SHORT, seed=seed), digits)

    interrupted(SHORT, digits, tmp_path / "fresh", 25)
    with pytest.raises(RecordError, match="start="):
        train(SHORT, digits, tmp_path / "fresh", network=start(1), resume=True)
    interrupted(SHORT, digits, tmp_path / "tuned", 25, network=start(1))
    kept = (tmp_path / "tuned" / "checkpoint.pt").read_bytes()
    with pytest.raises(RecordError, match="start="):
        train(SHORT, digits, tmp_path / "tuned", network=start(2), resume=True)
    with pytest.raises(RecordError, match="start=None"):
        train(SHORT, digits, tmp_path / "tuned", resume=True)
    assert (tmp_path / "tuned" / "checkpoint.pt").read_bytes() == kept
    train(SHORT, digits, tmp_path / "tuned", network=start(1), resume=True)
    train(SHORT, digits, tmp_path / "whole", network=start(1))
    tuned, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("tuned", "whole"))
    assert tuned == whole


def test_a_fabric_of_another_precision_is_refused(digits: ImageSource) -> None:
    with pytest.raises(InvalidInputError, match="bf16-mixed"):
        Training(SHORT, digits, fabric=Fabric(devices=1, precision="bf16-mixed"))


def test_a_broken_checkpoint_is_named(digits: ImageSource, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"cut off")
    with pytest.raises(TrainingError, match=r"checkpoint.pt"):
        train(SHORT, digits, tmp_path, resume=True)


def test_two_trainings_do_not_share_a_folder(digits: ImageSource, tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    with pytest.raises(RecordError, match="only writer"):
        train(SHORT, digits, tmp_path)
    lock.release()


def test_divergence_keeps_the_last_good_checkpoint_and_says_what_to_try(tmp_path: Path) -> None:
    """An image that is no number, met in the second epoch only, because the first leaves one example out."""
    random = np.random.default_rng(0)
    pixels = random.random((129, 1, 8, 8), dtype=np.float32)
    recipe = replace(RECIPE, batch=64, epochs=6)
    clean = ArraySource("clean", pixels, np.arange(129) % 10, [str(i) for i in range(10)], levels=None)
    left_out = set(range(129)) - {int(i) for step in (0, 1) for i in Training(recipe, clean).examples.at(step).indices}
    pixels[left_out.pop()] = np.nan
    with pytest.raises(TrainingError, match=r"nan.*checkpoint.pt --lr 0.05"):
        train(recipe, clean, tmp_path)
    kept = read_checkpoint(tmp_path / "checkpoint.pt")
    assert kept["steps_done"] % 2 == 0
    assert all(torch.isfinite(tensor).all() for tensor in kept["state_dict"].values())
    assert load_model(str(tmp_path / "checkpoint.pt")).card is not None


def test_the_network_brings_what_certification_needs(digits: ImageSource, tmp_path: Path) -> None:
    recipe = replace(SHORT, sigma_source=TABLE, normalize="0.3/0.4")
    test = load_source("digits", split="test")
    summary = train(recipe, digits, tmp_path, held_out=test)
    for name in ("model.safetensors", "checkpoint.pt"):
        card = load_model(str(tmp_path / name)).card
        assert card is not None
        assert (card.arch, card.sigma, card.noise, card.method) == ("digits-cnn", 0.25, "gaussian", "cohen-ds2")
        assert (card.mean, card.std, card.input_shape, card.class_names) == (
            (0.3,),
            (0.4,),
            (1, 8, 8),
            test.class_names,
        )
    written = json.loads((tmp_path / "summary.json").read_text())
    assert {float(sigma): share for sigma, share in written["noisy_accuracy"].items()} == summary.noisy_accuracy
    assert from_plain(Recipe, written["recipe"]) == recipe
    assert list(summary.noisy_accuracy) == [0.25]
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_network_for_a_range_says_it_and_is_judged_inside_it(digits: ImageSource, tmp_path: Path) -> None:
    summary = train(replace(SHORT, sigma_source=RANGE), digits, tmp_path, held_out=load_source("digits", split="test"))
    card = load_model(str(tmp_path)).card
    assert card is not None
    assert (card.sigma, card.sigma_range, card.method) == (0.25, (0.12, 0.5), "cohen")
    assert list(summary.noisy_accuracy) == [0.12, 0.25, 0.5]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_recipe_survives_being_written(source: SigmaSource) -> None:
    objective = make_objective("smoothadv", {"attack": "ddn"})
    recipe = replace(RECIPE, sigma_source=source, noise=Uniform(), objective=objective, ema=0.99)
    assert from_plain(Recipe, json.loads(json.dumps(to_plain(recipe)))) == recipe


def test_fine_tuning_starts_from_the_given_weights(digits: ImageSource, tmp_path: Path) -> None:
    train(replace(RECIPE, epochs=6), digits, tmp_path)
    network = load_model(str(tmp_path)).model
    assert isinstance(network, nn.Module)
    first = Training(replace(SHORT, lr=1e-6), digits, network=network).step()
    assert first.noisy_accuracy > 0.6


def test_convolutions_run_channels_last(digits: ImageSource) -> None:
    training = Training(SHORT, digits)
    second = [p for p in training.network.parameters() if p.ndim == 4][1]
    assert second.is_contiguous(memory_format=torch.channels_last)
    assert not second.is_contiguous()


@pytest.mark.parametrize(
    "change",
    [
        {"sigma": 0.0},
        {"lr": float("nan")},
        {"epochs": 0},
        {"schedule": "linear"},
        {"clip": 0.0},
        {"clip": float("nan")},
        {"weight_decay": -1.0},
        {"ema": 1.0},
        {"optimizer": "adam"},
        {"precision": "half"},
        {"augment": "mixup"},
        {"seed": 2**63},
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(change))):
        replace(RECIPE, **change)


@pytest.mark.parametrize(
    "source",
    [
        SigmaTable(search_samples=0),
        SigmaTable(step_size=0.0),
        SigmaTable(warmup=12),
        SigmaTable(warmup=-1),
        SigmaTable(bounds=(0.3, 0.5)),
        SigmaTable(bounds=(-1.0, 0.5)),
        SigmaRange(bounds=(0.5, 0.12)),
        SigmaRange(bounds=(0.0, 0.5)),
        SigmaRange(bounds=(0.5, 1.0)),
    ],
)
def test_sources_of_sigma_that_cannot_be_are_refused(source: SigmaSource) -> None:
    with pytest.raises(InvalidInputError):
        replace(RECIPE, sigma_source=source)


def test_the_tensorboard_curves_hold_every_point_once(digits: ImageSource, tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    recipe = replace(SHORT, sigma_source=TABLE, epochs=3)
    interrupted(recipe, digits, tmp_path, 45, checkpoint_steps=25)
    train(recipe, digits, tmp_path, resume=True, checkpoint_steps=25)
    points: dict[str, list[int]] = {}
    for file in sorted((tmp_path / "tensorboard").iterdir()):
        for event in events(file.read_bytes(), Event):
            if event.session_log.status == SessionLog.START:
                # What TensorBoard does on a restart: forget the steps from here on.
                points = {tag: [step for step in steps if step < event.step] for tag, steps in points.items()}
            for value in event.summary.value:
                points.setdefault(value.tag, []).append(event.step)
    assert set(points) == {"loss", "noisy_accuracy", "mean_sigma", "learning_rate", "sigma"}
    assert all(steps == [20, 40, 60] for steps in points.values())


def test_a_longer_training_continues_a_finished_one(digits: ImageSource, tmp_path: Path) -> None:
    longer = replace(SHORT, epochs=SHORT.epochs + 1)
    seen: list[StepReport] = []
    train(SHORT, digits, tmp_path)
    before = read_checkpoint(tmp_path / "checkpoint.pt")["weights"]
    train(longer, digits, tmp_path, resume=True, on_step=seen.append)
    assert {report.epoch for report in seen} == {longer.epochs}  # only what was added
    after = read_checkpoint(tmp_path / "checkpoint.pt")["weights"]
    assert any(not torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(RecordError, match="epochs"):
        train(SHORT, digits, tmp_path, resume=True)  # it cannot become shorter
    with pytest.raises(RecordError, match="lr"):
        train(replace(longer, epochs=9, lr=0.01), digits, tmp_path, resume=True)


def test_held_out_accuracy_is_logged_after_each_epoch(digits: ImageSource, tmp_path: Path) -> None:
    seen: list[StepReport] = []
    test = load_source("digits", split="test")
    train(SHORT, digits, tmp_path, held_out=test, on_step=seen.append, log_to="csv")
    judged = {report.step: report.held_out_accuracy for report in seen if report.held_out_accuracy is not None}
    every = len(seen) // SHORT.epochs
    assert list(judged) == [every * (epoch + 1) for epoch in range(SHORT.epochs)]
    with (tmp_path / "csv" / "from-step-0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["held_out_accuracy"]]
    assert {int(row["step"]): float(row["held_out_accuracy"]) for row in rows} == judged
    plain = train(SHORT, digits, tmp_path / "plain")  # judging changes nothing of the training
    assert plain.noisy_accuracy == {}
    for name, tensor in read_checkpoint(tmp_path / "checkpoint.pt")["weights"].items():
        assert torch.equal(tensor, read_checkpoint(tmp_path / "plain" / "checkpoint.pt")["weights"][name])


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_trackers_write_into_the_folder_only(
    digits: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Literal["mlflow", "wandb"]
) -> None:
    monkeypatch.chdir(tmp_path)
    if find_spec(kind) is None:
        with pytest.raises(InvalidInputError, match=f"pip install {kind}"):
            train(SHORT, digits, tmp_path / "run", log_to=kind)
        return
    train(SHORT, digits, tmp_path / "run", log_to=kind)
    assert any((tmp_path / "run" / kind).iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_gradient_is_cut(digits: ImageSource) -> None:
    """With a tiny limit, weights move by no more than the learning rates times that."""
    recipe = replace(SHORT, clip=1e-6, weight_decay=0.0, epochs=1, momentum=0.0)
    training = Training(recipe, digits)
    before = weights(training)
    finish(training)
    moved = sum(float((a - b).square().sum()) for a, b in zip(before, weights(training), strict=True)) ** 0.5
    assert 0 < moved <= 0.1 * 1e-6 * training.steps


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exploding(Objective):
    """A finite loss whose gradient is not a number from some step on."""

    name = "exploding"
    draws: int = 1
    after: int = 20
    calls: ClassVar[list[int]] = []

    def __call__(self, network: Network, batch: Batch) -> Outcome:
        self.calls.append(1)
        logits = batch.logits(network)
        loss = logits.square().mean()
        if len(self.calls) >= self.after:
            loss = loss + (logits.mean() * 0).sqrt() * 0  # 0, with the slope 0 * infinity
        return Outcome(loss=loss, logits=logits)


@pytest.mark.parametrize(("after", "kept"), [(40, 20), (60, 40)])
def test_weights_that_are_not_finite_are_never_saved(
    digits: ImageSource, tmp_path: Path, after: int, kept: int
) -> None:
    """The last step of an epoch and the last of all: the next loss would tell, but comes too late."""
    Exploding.calls.clear()
    recipe = replace(SHORT, objective=Exploding(after=after), epochs=3, clip=None)
    with pytest.raises(TrainingError, match="no longer finite"):
        train(recipe, digits, tmp_path)
    assert read_checkpoint(tmp_path / "checkpoint.pt")["steps_done"] == kept
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("source", [CONSTANT, TABLE, RANGE], ids=lambda source: source.name)
@pytest.mark.parametrize("method", OPTIONS)
def test_mixed_precision_trains(digits: ImageSource, method: str, source: SigmaSource) -> None:
    few = ArraySource("few", digits.images(range(256)), digits.labels[:256], digits.class_names, levels=None)
    objective = make_objective(method, OPTIONS[method])
    recipe = replace(SHORT, objective=objective, precision="bf16-mixed", sigma_source=source, epochs=1)
    training, full = (Training(r, few) for r in (recipe, replace(recipe, precision="32-true")))
    first, exact = training.step(), full.step()
    assert first.loss == pytest.approx(exact.loss, rel=0.05)
    finish(training)
    # The search runs in full precision: after one step its result is the same.
    torch.testing.assert_close(first.mean_sigma, exact.mean_sigma, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("arch", "sigma_source"),
    [
        ("fast-resnet9", TABLE),
        ("patch-resnet10-aware", RANGE),
        ("patch-resnet10-aware", replace(TABLE, bounds=(0.06, 1))),
    ],
    ids=["plain-table", "aware-range", "aware-table"],
)
def test_batch_norm_resumes_bit_identical(tmp_path: Path, arch: str, sigma_source: SigmaSource) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (96, 3, 16, 16)).astype(np.uint8)
    source = ArraySource("made-up", pixels, np.arange(96) % 4, "abcd", levels=255)
    recipe = Recipe(
        arch=arch, sigma=0.25, epochs=2, batch=32, optimizer="muon", lr=0.02, ema=0.9, sigma_source=sigma_source
    )
    train(recipe, source, tmp_path / "whole", checkpoint_steps=2)
    interrupted(recipe, source, tmp_path / "broken", 5, checkpoint_steps=2)
    train(recipe, source, tmp_path / "broken", checkpoint_steps=2, resume=True)
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_network_that_does_not_fit_is_refused(digits: ImageSource, tmp_path: Path) -> None:
    train(replace(SHORT, epochs=1), digits, tmp_path)
    network = load_model(str(tmp_path)).model
    assert isinstance(network, nn.Module)
    five = ArraySource("five", digits.images(range(100)), digits.labels[:100] % 5, "abcde", levels=None)
    with pytest.raises(ModelError, match=r"network.head.2.weight"):
        Training(SHORT, five, network=network)
    with pytest.raises(ModelError, match=r"normalize=0.3/0.4"):
        Training(replace(SHORT, normalize="0.3/0.4"), digits, network=network)


@pytest.mark.parametrize("shape", [(1, 16, 16), (8, 8)])
def test_images_that_the_network_cannot_look_at_are_refused(shape: tuple[int, ...]) -> None:
    source = ArraySource("odd", np.zeros((100, *shape), np.float32), np.arange(100) % 10, "abcdefghij", levels=None)
    with pytest.raises(ModelError, match="shape"):
        Training(SHORT, source)


def test_a_full_disk_keeps_the_last_checkpoint(
    digits: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    interrupted(SHORT, digits, tmp_path, 3, checkpoint_steps=1)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("sigmax.train.run.write_atomically", full)
        with pytest.raises(TrainingError, match=r"checkpoint.pt"):
            train(SHORT, digits, tmp_path, resume=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def events(content: bytes, kind: Callable[[], Any]) -> list[Any]:
    """Records of a TensorBoard file: length (8 bytes), its checksum (4), the message, its checksum (4)."""
    found, place = [], 0
    while place < len(content):
        size = int.from_bytes(content[place : place + 8], "little")
        event = kind()
        event.ParseFromString(content[place + 12 : place + 12 + size])
        found.append(event)
        place += 16 + size
    return found
