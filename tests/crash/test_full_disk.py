"""A disk that is full: one line, nothing lost, and the run goes on when there is room."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Run
from records import memory_rows, rows
from sigmax.memory import CertificateMemory
from sigmax.models.checkpoint import MODEL_FILE
from sigmax.runs import read_table
from sigmax.train.run import CHECKPOINT, read_checkpoint
from toy import toy_spec

INPUTS = 60


def mount(*arguments: object) -> bool:
    try:
        return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if sys.platform != "linux" or not mount("-t", "tmpfs", "-o", "size=512k", "tmpfs", folder):
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_memory_on_a_full_disk_goes_on_when_there_is_room(
    run: Run, digits_model: Path, tmp_path: Path, small_disk: Path
) -> None:
    memory, count = small_disk / "memory.db", 40
    certify = ("certify", digits_model, "--n", 100, "--max", count, "--per-input")
    code, _, err = run(*certify, "--memory", memory, "--out", tmp_path / "run")
    assert (code, err.splitlines()[-1].startswith(f"error: {memory}")) == (2, True), err
    assert "full" in err.splitlines()[-1]
    done = len(read_table(tmp_path / "run"))
    assert 0 < done < count
    assert mount("-o", "remount,size=20m", small_disk)
    code, _, err = run(*certify, "--memory", memory, "--out", tmp_path / "run", "--resume")
    assert code == 0, err
    assert run(*certify, "--memory", tmp_path / "other.db", "--out", tmp_path / "other")[0] == 0
    ours, other = (read_table(tmp_path / name) for name in ("run", "other"))
    assert (ours.predict.tolist(), ours.radius.tolist()) == (other.predict.tolist(), other.radius.tolist())
    with CertificateMemory.existing(memory) as settled:
        assert len(settled) == (ours.predict >= 0).sum()
        assert list(settled.contradictions()) == []


def fill(disk: Path, *, leave: int) -> Path:
    """Make a disk larger, and fill it with a file but for so many bytes."""
    assert mount("-o", "remount,size=8m", disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - leave))
    return filler


def errors(err: str) -> list[str]:
    """The error among notes and progress."""
    assert "Traceback" not in err
    return [line for line in err.splitlines() if line.startswith("error:")]


@pytest.mark.parametrize(("search", "leave"), [("--per-input", 2**16), ("--exact", 2**12)], ids=["memory", "table"])
def test_a_run_goes_on_when_there_is_room(tmp_path: Path, small_disk: Path, run: Run, search: str, leave: int) -> None:
    data = toy_spec(tmp_path, inputs=INPUTS).data.name
    request = ["certify", "toy:small_network", "--data", data, "--n", 100, "--sigma", 0.25, "--batch", 64, search]
    assert run(*request, "--out", tmp_path / "expected")[0] == 0
    out = small_disk / "run"
    assert run(*request, "--out", out, "--max", 1)[0] == 0
    filler = fill(small_disk, leave=leave)
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


def test_a_training_goes_on_when_there_is_room(tmp_path: Path, small_disk: Path, run: Run) -> None:
    request = ["train", "digits", "--arch", "digits-cnn", "--sigma", 0.25, "--batch", 512, "--epochs"]
    assert run(*request, 3, "--out", tmp_path / "expected")[0] == 0
    size = (tmp_path / "expected" / CHECKPOINT).stat().st_size
    out = small_disk / "training"
    filler = fill(small_disk, leave=3 * size // 2)  # one checkpoint, but not two
    code, _, err = run(*request, 3, "--out", out)
    assert (code, len(errors(err))) == (2, 1), err
    assert str(out) in errors(err)[0]
    assert read_checkpoint(out / CHECKPOINT)["steps_done"] > 0
    filler.unlink()
    code, _, err = run(*request, 3, "--out", out, "--resume")
    assert code == 0, err
    assert (out / MODEL_FILE).read_bytes() == (tmp_path / "expected" / MODEL_FILE).read_bytes()
