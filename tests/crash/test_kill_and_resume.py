"""A run that is killed at random moments and resumed ends like one that never was."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from sigmax import CertificateMemory
from sigmax.runs import read_table

INPUTS = 120


def command(model: Path, out: Path) -> list[str]:
    arguments = f"--data digits --max {INPUTS} --n 3000 --search ascent --steps 6 --resume --out {out}"
    return [sys.executable, "-m", "sigmax", "certify", str(model), *arguments.split()]


def rows(out: Path) -> int:
    table = out / "certificates.tsv"
    return table.read_bytes().count(b"\n") - 1 if table.exists() else -1


def table_without_times(out: Path) -> list[list[str]]:
    lines = (out / "certificates.tsv").read_text().splitlines()
    return [[field for i, field in enumerate(line.split("\t")) if i != 5] for line in lines]


def entries(out: Path) -> list[tuple[int, object, bytes]]:
    with CertificateMemory.existing(out / "memory.db") as memory:
        return [(entry.id, entry.answer, np.asarray(entry.x).tobytes()) for entry in memory.entries()]


def test_killed_at_twenty_random_moments(digits_model: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(digits_model, whole), check=True, capture_output=True)
    moments, kills = random.Random(0), 0
    while kills < 20:
        process = subprocess.Popen(
            command(digits_model, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        before = rows(killed)
        patience = time.monotonic() + 60
        # Wait for it to be at work, then a moment of any length: within a row, between memory and table, …
        while rows(killed) <= before and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.08))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
        assert rows(killed) > before, "a resumed run must get on"
        if rows(killed) == INPUTS and kills < 20:
            # Done too soon: take the end of it away again, as if it had been killed there.
            table = killed / "certificates.tsv"
            table.write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[: 1 + INPUTS // 2]))
    finished = subprocess.run(command(digits_model, killed), capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert table_without_times(killed) == table_without_times(whole)
    assert entries(killed) == entries(whole)
    assert len(read_table(killed)) == INPUTS


def test_an_interrupt_says_how_to_go_on(digits_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(command(digits_model, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while rows(out) < 1 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--out {out} --resume" in err
    assert "Traceback" not in err
