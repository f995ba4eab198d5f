"""A disk that is full: one line, nothing lost, and the run goes on when there is room."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Run
from sigmax.memory import CertificateMemory
from sigmax.runs import read_table


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
