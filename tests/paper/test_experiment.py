"""Experiments are read as they are written; what is wrong with one is said by its name."""

import time
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from sigmax.errors import DataError, InvalidInputError
from sigmax.noise import Uniform
from sigmax.paper.experiment import level_name, load_experiment
from sigmax.paper.machine import Machine, Speed, measure_speed
from sigmax.paper.plan import load_sources, make_plan
from sigmax.paper.presets import presets
from sigmax.search import AscentSearch, FixedSigma, GridSearch, HalvingSearch
from small_experiment import EXPERIMENT, RUNS, write_experiment


def test_an_experiment_is_what_its_file_says(tmp_path: Path) -> None:
    found = load_experiment(str(write_experiment(tmp_path)))
    assert set(found.certifications) == set(RUNS)
    assert list(found.networks) == ["cohen-0.25", "cohen-ds2-0.25"]
    assert [network.trained for network in found.networks.values()] == ["cohen", "cohen-ds2"]
    first, second = (network.recipe for network in found.networks.values())
    assert first is not None
    assert second is not None
    assert (first.arch, first.epochs, first.sigma) == ("digits-cnn", 6, 0.25)
    assert (second.arch, second.epochs, second.sigma) == ("digits-cnn", 2, 0.25)
    assert found.networks["cohen-ds2-0.25"].start == "cohen-0.25"
    specs = {name: run.spec for name, run in found.certifications.items()}
    assert {tuple(spec.data.indices(500)) for spec in specs.values()} == {tuple(25 * i for i in range(18))}
    assert {spec.budget.n for spec in specs.values()} == {400}
    assert specs["cohen-0.25-ascent-paper-k4"].search == AscentSearch.paper(initial=0.25, steps=4)
    assert specs["cohen-0.25-fixed"].search == FixedSigma(0.25)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("skip = 25", "skipp = 25", "data"),
        ("skip = 25", "skip = 0", "skip"),
        ("skip = 25", "skip = true", "data.skip"),
        ('name = "digits"', "", "data"),
        ('name = "digits"', 'name = "dgits"', "did you mean digits"),
        ('name = "digits"', 'name = "imagenet:x"', "data.train"),
        ('name = "digits"', 'name = "digits"\ntrain = "mnits"', "did you mean mnist"),
        ('name = "digits"', 'name = "digits"\ntrain = 3', "data.train"),
        ("n = 400", "n = 400.5", "sampling.n"),
        ("n = 400", "m = 400", "sampling"),
        ("n = 400", "alpha = 2", "alpha"),
        ("epochs = 6", "search_step = 6", "search_step"),
        ("epochs = 6", 'preset = "paper-cifar-cohen"', "did you mean paper-cifar10-cohen"),
        ("epochs = 6", "preset = 3", "preset"),
        ("epochs = 6", 'preset = "paper-cifar10-cohen"', "cifar10"),
        ("epochs = 6", "epoch = 6", "did you mean epochs"),
        ("epochs = 6", 'epochs = "six"', "epochs"),
        ("epochs = 6", "epochs = 0", "networks.cohen"),
        ("epochs = 6", 'schedule = "flat"', "schedule"),
        ("epochs = 6", 'method = "cohem"', "cohem"),
        ("epochs = 6", "options = { epsilon = 1 }", "epsilon"),
        ("epochs = 6", "options = { draws = 2.5 }", "draws"),
        ("epochs = 6", "options = { draws = [2] }", "draws"),
        ("epochs = 6", "search_samples = 2", "search_samples"),
        ("epochs = 6", 'noise = "pink"', "pink"),
        ("epochs = 2", "epochs = 2\nwarmup = 2", "warmup"),
        ("epochs = 6", 'model = "zoo:none"', "networks.cohen"),
        ("epochs = 6", 'model = "zoo:cifar10-cohen-0.25"\nepochs = 6', "epochs"),
        ("sigma = 0.25\nepochs = 6", "epochs = 6", "sigma"),
        ("sigma = 0.25\nepochs = 6", "sigma = -1.0", "sigma"),
        ('from = "cohen"', 'from = "macer"', "macer"),
        ('networks = ["*"]', 'networks = ["macer"]', "certify[1]"),
        ('search = "halving"', 'search = "halfing"', "did you mean halving"),
        ('search = "halving"', 'search = "halving"\nsteps = 3', "steps"),
        ('search = "halving"', 'search = "halving"\nstep_size = 0.1', "step_size"),
        ('search = "halving"', 'search = "halving"\nbounds = 0.1', "bounds"),
        ('search = "fixed"', 'search = "fixed"\nsamples = 5', "certify[0]"),
        ('search = "halving"', 'search = "halving"\nnoise = "l3"', "l3"),
        ('search = "halving"', 'search = "none.such:Search"', "none.such"),
        ('search = "halving"', 'search = "fixed"', "cohen-0.25-fixed"),
        ('paper = "cifar10"', 'paper = "svhn"', "report.paper"),
        ('paper = "cifar10"', 'paper = "cifar10"\ntables = ["worst"]', "report.tables"),
        ("[sampling]", "[samples]", "samples"),
        ("[sampling]", "[sampling", "line"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in EXPERIMENT
    path = write_experiment(tmp_path, EXPERIMENT.replace(old, new, 1))
    with pytest.raises(InvalidInputError) as refusal:
        load_experiment(str(path))
    assert named in str(refusal.value).removeprefix(str(path))
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(("name", "hint"), [("digts", "did you mean digits"), ("nothing", "paper-cifar10")])
def test_an_unknown_name_shows_the_presets(name: str, hint: str) -> None:
    with pytest.raises(InvalidInputError, match=hint):
        load_experiment(name)


def test_the_settings_of_a_search_are_its_own(tmp_path: Path) -> None:
    text = EXPERIMENT + '\n[[certify]]\nnetworks = "cohen"\nsearch = "halving"\nlabel = "wide"\nrounds = 2\n'
    text += "initial = 0.3\nbounds = [0.1, 1.0]\n"
    spec = load_experiment(str(write_experiment(tmp_path, text))).certifications["cohen-0.25-halving-wide"].spec
    assert spec.search == HalvingSearch(initial=0.3, rounds=2, bounds=(0.1, 1.0))


def test_a_certification_may_have_steps_of_another_size(tmp_path: Path) -> None:
    text = EXPERIMENT + '\n[[certify]]\nnetworks = "cohen"\nsearch = "ascent-paper"\nsteps = 7\nstep_size = 1e-3\n'
    spec = load_experiment(str(write_experiment(tmp_path, text))).certifications["cohen-0.25-ascent-paper-k7"].spec
    assert spec.search == AscentSearch.paper(initial=0.25, steps=7, step_size=1e-3)


def test_two_certifications_may_differ_by_a_label(tmp_path: Path) -> None:
    text = EXPERIMENT + '\n[[certify]]\nnetworks = "cohen"\nsearch = "fixed"\nnoise = "l1"\nn = 50\nlabel = "few"\n'
    spec = load_experiment(str(write_experiment(tmp_path, text))).certifications["cohen-0.25-fixed-l1-few"].spec
    assert (spec.budget.n, spec.budget.n0, spec.noise) == (50, 20, Uniform())


def test_every_preset_is_there() -> None:
    papers = ("paper-cifar10", "paper-grid-search", "paper-imagenet", "paper-k-ablation", "paper-l1")
    assert tuple(presets()) == ("cifar10-cpu", "digits", *papers)


@pytest.mark.parametrize("name", list(presets()))
def test_presets_load_and_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sigmax.paper.plan.measure_speed", lambda *_, **__: Speed(sampling=1e3, search=1e2))
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))  # none is needed for a plan
    found = load_experiment(name)
    machine = Machine(device="cpu")
    steps = make_plan(found, tmp_path / "none", machine=machine, sources=load_sources(found, is_needed=False))
    trained = [network.name for network in found.networks.values() if network.recipe]
    assert [step.name for step in steps if step.kind == "train"] == trained
    assert {step.name for step in steps if step.kind == "certify"} == set(found.certifications)
    assert all(step.state == "to do" and step.passes > 0 and step.seconds > 0 for step in steps)
    if name.startswith("paper"):
        specs = [run.spec for run in found.certifications.values()]
        assert {(spec.budget.n0, spec.budget.n, spec.budget.alpha) for spec in specs} == {(100, 100_000, 0.001)}
        assert all(isinstance(spec.search, FixedSigma | AscentSearch | GridSearch) for spec in specs)
        assert not found.report.scaled_down


