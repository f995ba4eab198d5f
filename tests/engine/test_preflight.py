"""Before the first sample: what can never work is refused, and what to expect is said."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sigmax import CertificateMemory, FixedSigma
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import certify, preflight, prepare
from sigmax.errors import DataError, InvalidInputError, ModelError
from sigmax.models import ModelCard, build_network, save_model
from sigmax.models.reference import ModelReference
from sigmax.runs import CertificationSpec
from sigmax.sampling import Progress
from toy import quietly, toy_spec


@pytest.mark.parametrize(
    ("least", "settings"), [(10, {}), (4, {"alpha": 0.1}), (12, {"radii": (0.25,)}), (11, {"runner_up": True})]
)
def test_too_few_samples_to_certify_anything_are_refused(least: int, settings: dict[str, Any]) -> None:
    Budget(n=least, **settings)
    with pytest.raises(InvalidInputError, match=f"n >= {least}, .* n={least - 1}"):
        Budget(n=least - 1, **settings)


def test_a_share_of_alpha_that_n_cannot_reach_is_refused(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, budget=Budget(n=10), family_alpha=0.001)
    with pytest.raises(InvalidInputError, match="certify nothing"):
        certify(spec, tmp_path / "run", track=quietly)
    assert not (tmp_path / "run").exists()


def test_a_bound_on_the_whole_table_takes_no_memory_with_certificates_of_others(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.db")
    spec = toy_spec(tmp_path, inputs=4, family_alpha=0.01)
    with pytest.raises(InvalidInputError, match="family_alpha"):
        certify(replace(spec, memory=shared), tmp_path / "run", track=quietly)
    assert not (tmp_path / "run").exists()
    assert not Path(shared).exists()
    certify(replace(spec, family_alpha=None, memory=shared), tmp_path / "live", track=quietly)
    with CertificateMemory.existing(shared) as memory:
        memory.freeze(sigma=spec.search.initial).close()
    # A frozen one is a fixed classifier, whose regions are right by definition.
    fixed = replace(spec, search=FixedSigma(spec.search.initial), memory=shared, frozen=True)
    assert len(certify(fixed, tmp_path / "fixed", track=quietly)) == 4


def test_a_model_that_answers_differently_when_asked_twice_is_refused(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, model="toy:dropping")
    with pytest.raises(ModelError, match="twice"):
        certify(spec, tmp_path / "run", track=quietly)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mean", "white", "is_taken"),
    [(0.5, 1.0, True), (0.5, 255.0, False), (0.5, -1.0, False), (120.0, 255.0, True), (120.0, 300.0, False)],
)
def test_pixels_outside_the_range_of_the_model_are_refused(
    tmp_path: Path, mean: float, white: float, is_taken: bool
) -> None:
    card = ModelCard(arch="digits-cnn", num_classes=10, mean=(mean,), std=(mean,))
    save_model(tmp_path / "model.safetensors", build_network("digits-cnn", num_classes=10, in_channels=1), card)
    images = np.zeros((90, 1, 8, 8), dtype=np.float32)
    images[80, 0, 3, 3] = white
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(90) % 10)
    spec = CertificationSpec(
        model=ModelReference(name=str(tmp_path)),
        data=DataReference(name=f"arrays:{tmp_path / 'images.npz'}"),
        search=FixedSigma(0.25),
        budget=Budget(n=16),
        batch=16,
    )
    if is_taken:
        work = prepare(spec)
        preflight.check(work, work.indices)
        return
    with pytest.raises(DataError, match=f"{white:g} in input 80"):
        certify(spec, tmp_path / "run", track=quietly)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("knows_noise", [True, False])
def test_a_network_that_only_guesses_under_noise_is_noted_before_the_first_sample(
    tmp_path: Path, knows_noise: bool
) -> None:
    """Class 1 where the first number is above 1/2; the others are labels that it cannot know."""
    random = np.random.default_rng(0)
    images = random.random((40, 4), dtype=np.float32)
    labels = images[:, 0] > 0.5 if knows_noise else random.random(40) > 0.5
    np.savez(tmp_path / "images.npz", images=images, labels=labels.astype(int))
    data = DataReference(name=f"arrays:{tmp_path / 'images.npz'}")
    spec = toy_spec(tmp_path, model="toy:Threshold", data=data, search=FixedSigma(0.05), n=20)
    events: list[str] = []

    @contextmanager
    def track(_what: str, _work: int) -> Iterator[Progress]:
        events.append("sampling")
        yield lambda _: None

    certify(spec, tmp_path / "run", track=track, on_note=events.append)
    assert events[-1] == "sampling"
    guesses = [event for event in events if "guessing" in event]  # on a busy machine, the time may be noted too
    assert len(guesses) == (0 if knows_noise else 1)
    assert knows_noise or "of 32 inputs" in guesses[0]


def test_the_time_is_announced_where_it_is_long(tmp_path: Path) -> None:
    work = prepare(toy_spec(tmp_path))
    few, notes = preflight.check(work, work.indices), list[str]()
    preflight.announce(work, few, 0, notes.append)
    assert notes == []
    preflight.announce(work, few, 10**9, notes.append)
    early = replace(work, spec=replace(work.spec, budget=Budget(n=200, tolerance=0.1)))
    preflight.announce(early, few, 10**9, notes.append)
    assert ["1000000000 inputs take" in note for note in notes] == [True, True]
    assert ["at most" in note for note in notes] == [False, True]


def test_the_notes_take_no_noise_from_the_certificates(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path)
    tables = [certify(spec, tmp_path / str(i), track=quietly, on_note=note) for i, note in enumerate((None, print))]
    assert tables[0].radius.tolist() == tables[1].radius.tolist()
