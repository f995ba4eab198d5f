"""A folder goes on with the images it was begun with, from wherever they come, and with no others."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Run
from sigmax.data import Split, load_source
from sigmax.paper.experiment import load_experiment
from sigmax.paper.machine import Machine
from sigmax.paper.run import Reproduction
from small_experiment import write_experiment

TEXT = """
[report]
title = "Two images"
paper = "cifar10"

[data]
name = "digits"
max = 2

[sampling]
n = 50

[networks.cohen] # all that digits would say, so that the images may come from elsewhere
sigma = 0.25
arch = "digits-cnn"
epochs = 1
batch = 64
lr = 0.1

[[certify]]
networks = ["cohen"]
search = "fixed"
"""
GROWN = TEXT + '\n[[certify]]\nnetworks = ["cohen"]\nsearch = "halving"\n'


def save(path: Path, split: Split, **changed: Any) -> str:
    """The digits in a file, as they are or with other arrays, and how the command line spells it."""
    source = load_source("digits", split=split)
    np.savez(path, **{"images": source.images(range(len(source))), "labels": source.labels, **changed})
    return f"arrays:{path}"


@contextlib.contextmanager
def silent(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment, done on the digits."""
    folder = tmp_path_factory.mktemp("experiment")
    experiment = load_experiment(str(write_experiment(folder, TEXT)))
    with Reproduction(experiment, folder / "run", machine=Machine(device="cpu")) as work:
        for step in work.plan():
            work.work(step, silent)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it for each test, whose file asks for one certification more."""
    shutil.copytree(finished / "run", tmp_path / "run")
    write_experiment(tmp_path, GROWN)
    return tmp_path


def settings(folder: Path) -> Any:
    return json.loads((folder / "run" / "experiment.json").read_text())


def digests() -> dict[str, str]:
    return {"test": load_source("digits").digest(), "train": load_source("digits", split="train").digest()}


def test_the_settings_say_which_images(folder: Path) -> None:
    assert settings(folder)["data"] == digests() | {"skip": 1, "max": 2}


@pytest.mark.parametrize(("option", "split"), [("--data", "test"), ("--train-data", "train")])
def test_other_images_are_refused(run: Run, folder: Path, option: str, split: Split) -> None:
    before = settings(folder)
    other = save(folder / "other.npz", split, labels=load_source("digits", split=split).labels[::-1])
    places = {"--data": "digits", "--train-data": "digits", option: other}
    for more in ((), ("--plan",)):
        code, _, log = run(
            *("reproduce", folder / "small.toml", "--out", folder / "run", *more),
            *[word for pair in places.items() for word in pair],
        )
        assert code == 2
        assert f"data.{split}=" in log
        assert digests()[split] in log
        assert len(log.splitlines()) == 1
    assert settings(folder) == before
    assert not (folder / "run" / "runs" / "cohen-0.25-halving").exists()


def test_the_same_images_may_come_from_elsewhere(run: Run, folder: Path) -> None:
    places = ("--data", save(folder / "test.npz", "test"), "--train-data", save(folder / "train.npz", "train"))
    code, said, log = run("reproduce", folder / "small.toml", "--out", folder / "run", *places, "--plan", "--json")
    assert code == 0, log
    assert [step["state"] for step in json.loads(said)] == ["done", "done", "to do"]


def test_a_plan_of_a_begun_folder_needs_no_images(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGMAX_DATA", str(tmp_path))
    text = TEXT.replace('"digits"', '"mnist"').replace("digits-cnn", "fast-resnet9")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text('{"data": {"test": "0123", "train": "4567"}}')
    code, _, log = run("reproduce", write_experiment(tmp_path, text), "--out", tmp_path / "run", "--plan")
    assert code == 0, log


def test_a_training_may_be_added_to_networks_that_exist(run: Run, digits_model: Path, tmp_path: Path) -> None:
    exists = TEXT[: TEXT.index("[networks")] + f'[networks.own]\nsigma = 0.25\nmodel = "{digits_model}"\n'
    exists += '[[certify]]\nnetworks = ["own"]\nsearch = "fixed"\n'
    command = ("reproduce", write_experiment(tmp_path, exists), "--out", tmp_path / "run")
    assert run(*command, "--max-hours", 0)[0] == 3
    assert "train" not in settings(tmp_path)["data"]
    write_experiment(tmp_path, exists + TEXT[TEXT.index("[networks") :])
    code, _, log = run(*command, "--max-hours", 0)
    assert code == 3, log
    assert settings(tmp_path)["data"].items() >= digests().items()