def test_a_plan_times_the_backend_that_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(nn.Module):
        """Takes its time, but not where it is differentiated."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            if not x.requires_grad:
                time.sleep(0.1)
            scores: Tensor = self.model(x)
            return scores

    monkeypatch.setattr("sigmax.paper.machine.accelerate", lambda model, *_, **__: Slow(model).eval())
    machine = Machine(device="cpu", backend="openvino", batch=64)
    speed = measure_speed("digits-cnn", shape=(1, 8, 8), classes=10, machine=machine)
    assert speed.sampling < 64 / 0.1
    assert speed.search > speed.sampling


def test_the_presets_have_the_sizes_of_the_paper() -> None:
    whole = load_experiment("paper-cifar10")
    assert {network.arch for network in whole.networks.values()} == {"resnet18"}
    assert len(whole.data.indices(10_000)) == 10_000
    assert len(load_experiment("paper-imagenet").data.indices(50_000)) == 500
    assert len(load_experiment("cifar10-cpu").data.indices(10_000)) == 500
    macer = [run.spec.search for run in whole.certifications.values() if run.network.family == "macer"]
    assert {search.samples for search in macer if isinstance(search, AscentSearch)} == {8}
    grids = [run.spec.search for run in load_experiment("paper-grid-search").certifications.values()]
    assert {(s.cost(), s.samples, len(s.grid), s.upper) for s in grids if isinstance(s, GridSearch)} == {
        (200, draws, 200 // draws, 1.0) for draws in (1, 2, 4, 10)
    }


def test_a_network_at_a_sigma_of_more_digits_is_not_beside_the_paper_s(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("sigma = 0.25", "sigma = 0.125", 1).replace("sigma = 0.25", "sigma = 0.125", 1)
    assert "cohen-0.125" in load_experiment(str(write_experiment(tmp_path, text))).networks
    assert (level_name(0.125), level_name(0.5)) == ("0.125", "0.50")


def test_images_to_certify_are_not_trained_on(tmp_path: Path) -> None:
    """Also where they have two names."""
    images = np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), dtype=np.uint8)
    for name in ("one", "two"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(20) % 10)
    places = [f"arrays:{tmp_path / name}.npz" for name in ("one", "two")]
    text = EXPERIMENT.replace("[networks.cohen]", '[networks.cohen]\narch = "digits-cnn"\nnormalize = "none"', 1)
    found = load_experiment(str(write_experiment(tmp_path, text)), data=places[0], train_data=places[1])
    with pytest.raises(DataError, match="the same"):
        load_sources(found)


def test_data_that_is_no_table_is_refused_by_its_name(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, 'data = "digits"\n' + EXPERIMENT.replace("[data]", "[other]"))
    with pytest.raises(InvalidInputError, match="data"):
        load_experiment(str(path), data="digits")


def test_the_data_may_be_elsewhere() -> None:
    found = load_experiment("paper-imagenet", data="imagenet:/a/val", train_data="imagenet:/a/train")
    assert found.train_data is not None
    assert (found.data.name, found.train_data.name) == ("imagenet:/a/val", "imagenet:/a/train")
    elsewhere = load_experiment("paper-l1", data="cifar10:/b").train_data
    assert elsewhere is not None
    assert elsewhere.name == "cifar10:/b"
