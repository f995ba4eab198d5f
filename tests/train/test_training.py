"""Trainings on the digits: what they learn, and what does not change them."""

import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

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
from sigmax.train import Batch, Objective, Outcome, Recipe, Training, make_objective, train
from sigmax.train.objectives import Network
from sigmax.train.run import read_checkpoint
from sigmax.train.sigma import SigmaTable
from sigmax.train.training import StepReport, fresh_network

RECIPE = Recipe(arch="digits-cnn", sigma=0.25, epochs=12, batch=64, clip=1.0)
SHORT = replace(RECIPE, epochs=2)
OPTIONS: dict[str, dict[str, Any]] = {
    "cohen": {},
    "smoothadv": {"warmup": 4},
    "macer": {"draws": 8},
    "consistency": {"strength": 5.0},
}


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


@pytest.mark.parametrize("per_input", [False, True])
@pytest.mark.parametrize("method", OPTIONS)
def test_every_objective_learns_with_either_source_of_sigma(digits: ImageSource, method: str, per_input: bool) -> None:
    objective = make_objective(method, OPTIONS[method])
    recipe = replace(RECIPE, objective=objective, lr=0.05 if method == "macer" else 0.1, per_input=per_input, warmup=2)
    training = finish(Training(recipe, digits))
    # Half of what these trainings reach; with a dead gradient they stay at 0.1.
    assert certified_accuracy(training.network, 0.25) > 0.5
    moved = training.sigma.values != 0.25
    assert bool(moved.all() if per_input else moved.any()) == per_input


def test_uniform_noise_gives_l1_certificates(digits: ImageSource) -> None:
    training = Training(replace(RECIPE, norm="l1"), digits)
    eps = training._draw(torch.zeros(64, 1, 8, 8), 2, torch.Generator().manual_seed(0))
    assert float(eps.abs().max()) <= 1.0
    assert float(eps.std()) == pytest.approx(3**-0.5, rel=0.05)  # of a uniform variable on [-1, 1]
    finish(training)
    assert certified_accuracy(training.network, 0.1, uniform=True) > 0.6


def test_no_ascent_steps_are_exactly_the_training_with_one_sigma(digits: ImageSource) -> None:
    fixed = finish(Training(SHORT, digits))
    table = finish(Training(replace(SHORT, per_input=True, search_steps=0), digits))
    moving = finish(Training(replace(SHORT, per_input=True, search_steps=1), digits))
    assert all(torch.equal(a, b) for a, b in zip(weights(fixed), weights(table), strict=True))
    assert torch.equal(table.sigma.values, torch.full((len(digits),), 0.25))
    assert not all(torch.equal(a, b) for a, b in zip(weights(fixed), weights(moving), strict=True))


def test_warm_up_epochs_keep_one_sigma(digits: ImageSource) -> None:
    training = Training(replace(SHORT, per_input=True, warmup=1), digits)
    for report in training:
        is_warm = report.epoch == 1
        assert bool((training.sigma.values == 0.25).all()) == is_warm


