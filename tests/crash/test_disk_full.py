"""A disk that is full: one line says so, nothing is lost, and the same command goes on when there is room."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Run
from records import memory_rows, rows
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.train.run import CHECKPOINT, read_checkpoint
from toy import toy_spec

INPUTS = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Fill a disk with a file, but for so many bytes."""
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - leave))
    return filler


def errors(err: str) -> list[str]:
    """The error among notes and progress."""
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("error:")]


@pytest.mark.parametrize(("search", "leave"), [("--per-input", 2**16), ("--exact", 2**12)], ids=["memory", "table"])
def test_a_run_goes_on_when_there_is_room(tmp_path: Path, disk: Path, run: Run, search: str, leave: int) -> None:
    data = toy_spec(tmp_path, inputs=INPUTS).data.name
    request = ["certify", "toy:small_network", "--data", data, "--n", 100, "--sigma", 0.25, "--batch", 64, search]
    assert run(*request, "--out", tmp_path / "expected")[0] == 0
    out = disk / "run"
    assert run(*request, "--out", out, "--max", 1)[0] == 0
    filler = fill(disk, leave=leave)
    for _ in range(2):  # nor does it help to try again
        code, _, err = run(*request, "--out", out, "--resume")
        assert (code, len(errors(err))) == (2, 1), err
        assert str(out) in errors(err)[0]
    assert 1 < len(rows(out)) - 1 < INPUTS
    filler.unlink()
    code, _, err = run(*request, "--out", out, "--resume")
    assert code == 0, err
    assert rows(out) == rows(tmp_path / "expected")
    if search == "--per-input":
        assert memory_rows(out / "memory.db") == memory_rows(tmp_path / "expected" / "memory.db")


def test_a_training_goes_on_when_there_is_room(tmp_path: Path, disk: Path, run: Run) -> None:
    request = ["train", "digits", "--arch", "digits-cnn", "--sigma", 0.25, "--batch", 512, "--epochs"]
    assert run(*request, 3, "--out", tmp_path / "expected")[0] == 0
    size = (tmp_path / "expected" / CHECKPOINT).stat().st_size
    out = disk / "training"
    filler = fill(disk, leave=3 * size // 2)  # one checkpoint, but not two
    code, _, err = run(*request, 3, "--out", out)
    assert (code, len(errors(err))) == (2, 1), err
    assert str(out) in errors(err)[0]
    assert read_checkpoint(out / CHECKPOINT)["steps_done"] > 0
    filler.unlink()
    code, _, err = run(*request, 3, "--out", out, "--resume")
    assert code == 0, err
    assert (out / MODEL_FILE).read_bytes() == (tmp_path / "expected" / MODEL_FILE).read_bytes()
