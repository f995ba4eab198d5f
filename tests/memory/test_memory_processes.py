"""Several processes and threads on one memory, and processes that are killed: nothing given is lost or contradicted."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from servers import Postgres
from sigmax.certificate import PointCertificate, SettledCertificate
from sigmax.memory import CertificateMemory, Entry
from sigmax.memory.balls import Vector

certificate = partial(PointCertificate, sigma=0.25, p_lower=0.9, n=1_000, alpha=0.001, norm=2)

WORKER = Path(__file__).with_name("memory_worker.py")
Answer = tuple[int | None, float]


def share_a_point(a: Entry, b: Entry) -> bool:
    gaps = [Fraction(p) - Fraction(q) for p, q in zip(a.x.tolist(), b.x.tolist(), strict=True)]
    reach = Fraction(a.answer.radius) + Fraction(b.answer.radius)
    return not any(gaps) or sum(gap**2 for gap in gaps) < reach**2


def count_contradictions(entries: Iterable[Entry]) -> int:
    """All pairs by brute force in l2: exactly, where floats say that they are close."""
    everything = list(entries)
    points = np.stack([entry.x for entry in everything])
    radii = np.array([entry.answer.radius for entry in everything])
    labels = np.array([entry.answer.label for entry in everything])
    found = 0
    for start in range(0, len(points), 200):
        block = slice(start, start + 200)
        is_close = cdist(points[block], points) <= radii[block, None] + radii + 1e-9
        rows, columns = np.nonzero(is_close & (labels[block, None] != labels))
        found += sum(share_a_point(everything[start + i], everything[j]) for i, j in zip(rows, columns, strict=True))
    return found


def read_answers(output: Path) -> list[tuple[tuple[float, ...], Answer]]:
    """What a worker has said, without a last line that was cut off."""
    whole_lines = [line for line in output.read_text().splitlines(keepends=True) if line.endswith("\n")]
    answers = [json.loads(line) for line in whole_lines]
    return [(tuple(x), (label, radius)) for x, label, radius in answers]


def check_memory(place: Path | str, outputs: Iterable[Path]) -> int:
    """Every answer that was given is stored, and no two entries contradict each other; how many entries."""
    with CertificateMemory.existing(place) as memory:
        entries = list(memory.entries())
        stored: dict[tuple[float, ...], Answer] = {
            tuple(entry.x.tolist()): (entry.answer.label, entry.answer.radius) for entry in entries
        }
        assert len(stored) == len(entries)
        for output in outputs:
            for x, answer in read_answers(output):
                assert answer == (None, 0.0) or stored[x] == answer
        assert list(memory.contradictions()) == []
    assert count_contradictions(entries) == 0
    return len(entries)


def start_worker(
    place: Path | str, output: Path, *, seed: int, count: int, flags: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(WORKER), "settle", str(place), str(seed), str(count), *flags]
    with output.open("w") as stdout, output.with_suffix(".errors").open("w") as stderr:
        return subprocess.Popen(arguments, stdout=stdout, stderr=stderr, text=True)


def run_two_workers(place: Path | str, folder: Path, count: int) -> int:
    """One settles inputs one by one, the other in blocks."""
    outputs = [folder / "first.out", folder / "second.out"]
    workers = [
        start_worker(place, outputs[0], seed=0, count=count, flags=("--check",)),
        start_worker(place, outputs[1], seed=1, count=count, flags=("--check", "--block")),
    ]
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.wait() == 0, output.with_suffix(".errors").read_text()
        assert len(read_answers(output)) == count
    return check_memory(place, outputs)


def test_two_processes_at_once(tmp_path: Path) -> None:
    assert run_two_workers(tmp_path / "memory.db", tmp_path, 1_500) > 1_500


def test_two_processes_at_once_on_a_server(tmp_path: Path, postgres: Postgres) -> None:
    assert run_two_workers(postgres.database(), tmp_path, 400) > 400


@pytest.mark.scale
def test_two_processes_at_once_a_hundred_thousand_times(tmp_path: Path) -> None:
    assert run_two_workers(tmp_path / "memory.db", tmp_path, 50_000) > 40_000


@pytest.mark.skipif(sys.platform == "win32", reason="kills as only POSIX systems do")
def test_killed_at_any_moment_nothing_given_is_lost(tmp_path: Path, postgres: Postgres) -> None:
    rng = random.Random(0)
    places = [str(tmp_path / "memory.db"), postgres.database()]
    outputs = [(place, tmp_path / f"{i}-{side}.out") for i, place in enumerate(places) for side in range(2)]
    workers = [
        start_worker(*place, seed=seed, count=1_000_000, flags=("--block",) if seed % 2 else ())
        for seed, place in enumerate(outputs)
    ]
    while not all(output.stat().st_size for _, output in outputs):
        assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
        time.sleep(0.01)
    # Killed one by one, so that of the two on a memory one is killed while the other goes on.
    for worker in rng.sample(workers, len(workers)):
        time.sleep(rng.uniform(0.0, 0.2))
        assert worker.poll() is None, "a worker ended by itself"
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    for i, place in enumerate(places):
        assert check_memory(place, tmp_path.glob(f"{i}-*.out")) > 0


@pytest.mark.skipif(sys.platform == "win32", reason="kills as only POSIX systems do")
def test_a_server_that_restarts_under_its_clients_loses_no_answer(tmp_path: Path, postgres: Postgres) -> None:
    """Two clients go on by themselves; a third is killed in between."""
    place, count = postgres.database(), 300
    outputs = [tmp_path / f"{i}.out" for i in range(3)]
    workers = [
        start_worker(place, output, seed=seed, count=count * (1 + 999 * (seed == 2)), flags=("--block",) * (seed % 2))
        for seed, output in enumerate(outputs)
    ]
    while not all(output.stat().st_size for output in outputs):
        assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
        time.sleep(0.01)
    postgres.restart()
    workers[2].send_signal(signal.SIGKILL)
    workers[2].wait()
    postgres.restart()
    for worker, output in zip(workers[:2], outputs, strict=False):
        assert worker.wait() == 0, output.with_suffix(".errors").read_text()
        assert len(read_answers(output)) == count
    assert check_memory(place, outputs) > count


def test_two_processes_make_the_same_file_at_once(tmp_path: Path) -> None:
    pipes = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    with pipes([sys.executable, WORKER, "open"]) as first, pipes([sys.executable, WORKER, "open"]) as second:
        assert first.stdin and first.stdout and second.stdin and second.stdout  # noqa: PT018 - for the types
        for i in range(100):
            ready = "opened\n" if i else "ready\n"
            assert (first.stdout.readline(), second.stdout.readline()) == (ready, ready)
            first.stdin.write(f"{tmp_path}/{i}.db\n")
            second.stdin.write(f"{tmp_path}/{i}.db\n")
        assert (first.communicate()[0], second.communicate()[0]) == ("opened\n", "opened\n")
    assert (first.returncode, second.returncode) == (0, 0)


@pytest.mark.parametrize("is_durable", [False, True], ids=["in process", "file"])
def test_threads_share_a_memory(tmp_path: Path, is_durable: bool) -> None:
    given: list[tuple[Vector, SettledCertificate]] = []
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(100):
                x = rng.integers(0, 24, 2) / 4
                answer = memory.settle(x, certificate(label=int(rng.integers(3)), radius=float(rng.choice([0.0, 0.3]))))
                given.append((x, answer))
                assert memory.lookup(x) == answer
            assert len(list(memory.entries())) >= 50
        except BaseException as error:
            errors.append(error)

    with CertificateMemory(norm=2, place=tmp_path / "memory.db" if is_durable else None) as memory:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        stored = {tuple(entry.x.tolist()): entry.answer for entry in memory.entries()}
        assert all(stored[tuple(x.tolist())] == answer for x, answer in given)
        assert len(given) == 400
        assert list(memory.contradictions()) == []
        assert count_contradictions(memory.entries()) == 0
