"""An experiment that is killed at random moments and started again ends with the same tables."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from commands import Run
from sigmax.runs import read_table
from small_experiment import RUNS, tables, write_experiment

KILLS = 2


def command(experiment: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "sigmax", "reproduce", str(experiment), "--out", str(out)]


def size(out: Path) -> int:
    """How much is there; it grows with every row and every checkpoint."""
    rows = [path.read_bytes().count(b"\n") for path in out.glob("runs/*/certificates.tsv")]
    checkpoints = [path.stat().st_mtime_ns for path in out.glob("networks/*/checkpoint.pt")]
    return sum(rows) + sum(checkpoints)


def test_killed_at_random_moments(run: Run, tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path)
    assert run("reproduce", experiment, "--out", tmp_path / "whole")[0] == 0
    killed, moments, kills = tmp_path / "killed", random.Random(1), 0
    while kills < KILLS:
        process = subprocess.Popen(
            command(experiment, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        before, patience = size(killed), time.monotonic() + 120
        # Wait for it to be at work, then a moment of any length: in a training, a certification, between both.
        while size(killed) <= before and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.6))
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills, "it was never killed"
    finished = subprocess.run(command(experiment, killed), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert tables(killed) == tables(tmp_path / "whole")
    assert all(len(read_table(killed / "runs" / name)) == 18 for name in RUNS)
    for name in ("cohen-0.25", "cohen-ds2-0.25"):
        one, other = (folder / "networks" / name / "model.safetensors" for folder in (killed, tmp_path / "whole"))
        assert one.read_bytes() == other.read_bytes()
