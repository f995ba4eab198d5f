"""Work that runs out of time stops between two steps of a training, and loses none of them."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sigmax.cli.reproduce import TimeIsUpError, _work, until
from sigmax.engine import Engine, LocalEngine, Tracker
from sigmax.errors import RecordError
from sigmax.paper.experiment import load_experiment
from sigmax.paper.machine import Machine
from sigmax.paper.plan import Step
from sigmax.paper.run import Reproduction
from sigmax.train.run import read_checkpoint
from small_experiment import EXPERIMENT, write_experiment


@contextlib.contextmanager
def silent(_what: str, _total: int) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def test_a_training_goes_on_where_its_time_was_up(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("epochs = 6", "epochs = 1")
    experiment = load_experiment(str(write_experiment(tmp_path, text)))
    machine = Machine(device="cpu")

    def first(work: Reproduction) -> Step:
        return work.plan("cohen-0.25-fixed")[0]

    for stops in (1, 2):
        with Reproduction(experiment, tmp_path / "stopped", machine=machine) as work:
            with pytest.raises(TimeIsUpError):
                work.work(first(work), until(time.monotonic(), silent))
            assert first(work).state == f"partly, {stops} of 20"
        checkpoint = read_checkpoint(tmp_path / "stopped" / "networks" / "cohen-0.25" / "checkpoint.pt")
        assert checkpoint["steps_done"] == stops
    for out in ("stopped", "whole"):
        with Reproduction(experiment, tmp_path / out, machine=machine) as work:
            work.work(first(work), until(time.monotonic() + 600, silent))
            assert first(work).is_done
    one, other = (tmp_path / out / "networks" / "cohen-0.25" / "model.safetensors" for out in ("stopped", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_what_was_done_when_its_time_was_up_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_on = Reproduction.work

    def work_late(work: Reproduction, step: Step, track: Tracker, engine: Engine) -> None:
        work_on(work, step, track, engine)
        raise TimeIsUpError  # with the last thing that was left to do

    experiment = load_experiment(str(write_experiment(tmp_path)))
    with Reproduction(experiment, tmp_path / "run", machine=Machine(device="cpu")) as work:
        work.work(work.plan("cohen-0.25-fixed")[0], until(time.monotonic() + 600, silent))
    monkeypatch.setattr(Reproduction, "work", work_late)
    with Reproduction(experiment, tmp_path / "run", machine=Machine(device="cpu")) as work:
        fixed, halving = work.plan("cohen-0.25-fixed"), work.plan("cohen-0.25-halving")
        assert not _work(work, [*fixed, halving[-1]], time.monotonic() + 600, LocalEngine())  # more is left
        assert _work(work, [fixed[0], halving[-1]], time.monotonic() + 600, LocalEngine())


def test_one_process_at_a_time(tmp_path: Path) -> None:
    experiment = load_experiment(str(write_experiment(tmp_path)))
    with (
        Reproduction(experiment, tmp_path / "run", machine=Machine(device="cpu")),
        pytest.raises(RecordError, match="only writer"),
    ):
        Reproduction(experiment, tmp_path / "run", machine=Machine(device="cpu"))
