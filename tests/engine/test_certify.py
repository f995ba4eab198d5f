"""A request becomes a run: begun once, continued with the same request, with the memory that settled it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sigmax import CertificateMemory, FixedSigma, HalvingSearch, SigmaSearch, Uniform
from sigmax.budget import Budget
from sigmax.data.reference import DataReference
from sigmax.engine import certify, prepare
from sigmax.errors import InvalidInputError, ModelError, RecordError, SigmaxError
from sigmax.models import ModelCard, build_network, save_model
from sigmax.runs import CertificateTable, CertificationSpec, read_run, read_spec
from sigmax.runs.table import without_time
from sigmax.sampling import Progress
from toy import Brighter, Doubled, Shared, Wide, point, quietly, toy_spec


def answers(table: CertificateTable) -> list[tuple[int, float]]:
    return list(zip(table.predict.tolist(), table.radius.tolist(), strict=True))


def rows(out: Path) -> list[list[str]]:
    return [without_time(line) for line in (out / "certificates.tsv").read_text().splitlines()]


def begin_and_fail(spec: CertificationSpec, out: Path) -> None:
    """Leave a folder as a run that was killed before its first row does."""

    @contextmanager
    def killing(_what: str, _work: int) -> Iterator[Progress]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        certify(spec, out, track=killing)


def test_a_request_becomes_a_run_that_says_what_was_asked_and_found(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, batch=None)
    table = certify(spec, tmp_path / "run", track=quietly)
    run = read_run(tmp_path / "run")
    assert (len(table), table.is_settled) == (3, True)
    assert run.spec is not None
    assert run.spec.found is not None
    assert run.spec.found.backend == f"torch {torch.__version__}"
    assert run.spec.batch is not None  # probed
    assert replace(run.spec, found=None, batch=None) == spec
    # The record is a request: executed again, it gives the same.
    assert answers(certify(run.spec, tmp_path / "again", track=quietly)) == answers(table)


@pytest.mark.parametrize(
    ("search", "is_settled"),
    [(FixedSigma(0.25), False), (Doubled(initial=0.2), False), (Brighter(initial=0.2), True)],
)
def test_per_input_sigma_is_settled_by_a_memory(tmp_path: Path, search: Any, is_settled: bool) -> None:
    table = certify(toy_spec(tmp_path, search=search), tmp_path / "run", track=quietly)
    assert table.is_settled == is_settled
    assert (tmp_path / "run" / "memory.db").exists() == is_settled
    shared = toy_spec(tmp_path, search=search, memory=str(tmp_path / "shared.db"))
    assert certify(shared, tmp_path / "with-memory", track=quietly).is_settled
    assert not (tmp_path / "with-memory" / "memory.db").exists()


@pytest.mark.parametrize("search", [HalvingSearch(initial=0.25, pilot=16), Shared(initial=0.25)])
@pytest.mark.parametrize("n", [100, 2_000])
def test_a_run_that_was_cut_anywhere_ends_byte_identical(tmp_path: Path, n: int, search: SigmaSearch) -> None:
    spec = toy_spec(tmp_path, model="toy:small_network", n=n, inputs=40, search=search)
    certify(spec, tmp_path / "run", track=quietly)
    table, whole = tmp_path / "run" / "certificates.tsv", rows(tmp_path / "run")
    for done in (39, 16, 5, 1, 0):
        table.write_text("".join(table.read_text().splitlines(keepends=True)[: 1 + done]))
        certify(spec, tmp_path / "run", track=quietly, resume=True)
        assert rows(tmp_path / "run") == whole


@pytest.mark.parametrize("done", [1, 16, 39])
def test_a_longer_run_goes_on_where_a_shorter_one_ended(tmp_path: Path, done: int) -> None:
    spec = toy_spec(tmp_path, inputs=40, search=HalvingSearch(initial=0.25, pilot=16))
    certify(spec, tmp_path / "whole", track=quietly)
    certify(replace(spec, data=replace(spec.data, max=done)), tmp_path / "run", track=quietly)
    certify(spec, tmp_path / "run", track=quietly, resume=True)
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")


def test_progress_adds_up_to_what_is_announced(tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []

    @contextmanager
    def track(_what: str, total: int) -> Iterator[Progress]:
        done: list[int] = []
        yield done.append
        shown.append((total, sum(done)))

    spec = toy_spec(tmp_path, budget=Budget(n=3_000, tolerance=0.1, n_wrong=500))
    certify(spec, tmp_path / "run", track=track)
    assert shown == [(3 * (100 + 3_000 + spec.search.cost()),) * 2]


CHANGES: dict[str, dict[str, Any]] = {
    "data.skip": {"data": {"skip": 2}},
    "model.classes": {"model": {"classes": 2}},
    "fingerprint": {"model": {"name": "toy:sharper_half_space"}},
    "search.candidates": {"search": HalvingSearch(initial=0.25, candidates=5)},
    "search.bounds": {"search": HalvingSearch(initial=0.25, bounds=(0.1, 0.3))},
    "search.initial": {"search": HalvingSearch(initial=0.3)},
    "search.name": {"search": Brighter(initial=0.25)},
    "noise.name": {"noise": Uniform()},
    "noise.width": {"noise": Wide()},
    "budget.n": {"budget": Budget(n=300)},
    "budget.n0": {"budget": Budget(n=200, n0=50)},
    "budget.alpha": {"budget": Budget(n=200, alpha=0.01)},
    "budget.seed": {"budget": Budget(n=200, seed=1)},
    "budget.tolerance": {"budget": Budget(n=200, tolerance=0.1)},
    "budget.radii": {"budget": Budget(n=200, radii=(0.5,))},
    "budget.runner_up": {"budget": Budget(n=200, runner_up=True)},
    "budget.n_wrong": {"budget": Budget(n=200, n_wrong=100)},
    "batch": {"batch": 128},
    "memory": {"memory": "shared.db"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_is_not_resumed_with_another_decisive_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, out = toy_spec(tmp_path, most=2), tmp_path / "run"
    certify(spec, out, track=quietly)
    before = (out / "certificates.tsv").read_bytes()
    changes = {
        key: replace(getattr(spec, key), **part) if isinstance(part, dict) else part
        for key, part in CHANGES[name].items()
    }
    changed = replace(spec, **changes)
    with pytest.raises(RecordError, match=name):
        certify(changed, out, track=quietly, resume=True)
    assert (out / "certificates.tsv").read_bytes() == before


def test_other_images_under_the_same_name_are_refused(tmp_path: Path) -> None:
    spec, out = toy_spec(tmp_path, most=2), tmp_path / "run"
    certify(spec, out, track=quietly)
    np.savez(tmp_path / "toy-3.npz", images=np.zeros((3, 4), np.float32), labels=np.array([0, 1, 0]))
    with pytest.raises(RecordError, match=r"found\.data"):
        certify(spec, out, track=quietly, resume=True)
    with pytest.raises(RecordError, match=r"found\.data"):
        prepare(read_spec(out / "config.json"))  # which says what was found


def test_a_run_goes_on_with_moved_data_a_moved_model_and_more_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_network("digits-cnn", num_classes=10, in_channels=1)
    card = ModelCard(arch="digits-cnn", num_classes=10, input_shape=(1, 8, 8))
    images = np.random.default_rng(0).integers(0, 255, (3, 1, 8, 8), dtype=np.uint8)
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        save_model(tmp_path / place / "model.safetensors", network, card)
        np.savez(tmp_path / place / "data.npz", images=images, labels=np.arange(3))

    def asked(place: str, most: int | None) -> CertificationSpec:
        data = DataReference(name=f"arrays:{tmp_path / place / 'data.npz'}", max=most)
        return toy_spec(tmp_path, model=str(tmp_path / place), data=data)

    whole = certify(asked("here", None), tmp_path / "whole", track=quietly)
    certify(asked("here", 2), tmp_path / "run", track=quietly)
    assert answers(certify(asked("there", None), tmp_path / "run", track=quietly, resume=True)) == answers(whole)


def test_a_run_whose_memory_is_lost_is_not_continued(tmp_path: Path) -> None:
    out = tmp_path / "run"
    certify(toy_spec(tmp_path, most=2), out, track=quietly)
    before = (out / "certificates.tsv").read_bytes()
    (out / "memory.db").unlink()
    with pytest.raises(RecordError, match=r"input 0 .* got none"):
        certify(toy_spec(tmp_path), out, track=quietly, resume=True)
    assert (out / "certificates.tsv").read_bytes() == before


def test_a_memory_at_another_place_of_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    certify(toy_spec(tmp_path, most=2, memory="shared.db"), tmp_path / "run", track=quietly)
    os.chdir(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="input 0"):
        certify(toy_spec(tmp_path, memory="shared.db"), tmp_path / "run", track=quietly, resume=True)


def test_a_run_does_not_begin_with_the_answers_of_another(tmp_path: Path) -> None:
    out = tmp_path / "run"
    certify(toy_spec(tmp_path, n=100), out, track=quietly)
    for name in ("certificates.tsv", "config.json"):
        (out / name).unlink()
    for _ in range(2):  # nor at the second attempt
        with pytest.raises(RecordError, match=r"memory\.db"):
            certify(toy_spec(tmp_path, n=2_000), out, track=quietly)
    assert not (out / "config.json").exists()


def test_the_empty_memory_of_a_failed_run_is_not_in_the_way(tmp_path: Path) -> None:
    out = tmp_path / "run"
    begin_and_fail(toy_spec(tmp_path, n=100), out)
    kept = out / "memory.db.bak"
    kept.write_text("a copy")
    spec = toy_spec(tmp_path, n=300)
    assert answers(certify(spec, out, track=quietly)) == answers(certify(spec, tmp_path / "other", track=quietly))
    assert kept.exists()


def test_a_memory_that_was_killed_while_it_was_made_is_not_in_the_way(tmp_path: Path) -> None:
    out = tmp_path / "run"
    begin_and_fail(toy_spec(tmp_path, n=100), out)
    for part in out.glob("memory.db*"):
        part.unlink()
    (out / "memory.db").touch()
    spec = toy_spec(tmp_path, n=300)
    assert answers(certify(spec, out, track=quietly)) == answers(certify(spec, tmp_path / "other", track=quietly))


def test_a_memory_that_somebody_uses_is_never_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    begin_and_fail(toy_spec(tmp_path, n=100), out)
    path = out / "memory.db"
    with CertificateMemory.existing(path) as memory:
        memory.settle(np.zeros(4, dtype=np.float32), point(1, 9.0))
    with pytest.raises(RecordError, match=r"entries=1 in .*memory\.db"):
        certify(toy_spec(tmp_path, n=300), out, track=quietly)
    table = certify(toy_spec(tmp_path, n=300, memory=str(path)), out, track=quietly)
    assert set(table.predict.tolist()) == {1}
    with CertificateMemory.existing(path) as memory:
        assert len(memory) == 4


def test_a_refused_request_leaves_no_folder_behind(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"model": "toy:no-such-model"},
        {"data": DataReference(name="arrays:no-such-file.npz")},
        {"memory": str(tmp_path / "no-such-folder" / "memory.db")},
    ]
    for change in changes:
        with pytest.raises(SigmaxError, match="no-such"):
            certify(toy_spec(tmp_path, **change), tmp_path / "run", track=quietly)
        assert not (tmp_path / "run").exists()


def test_a_model_that_is_no_module_has_neither_backend_nor_device(tmp_path: Path) -> None:
    spec = toy_spec(tmp_path, model="toy:Threshold")
    table = certify(spec, tmp_path / "run", track=quietly)
    assert set(table.predict.tolist()) <= {-1, 0, 1}
    found = read_spec(tmp_path / "run" / "config.json").found
    assert found is not None
    assert found.backend is None
    changes: list[dict[str, Any]] = [{"device": "cpu"}, {"backend": "compile"}]
    for change in changes:
        with pytest.raises(InvalidInputError, match=next(iter(change))):
            certify(replace(spec, model=replace(spec.model, **change)), tmp_path / "other", track=quietly)


def test_a_backend_that_cannot_run_a_model_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise ModelError("expected a compiler, got none")

    monkeypatch.setattr("sigmax.models.reference.accelerate", refuse)
    notes: list[str] = []
    spec = toy_spec(tmp_path)
    asked = replace(spec, model=replace(spec.model, backend="compile"))
    certify(asked, tmp_path / "run", track=quietly, on_note=notes.append)
    assert "compiler" in notes[0]
    assert read_spec(tmp_path / "run" / "config.json").model.backend == "eager"
    integers = replace(spec, model=replace(spec.model, backend="openvino-int8"))  # another function
    for request, told in ((asked, None), (integers, notes.append)):
        with pytest.raises(ModelError, match="compiler"):
            certify(request, tmp_path / "other", track=quietly, on_note=told)


def test_a_noise_aware_network_is_certified_from_a_request(tmp_path: Path) -> None:
    """Its batch is probed like any other's, and each row is told sigma."""
    spec = toy_spec(tmp_path, model="toy:level", batch=None, search=Brighter(initial=0.2))
    work = prepare(spec)
    x = torch.from_numpy(work.source.images([0, 1, 2]))
    points = work.smoothed.certify(x, n=100)
    assert [point.tau for point in points] == [point.sigma for point in points]
    table = certify(spec, tmp_path / "run", track=quietly)
    assert len(set(table.sigma.tolist())) == 3
