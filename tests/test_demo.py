from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

import sigmax.demo
from sigmax.demo import run_demo
from sigmax.metrics import average_certified_radius, certified_accuracy
from sigmax.models import load_model
from sigmax.sampling import Progress


def test_demo_trains_certifies_twice_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sigmax.demo, "N", 2_000)
    monkeypatch.setattr(sigmax.demo, "_EVERY", 12)
    shown: list[tuple[int, int]] = []

    @contextmanager
    def track(what: str, total: int) -> Iterator[Progress]:
        done: list[int] = []
        yield done.append
        shown.append((total, sum(done)))

    result = run_demo(tmp_path, track)
    assert len(shown) == 3  # training and two runs
    assert all(total == done for total, done in shown)
    # Eq. 2: per-input sigma does not cost what the fixed one had.
    assert average_certified_radius(result.per_input) >= average_certified_radius(result.fixed) > 0.2
    assert certified_accuracy(result.per_input, [0.0])[0] > 0.85
    assert (result.fixed.is_settled, result.per_input.is_settled) == (False, True)
    with Image.open(result.picture) as picture:
        assert picture.width > 1_000
        assert len(picture.convert("RGB").getcolors(maxcolors=10**6) or []) > 50
    card = load_model(str(tmp_path)).card
    assert card is not None
    assert (card.arch, card.sigma) == ("digits-cnn", 0.12)
    # Again in the same folder: nothing is sampled anew, and the answers are the same.
    shown.clear()
    assert average_certified_radius(run_demo(tmp_path, track).per_input) == average_certified_radius(result.per_input)
    assert [done for _, done in shown] == [0, 0]
