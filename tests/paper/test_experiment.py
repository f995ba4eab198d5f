"""Experiments are read as they are written; what is wrong with one is said by its name."""

import time
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

from sigmax.errors import DataError, InvalidInputError, SigmaxError
from sigmax.reproduce import Machine, load_experiment, make_plan, presets
from sigmax.reproduce.experiment import level_name
from sigmax.reproduce.machine import Speed, measure_speed
from sigmax.reproduce.sources import load_sources
from sigmax.sigma import AscentSearch, GridSearch
from small_experiment import EXPERIMENT, RUNS, write_experiment


def test_an_experiment_is_what_its_file_says(tmp_path: Path) -> None:
    found = load_experiment(str(write_experiment(tmp_path)))
    assert {run.name: run.method for run in found.certifications} == RUNS
    assert [network.name for network in found.networks] == ["cohen-0.25", "cohen-ds2-0.25"]
    first, second = (network.recipe for network in found.networks)
    assert first is not None
    assert second is not None
    assert (first.arch, first.epochs, first.sigma, first.per_input) == ("digits-cnn", 6, 0.25, False)
    assert (second.arch, second.epochs, second.sigma, second.per_input) == ("digits-cnn", 2, 0.25, True)
    assert found.networks[1].start == "cohen-0.25"
    assert found.indices(500) == [25 * i for i in range(18)]
    assert {run.budget.n for run in found.certifications} == {400}
    searches = {run.name: run.search for run in found.certifications}
    assert searches["cohen-0.25-ascent-paper-k4"] == AscentSearch.paper(initial=0.25, steps=4)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "skip = 25",
            "skipp = 25",
            "expected data to have only name, train, skip, max, got skipp=25; did you mean skip?",
        ),
        ("skip = 25", "skip = 0", "expected data.skip >= 1"),
        ("skip = 25", 'skip = "25"', "expected data.skip to be a whole number, got '25'"),
        ("skip = 25", "skip = true", "expected data.skip to be a whole number, got True"),
        ('name = "digits"', "", "expected data.name, got none"),
        ('name = "digits"', 'name = "dgits"', "got data='dgits'; did you mean digits?"),
        ('name = "digits"', 'name = "imagenet:x"', "expected data.train (or --train-data), got none: imagenet:x has"),
        ('name = "digits"', 'name = "digits"\ntrain = "mnits"', "got data='mnits'; did you mean mnist?"),
        ("n = 400", "n = 400.5", "expected sampling.n to be a whole number, got 400.5"),
        ("n = 400", "m = 400", "expected sampling to have only n0, n, alpha"),
        ("epochs = 6", "search_step = 6", "got search_step=6; did you mean search_steps?"),
        ("epochs = 6", 'preset = "paper-cifar-cohen"', "did you mean paper-cifar10-cohen?"),
        ("n = 400", "alpha = 2", "expected 0 < alpha < 1"),
        ("epochs = 6", "epoch = 6", "networks.cohen to have only sigma, method, preset, from"),
        ("epochs = 6", 'epochs = "six"', "expected networks.cohen.epochs to be a whole number, got 'six'"),
        ("epochs = 6", "epochs = 0", "networks.cohen: expected epochs >= 1"),
        ("epochs = 6", 'schedule = "flat"', "expected networks.cohen.schedule to be one-cycle or cosine or step"),
        ("epochs = 6", 'preset = "paper-cifar10-cohen"', "expected cifar10 for preset paper-cifar10-cohen"),
        ("epochs = 6", 'method = "cohem"', "got method='cohem'"),
        ("epochs = 6", "options = { epsilon = 1 }", "expected an option of cohen (draws=1), got epsilon=1"),
        ("epochs = 6", "options = { draws = 2.5 }", "expected draws to be a whole number, got draws=2.5"),
        ("epochs = 6", "options = { draws = true }", "expected draws to be a whole number, got draws=True"),
        ("epochs = 6", "options = { draws = inf }", "expected draws to be a whole number, got draws=inf"),
        ("epochs = 6", "options = { draws = [2] }", "expected draws to be a whole number, got draws=[2]"),
        ("epochs = 6", "search_samples = 2", "networks.cohen: expected per-input sigma with search_samples=2"),
        ("epochs = 2", "epochs = 2\nwarmup = 2", "expected warmup < epochs with per_input, got warmup=2, epochs=2"),
        ("epochs = 6", 'model = "zoo:none"', "networks.cohen: expected a network of the zoo"),
        ("sigma = 0.25\nepochs = 6", "epochs = 6", "expected networks.cohen.sigma, a number or several, got none"),
        ("sigma = 0.25\nepochs = 6", "sigma = -1.0", "networks.cohen: expected sigma > 0"),
        ('from = "cohen"', 'from = "macer"', "further up in the file (cohen-0.25), got from='macer'"),
        ('networks = ["*"]', 'networks = ["macer"]', "expected certify[1].networks to name some of cohen-0.25"),
        ('search = "halving"', 'search = "halfing"', "expected certify[2].search to be fixed or halving"),
        ('search = "halving"', 'search = "halving"\nsteps = 3', "expected certify[2].steps only for ascent"),
        ('search = "halving"', 'search = "halving"\nsamples = 5', "expected certify[2].samples only for ascent"),
        ('search = "halving"', 'search = "halving"\nstep_size = 0.1', "expected step_size only for ascent"),
        ('search = "fixed"', 'search = "fixed"\nsamples = 5', "expected certify[0].samples only for ascent"),
        ('search = "halving"', 'search = "halving"\nnorm = "l3"', "expected certify[2].norm to be l1 or l2"),
        ('search = "halving"', 'search = "fixed"', "expected one certification cohen-0.25-fixed, got two"),
        ('paper = "cifar10"', 'paper = "svhn"', "expected report.paper to be cifar10 or imagenet"),
        ('paper = "cifar10"', 'paper = "cifar10"\ntables = ["worst"]', "expected report.tables to be best or gain"),
        ("[sampling]", "[samples]", "expected the file to have only data, networks, certify, report, sampling"),
        ("[sampling]", "[sampling", "expected TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in EXPERIMENT
    path = write_experiment(tmp_path, EXPERIMENT.replace(old, new, 1))
    with pytest.raises(InvalidInputError) as refusal:
        load_experiment(str(path))
    assert says in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_an_unknown_name_shows_the_presets() -> None:
    with pytest.raises(SigmaxError, match="paper-cifar10"):
        load_experiment("nothing")


@pytest.mark.parametrize(("spec", "hint"), [("digts", "; did you mean digits?"), ("nothing", "directory: 'nothing'")])
def test_a_typo_is_met_with_the_preset_that_was_meant(spec: str, hint: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        load_experiment(spec)
    assert str(refusal.value).endswith(hint)


def test_a_certification_may_have_steps_of_another_size(tmp_path: Path) -> None:
    text = EXPERIMENT + '\n[[certify]]\nnetworks = "cohen"\nsearch = "ascent-paper"\nsteps = 7\nstep_size = 1e-3\n'
    search = load_experiment(str(write_experiment(tmp_path, text))).certifications[-1].search
    assert search == AscentSearch.paper(initial=0.25, steps=7, step_size=1e-3)


def test_two_certifications_may_differ_by_a_label(tmp_path: Path) -> None:
    text = EXPERIMENT + '\n[[certify]]\nnetworks = "cohen"\nsearch = "fixed"\nnorm = "l1"\nn = 50\nlabel = "few"\n'
    run = load_experiment(str(write_experiment(tmp_path, text))).certifications[-1]
    assert (run.name, run.budget.n, run.budget.n0, run.method) == ("cohen-0.25-fixed-l1-few", 50, 20, "cohen-l1")


def test_every_preset_of_the_issue_is_there() -> None:
    papers = ("paper-cifar10", "paper-grid-search", "paper-imagenet", "paper-k-ablation", "paper-l1")
    assert tuple(presets()) == ("cifar10-cpu", "digits", *papers)


@pytest.mark.parametrize("name", list(presets()))
def test_presets_load_and_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sigmax.reproduce.plan.measure_speed", lambda *_, **__: Speed(sampling=1e3, search=1e2))
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))  # none is needed for a plan
    found = load_experiment(name)
    steps = make_plan(found, tmp_path / "none", machine=Machine(device="cpu"))
    trained = [network.name for network in found.networks if network.recipe]
    assert [step.name for step in steps if step.kind == "train"] == trained
    assert {step.name for step in steps if step.kind == "certify"} == {run.name for run in found.certifications}
    assert all(step.state == "to do" and step.passes > 0 and step.seconds > 0 for step in steps)
    if name.startswith("paper"):
        assert {(run.budget.n0, run.budget.n, run.budget.alpha) for run in found.certifications} == {
            (100, 100_000, 0.001)
        }
        assert {run.search_name for run in found.certifications} <= {"fixed", "ascent-paper", "grid"}
        assert not found.report.scaled_down


