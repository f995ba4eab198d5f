import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from commands import Run
from sigmax.engine.probe import fastest_batch
from sigmax.errors import InvalidInputError
from sigmax.models import BaseClassifier, build_network


class Pacing:
    """Takes as long per pass and per sample as it is told, by a clock of its own, and remembers the sizes it saw."""

    def __init__(self, patch: pytest.MonkeyPatch, *, per_pass: float, per_sample: float, slow_above: int = 0) -> None:
        self.per_pass, self.per_sample, self.slow_above = per_pass, per_sample, slow_above
        self.now = 0.0
        self.sizes: set[int] = set()
        patch.setattr("sigmax.engine.probe.time.perf_counter", lambda: self.now)

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.add(len(x))
        is_slow = self.slow_above and len(x) > self.slow_above
        self.now += self.per_pass + len(x) * self.per_sample * (10 if is_slow else 1)
        return torch.zeros(len(x), 3)


def probe(model: Pacing, cache: Path) -> int:
    return fastest_batch(BaseClassifier(model, num_classes=3, identity="pacing"), (3, 32, 32), cache=cache)


def test_the_fastest_batch_is_found_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Pacing(monkeypatch, per_pass=2e-3, per_sample=2e-5, slow_above=128)
    assert probe(model, tmp_path / "cache.json") == 128
    model.sizes.clear()
    assert probe(model, tmp_path / "cache.json") == 128
    assert not model.sizes  # nothing was measured again
    assert list(json.loads((tmp_path / "cache.json").read_text()).values()) == [128]


def test_of_equally_fast_batches_the_smallest_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(Pacing(monkeypatch, per_pass=0.0, per_sample=1e-4), tmp_path / "cache.json") == 16


def test_the_memory_limit_is_kept(tmp_path: Path) -> None:
    network = build_network("patch-resnet10", num_classes=10, in_channels=3).eval()
    seen: set[int] = set()
    network.register_forward_hook(lambda _module, inputs, _output: seen.add(len(inputs[0])))
    classifier = BaseClassifier(network, num_classes=10)
    per_input = 4 * (3 * 32 * 32 + 3 * 3 * 48 * 256 + 3 * 3 * 96 * 64 + 3 * 3 * 192 * 16)  # convolution, norm, ReLU
    fastest_batch(classifier, (3, 32, 32), memory_limit=40 * per_input, cache=tmp_path / "cache.json")
    assert max(seen) == 32
    with pytest.raises(InvalidInputError, match="memory_limit=0"):
        fastest_batch(classifier, (3, 32, 32), memory_limit=0)


def test_another_network_is_measured_anew_and_a_damaged_cache_is_no_error(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    cache.write_text("[1, 2")
    for seed in (0, 1):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
        assert fastest_batch(BaseClassifier(network, num_classes=3), (3, 2, 2), cache=cache) >= 16
    assert len(json.loads(cache.read_text())) == 2


def test_a_resumed_run_keeps_its_batch_whatever_a_probe_would_say(run: Run, digits_model: Path, tmp_path: Path) -> None:
    arguments = ("certify", digits_model, "--data", "digits", "--n", 64, "--out", tmp_path / "run")
    assert run(*arguments, "--max", 2, "--batch", 192)[0] == 0
    code, _, log = run(*arguments, "--max", 3, "--resume")
    assert code == 0, log
    assert json.loads((tmp_path / "run" / "config.json").read_text())["batch"] == 192


class Keeping(nn.Module):
    """Keeps what it saw last, as models do whose attention is to be drawn."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean(dim=(1, 2, 3))
        return torch.stack([self.seen, -self.seen], dim=1)


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected, model = torch.rand(3), Keeping().eval()
    torch.manual_seed(0)
    fastest_batch(BaseClassifier(model, num_classes=2), (3, 8, 8), cache=tmp_path / "cache.json")
    assert torch.equal(torch.rand(3), expected)  # nor does it draw from the user's random numbers
    assert not hasattr(model, "seen")


def test_what_forward_passes_keep_is_not_part_of_the_fingerprint() -> None:
    classifier = BaseClassifier(Keeping().eval(), num_classes=2)
    before = classifier.fingerprint
    classifier.labels(torch.rand(2, 3, 8, 8))
    assert classifier.fingerprint == before
