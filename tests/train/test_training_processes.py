"""Trainings as processes: killed and resumed, and shared by two processes."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sigmax.train.run import read_checkpoint

# An objective that writes down the batch-norm statistics that search and attack see, one line per process and step.
LOOKING = """
from dataclasses import dataclass
from typing import ClassVar
import torch.distributed
from sigmax.train.evaluation import evaluating
from sigmax.train.objectives.cohen import Cohen
from sigmax.train import Objective

@dataclass(frozen=True, slots=True, kw_only=True)
class Looking(Objective):
    name: ClassVar[str] = "looking"
    draws: int = 1

    def __call__(self, network, batch):
        with evaluating(network) as bare, open(f"seen-by-{torch.distributed.get_rank()}", "a") as file:
            print(*(buffer.double().sum().item() for buffer in bare.buffers()), file=file)
        return Cohen()(network, batch)
"""
TABLE = "--sigma 0.25 --method smoothadv --option warmup=2 --per-input"
RANGE = "--sigma-range 0.12,0.5 --ema 0.9"
SOURCES = pytest.mark.parametrize("settings", [TABLE, RANGE], ids=["table", "range"])


def command(settings: str, out: Path, *, epochs: int) -> list[str]:
    more = f"--augment crop --batch 32 --epochs {epochs} --resume"
    return ["-m", "sigmax", "train", "digits", *settings.split(), *more.split(), "--out", str(out)]


def environment() -> dict[str, str]:
    # One thread each: the processes of a test must not fight over the cores.
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@SOURCES
def test_killed_at_random_batches_and_resumed_is_bit_identical(settings: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(
        [sys.executable, *command(settings, whole, epochs=10)], check=True, capture_output=True, env=environment()
    )
    moments, kills = random.Random(0), 0
    while kills < 3:
        before = (killed / "checkpoint.pt").stat().st_mtime_ns if (killed / "checkpoint.pt").exists() else 0
        process = subprocess.Popen(
            [sys.executable, *command(settings, killed, epochs=10)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        )
        patience = time.monotonic() + 60
        # Wait for a checkpoint of this process, then any number of batches.
        while process.poll() is None and time.monotonic() < patience:
            if (killed / "checkpoint.pt").exists() and (killed / "checkpoint.pt").stat().st_mtime_ns > before:
                break
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.3))
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    assert not (killed / "model.safetensors").exists()
    subprocess.run(
        [sys.executable, *command(settings, killed, epochs=10)], check=True, capture_output=True, env=environment()
    )
    one, other = (read_checkpoint(folder / "checkpoint.pt") for folder in (whole, killed))
    assert torch.equal(one["sigma"], other["sigma"])
    for part in ("state_dict", "weights"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part])
    assert (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()


@SOURCES
def test_two_processes_train_the_same_network_with_the_same_sigmas(settings: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        [sys.executable, *command(settings, one, epochs=3)], check=True, capture_output=True, env=environment()
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shared = subprocess.run(
        [*launch, *command(settings, two, epochs=3)], capture_output=True, text=True, env=environment()
    )
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.count("network: ") == 1, "only the first process speaks"
    a, b = (read_checkpoint(folder / "checkpoint.pt") for folder in (one, two))
    assert a["steps_done"] == b["steps_done"]
    assert a["sigma"].std() > 0
    torch.testing.assert_close(a["sigma"], b["sigma"], rtol=1e-5, atol=1e-6)
    for part in ("state_dict", "weights"):
        for name, tensor in a[part].items():
            torch.testing.assert_close(tensor, b[part][name], rtol=1e-3, atol=1e-4)


def test_search_and_attack_see_the_same_batch_norm_statistics_in_all_processes(tmp_path: Path) -> None:
    (tmp_path / "looking.py").write_text(LOOKING)
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.random((64, 3, 16, 16), dtype=np.float32), y=np.arange(64) % 4)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sigmax"]
    settings = "--arch fast-resnet9 --sigma 0.25 --epochs 2 --batch 16 --method looking:Looking --out run"
    shared = subprocess.run(
        [*launch, "train", f"arrays:{tmp_path / 'data.npz'}", *settings.split()],
        capture_output=True,
        text=True,
        env=environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        cwd=tmp_path,
    )
    assert shared.returncode == 0, shared.stderr
    first, second = ((tmp_path / f"seen-by-{rank}").read_text().splitlines() for rank in (0, 1))
    assert first == second
    assert len(set(first)) == 8  # they move at every step


def test_a_batch_that_processes_cannot_share_is_an_error_in_one_line(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    odd = [*command(TABLE, tmp_path, epochs=1), "--batch", "31"]
    refused = subprocess.run([*launch, *odd], capture_output=True, text=True, env=environment())
    assert refused.returncode != 0
    assert "batch=31" in refused.stderr