def test_a_plan_times_the_engine_that_will_run(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("sigmax.reproduce.machine.accelerate", lambda model, *_, **__: Slow(model).eval())
    machine = Machine(device="cpu", backend="openvino", batch=64)
    speed = measure_speed("digits-cnn", shape=(1, 8, 8), classes=10, machine=machine)
    assert speed.sampling < 64 / 0.1
    assert speed.search > speed.sampling


def test_the_presets_have_the_sizes_of_the_paper() -> None:
    whole = load_experiment("paper-cifar10")
    assert {network.arch for network in whole.networks} == {"resnet18"}
    assert len(whole.indices(10_000)) == 10_000
    assert len(load_experiment("paper-imagenet").indices(50_000)) == 500
    assert len(load_experiment("cifar10-cpu").indices(10_000)) == 500
    macer = [run.search for run in whole.certifications if run.network.family == "macer" and run.search.is_per_input]
    assert {search.samples for search in macer if isinstance(search, AscentSearch)} == {8}
    grids = [run.search for run in load_experiment("paper-grid-search").certifications if run.search_name == "grid"]
    assert {(s.cost(), s.samples, len(s.grid), s.upper) for s in grids if isinstance(s, GridSearch)} == {
        (200, draws, 200 // draws, 1.0) for draws in (1, 2, 4, 10)
    }


def test_a_network_at_a_sigma_of_more_digits_is_not_beside_the_paper_s(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("sigma = 0.25", "sigma = 0.125", 1).replace("sigma = 0.25", "sigma = 0.125", 1)
    assert load_experiment(str(write_experiment(tmp_path, text))).networks[0].name == "cohen-0.125"
    assert (level_name(0.125), level_name(0.5)) == ("0.125", "0.50")


def test_images_to_certify_are_not_trained_on(tmp_path: Path) -> None:
    """Also where they have two names."""
    images = np.random.default_rng(0).integers(0, 255, (20, 1, 8, 8), dtype=np.uint8)
    for name in ("one", "two"):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(20) % 10)
    places = [f"arrays:{tmp_path / name}.npz" for name in ("one", "two")]
    text = EXPERIMENT.replace("[networks.cohen]", '[networks.cohen]\narch = "digits-cnn"\nnormalize = "none"', 1)
    found = load_experiment(str(write_experiment(tmp_path, text)), data=places[0], train_data=places[1])
    with pytest.raises(DataError, match="expected other images to train on than those to certify"):
        load_sources(found)


def test_data_that_is_no_table_is_refused_by_its_name(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, 'data = "digits"\n' + EXPERIMENT.replace("[data]", "[other]"))
    with pytest.raises(InvalidInputError, match="data"):
        load_experiment(str(path), data="digits")


def test_the_data_may_be_elsewhere() -> None:
    found = load_experiment("paper-imagenet", data="imagenet:/a/val", train_data="imagenet:/a/train")
    assert (found.data.name, found.train_data) == ("imagenet:/a/val", "imagenet:/a/train")
    assert load_experiment("paper-l1", data="cifar10:/b").train_data == "cifar10:/b"