class Ramp(nn.Module):
    """Two classes by the first pixel, with batch norm behind it: the slope of the radius can be computed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        first = self.norm(x.flatten(1)[:, :1])
        return torch.cat([self.gain * first, -self.gain * first], dim=1)


def test_a_visit_takes_k_steps_from_where_the_last_one_ended() -> None:
    network, search = Ramp().train(), replace(RECIPE, search_steps=3, step_size=0.01, per_input=True).search
    table = SigmaTable(0.25, examples=4, search=search)
    x, indices = torch.tensor([[0.3], [-0.2]]), torch.tensor([2, 0])
    eps = torch.tensor([[[0.7]], [[-0.4]]])

    def perturb(x: Tensor, sigma: Tensor) -> Tensor:
        return x.unsqueeze(1) + sigma.reshape(-1, 1, 1) * eps

    def radius(start: float, x: float, eps: float) -> float:
        noisy = (x + start * eps) / (1 + 1e-5) ** 0.5  # batch norm in evaluation mode, before any training
        p = torch.sigmoid(torch.tensor(4 * noisy, dtype=torch.float64)).clamp(0.02, 0.98)
        return float(start / 2 * abs(torch.special.ndtri(p) - torch.special.ndtri(1 - p)))

    def by_hand(start: float, x: float, eps: float) -> float:
        for _ in range(3):
            start += 0.01 * (radius(start + 1e-5, x, eps) - radius(start - 1e-5, x, eps)) / 2e-5
        return start

    expected = [0.25, 0.25]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for _ in range(2):
        chosen = table.choose(network, x, indices, epoch=0, perturb=perturb, noise=Gaussian())
        table.keep(indices, chosen)
        expected = [by_hand(s, a, e) for s, a, e in zip(expected, (0.3, -0.2), (0.7, -0.4), strict=True)]
        np.testing.assert_allclose(chosen, expected, rtol=1e-4)
    np.testing.assert_allclose(table.values[[1, 3]], 0.25)
    assert abs(expected[0] - 0.25) > 0.01
    # The search leaves the network as it was.
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.gain.grad is None
    assert network.training
    assert network.norm.training


def interrupted(recipe: Recipe, source: ImageSource, out: Path, at: int, **more: Any) -> None:
    """Train, and break off in the middle of a step."""

    def stop(report: Any) -> None:
        if report.step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, source, out, on_step=stop, **more)


@pytest.mark.parametrize(("method", "per_input", "optimizer"), [("cohen", False, "muon"), ("smoothadv", True, "sgd")])
def test_resumed_is_bit_identical(
    digits: ImageSource, tmp_path: Path, method: str, per_input: bool, optimizer: Any
) -> None:
    recipe = replace(SHORT, objective=make_objective(method), per_input=per_input, augment="crop", optimizer=optimizer)
    train(recipe, digits, tmp_path / "whole", checkpoint_steps=7)
    for at in (3, 11, 25, 30):  # before the first checkpoint, and after others
        interrupted(recipe, digits, tmp_path / "broken", at, checkpoint_steps=7, resume=True)
    train(recipe, digits, tmp_path / "broken", checkpoint_steps=7, resume=True)
    whole, broken = (read_checkpoint(tmp_path / name / "checkpoint.pt") for name in ("whole", "broken"))
    assert torch.equal(whole["sigma"], broken["sigma"])
    assert all(torch.equal(whole["state_dict"][name], broken["state_dict"][name]) for name in whole["state_dict"])
    files = [tmp_path / name / "model.safetensors" for name in ("whole", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()


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
    ("change", "says"),
    [({"lr": 0.2}, "lr=0.1, now 0.2"), ({"sigma": 0.5}, "sigma=0.25, now 0.5"), ({"epochs": 3}, "epochs=2, now 3")],
)
def test_other_settings_do_not_continue_a_training(
    digits: ImageSource, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    interrupted(SHORT, digits, tmp_path, 25)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match=says):
        train(replace(SHORT, **change), digits, tmp_path, resume=True)
    with pytest.raises(TrainingError, match="--resume"):
        train(SHORT, digits, tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept


def test_other_data_does_not_continue_a_training(digits: ImageSource, tmp_path: Path) -> None:
    interrupted(SHORT, digits, tmp_path, 25)
    fewer = ArraySource("fewer", digits.images(range(100)), digits.labels[:100], digits.class_names, levels=None)
    with pytest.raises(TrainingError, match="got fewer"):
        train(SHORT, fewer, tmp_path, resume=True)


def test_another_start_does_not_continue_a_training(digits: ImageSource, tmp_path: Path) -> None:
    def start(seed: int) -> nn.Module:
        return fresh_network(replace(SHORT, seed=seed), digits)

    interrupted(SHORT, digits, tmp_path / "fresh", 25)
    with pytest.raises(TrainingError, match="begun with, fresh weights, got a network; say the same --from"):
        train(SHORT, digits, tmp_path / "fresh", network=start(1), resume=True)
    interrupted(SHORT, digits, tmp_path / "tuned", 25, network=start(1))
    kept = (tmp_path / "tuned" / "checkpoint.pt").read_bytes()
    with pytest.raises(TrainingError, match="a network, got a network with other weights; say the same --from"):
        train(SHORT, digits, tmp_path / "tuned", network=start(2), resume=True)
    with pytest.raises(TrainingError, match="a network, got fresh weights"):
        train(SHORT, digits, tmp_path / "tuned", resume=True)
    assert (tmp_path / "tuned" / "checkpoint.pt").read_bytes() == kept
    train(SHORT, digits, tmp_path / "tuned", network=start(1), resume=True)
    train(SHORT, digits, tmp_path / "whole", network=start(1))
    tuned, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("tuned", "whole"))
    assert tuned == whole


def test_a_fabric_of_another_precision_is_refused(digits: ImageSource) -> None:
    with pytest.raises(InvalidInputError, match="precision 32-true, as the recipe says, got bf16-mixed"):
        Training(SHORT, digits, fabric=Fabric(devices=1, precision="bf16-mixed"))


def test_a_broken_checkpoint_is_named(digits: ImageSource, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"cut off")
    with pytest.raises(TrainingError, match=r"checkpoint.pt: expected a whole checkpoint"):
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
    with pytest.raises(TrainingError, match=r"diverged: the loss is nan .*--from .*checkpoint.pt --lr 0.05 or --clip"):
        train(recipe, clean, tmp_path)
    kept = read_checkpoint(tmp_path / "checkpoint.pt")
    assert kept["steps_done"] % 2 == 0
    assert all(torch.isfinite(tensor).all() for tensor in kept["state_dict"].values())
    assert load_model(str(tmp_path / "checkpoint.pt")).card is not None


def test_the_network_brings_what_certification_needs(digits: ImageSource, tmp_path: Path) -> None:
    recipe = replace(SHORT, per_input=True, normalize="0.3/0.4")
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
    assert written["noisy_accuracy"] == summary.noisy_accuracy
    assert written["recipe"] == recipe.as_dict()
    assert summary.noisy_accuracy is not None
    assert list((tmp_path / "tensorboard").iterdir())


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
    ("change", "says"),
    [
        ({"sigma": 0.0}, "sigma > 0"),
        ({"lr": float("nan")}, "lr > 0"),
        ({"epochs": 0}, "epochs >= 1"),
        ({"schedule": "linear"}, "one-cycle or cosine or step"),
        ({"clip": 0.0}, "clip > 0"),
        ({"clip": float("nan")}, "clip > 0"),
        ({"weight_decay": -1.0}, "weight_decay >= 0"),
        ({"search_samples": 0}, "search_samples >= 1"),
        ({"optimizer": "adam"}, "sgd or muon"),
        ({"precision": "half"}, "32-true or 16-mixed or bf16-mixed"),
        ({"augment": "mixup"}, "none or crop or crop-flip"),
        ({"seed": 2**63}, "seed < 2"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        replace(RECIPE, **change)


def test_the_tensorboard_curves_hold_every_point_once(digits: ImageSource, tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    recipe = replace(SHORT, per_input=True, epochs=3)
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
    with pytest.raises(TrainingError, match=r"diverged: .* no longer finite .*--from"):
        train(recipe, digits, tmp_path)
    assert read_checkpoint(tmp_path / "checkpoint.pt")["steps_done"] == kept
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("per_input", [False, True])
@pytest.mark.parametrize("method", OPTIONS)
def test_mixed_precision_trains(digits: ImageSource, method: str, per_input: bool) -> None:
    few = ArraySource("few", digits.images(range(256)), digits.labels[:256], digits.class_names, levels=None)
    objective = make_objective(method, OPTIONS[method])
    recipe = replace(SHORT, objective=objective, precision="bf16-mixed", per_input=per_input, epochs=1)
    training, full = (Training(r, few) for r in (recipe, replace(recipe, precision="32-true")))
    first, exact = training.step(), full.step()
    assert first.loss == pytest.approx(exact.loss, rel=0.05)
    finish(training)
    if per_input:
        # The search runs in full precision: after one step its result is the same.
        torch.testing.assert_close(first.mean_sigma, exact.mean_sigma, rtol=1e-6, atol=0)


def test_batch_norm_resumes_bit_identical(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (96, 3, 16, 16)).astype(np.uint8)
    source = ArraySource("made-up", pixels, np.arange(96) % 4, "abcd", levels=255)
    recipe = Recipe(arch="fast-resnet9", sigma=0.25, epochs=2, batch=32, optimizer="muon", lr=0.02, per_input=True)
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
    with pytest.raises(ModelError, match=r"5 classes .* five .* got network.head.2.weight of shape \(10, 64\)"):
        Training(SHORT, five, network=network)
    with pytest.raises(ModelError, match=r"start from with .*0\.3.*, as arch=digits-cnn and normalize=0.3/0.4 say"):
        Training(replace(SHORT, normalize="0.3/0.4"), digits, network=network)


@pytest.mark.parametrize("shape", [(1, 16, 16), (8, 8)])
def test_images_that_the_network_cannot_look_at_are_refused(shape: tuple[int, ...]) -> None:
    source = ArraySource("odd", np.zeros((100, *shape), np.float32), np.arange(100) % 10, "abcdefghij", levels=None)
    with pytest.raises(ModelError, match=r"expected a model that takes inputs of shape .*; check channels"):
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
        with pytest.raises(TrainingError, match=r"expected to write .*checkpoint.pt, got: .* make room, then --resume"):
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
