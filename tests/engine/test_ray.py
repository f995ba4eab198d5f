"""The Ray engine on two nodes of this machine: the bytes of the local engine, whoever is killed on the way."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from commands import Run
from records import memory_rows, rows
from sigmax import FixedSigma
from sigmax.engine import certify, prepare
from sigmax.engine.blocks import split_blocks
from sigmax.engine.ray import RayEngine
from sigmax.engine.worker import Surroundings, Worker
from sigmax.errors import EngineError, InvalidInputError
from sigmax.runs import CertificationSpec, read_spec
from sigmax.sampling import Progress
from toy import Brighter, quietly, toy_spec

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray comes with the ray extra")
INPUTS = 160  # ten blocks


@pytest.fixture(scope="module")
def request_and_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[CertificationSpec, Path]:
    """A request, with a search that only this process can import at first, and what the local engine makes of it."""
    folder = tmp_path_factory.mktemp("local")
    spec = toy_spec(folder, model="toy:small_network", inputs=INPUTS, n=1_000, search=Brighter(initial=0.2))
    certify(spec, folder / "run", track=quietly)
    return spec, folder / "run"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one core; everything stays on loopback."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
            patch.setenv(name, "0")
        # Else Ray takes 127.0.0.1 for the address of this machine in its network.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        from ray.cluster_utils import Cluster

        quick = {"health_check_initial_delay_ms": 1_000, "health_check_period_ms": 1_000}
        head = {"num_cpus": 1, "include_dashboard": False, "_system_config": quick}
        made = Cluster(initialize_head=True, head_node_args=head | here())
        try:
            yield made
        finally:
            made.shutdown()


def here() -> dict[str, Any]:
    return {"node_ip_address": "127.0.0.1", "object_store_memory": 2**27}


def same(out: Path, expected: Path) -> bool:
    return rows(out) == rows(expected) and memory_rows(out / "memory.db") == memory_rows(expected / "memory.db")


class Watching:
    """Counts forward passes, and acts once when so many were done."""

    def __init__(self, at: int = 0, act: Callable[[], None] | None = None) -> None:
        self.total, self.done, self.at, self.act = 0, 0, at, act

    @contextmanager
    def __call__(self, _what: str, total: int) -> Iterator[Progress]:
        self.total = total
        yield self.advance

    def advance(self, passes: int) -> None:
        self.done += passes
        if self.act is not None and self.done >= self.at:
            act, self.act = self.act, None
            act()


def take_head() -> Callable[[], None]:
    """Take the one core of the head, as somebody else's work would; returns what gives it back."""
    from ray.util import placement_group, remove_placement_group

    taken = placement_group([{"CPU": 1, "node:__internal_head__": 0.001}])
    assert taken.wait(60)
    return lambda: remove_placement_group(taken)


def test_two_nodes_and_a_node_that_is_killed(
    cluster: Any, request_and_run: tuple[CertificationSpec, Path], tmp_path: Path
) -> None:
    spec, expected = request_and_run
    node = cluster.add_node(num_cpus=1, **here())
    notes: list[str] = []
    with RayEngine(address=cluster.address, on_note=notes.append) as engine:
        assert engine.workers() == 2
        watching = Watching()
        certify(spec, tmp_path / "two", track=watching, engine=engine)
        assert same(tmp_path / "two", expected)
        assert watching.done == watching.total
        assert not any("lost" in note for note in notes)
        give_back = take_head()  # so the node that is killed has work for sure

        def kill() -> None:
            cluster.remove_node(node, allow_graceful=False)
            give_back()

        certify(spec, tmp_path / "killed", track=Watching(watching.total // 2, kill), engine=engine)
        assert any("lost a worker" in note for note in notes)
        assert same(tmp_path / "killed", expected)


def test_a_driver_that_is_killed_and_resumed(
    cluster: Any, request_and_run: tuple[CertificationSpec, Path], tmp_path: Path
) -> None:
    spec, expected = request_and_run
    (tmp_path / "request.json").write_text(spec.to_json())
    out, table = tmp_path / "run", tmp_path / "run" / "certificates.tsv"
    options = ["--spec", tmp_path / "request.json", "--engine", "ray", "--address", cluster.address, "--out", out]
    command = [sys.executable, "-m", "sigmax", "certify", *map(str, options)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    driver = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    while driver.poll() is None and not (table.exists() and table.read_bytes().count(b"\n") > 20):
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    said, _ = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, said
    assert 20 <= len(rows(out)) - 1 < INPUTS
    with RayEngine(address=cluster.address, workers=1) as engine:
        certify(spec, out, track=quietly, engine=engine, resume=True)
    assert same(out, expected)


def test_an_experiment_certifies_on_the_cluster(cluster: Any, run: Run, tmp_path: Path) -> None:
    toml = tmp_path / "small.toml"
    toml.write_text(
        """
report = {title = "On a cluster", paper = "cifar10"}
data = {name = "digits", skip = 60, max = 5}
sampling = {n0 = 20, n = 200}
networks.cohen = {sigma = 0.25, epochs = 1}
certify = [{networks = ["cohen"], search = "halving"}]
"""
    )
    on_cluster = ("--engine", "ray", "--address", cluster.address, "--workers", 1)
    for name, engine in (("local", ()), ("ray", on_cluster)):
        code, _, err = run("reproduce", toml, "--out", tmp_path / name, "--yes", *engine)
        assert code == 0, err
    (expected,) = (tmp_path / "local" / "runs").iterdir()
    assert len(rows(expected)) > 2
    assert same(tmp_path / "ray" / "runs" / expected.name, expected)


def test_errors_of_workers_are_one_line_with_their_node(cluster: Any, tmp_path: Path) -> None:
    work = prepare(toy_spec(tmp_path, inputs=20, n=100, search=FixedSigma(0.25)))
    assert work.spec.found is not None
    other = replace(work, spec=replace(work.spec, found=replace(work.spec.found, fingerprint="another")))
    with (
        RayEngine(address=cluster.address, workers=1) as engine,
        pytest.raises(EngineError, match=r"^node \S+: expected [^\n]*fingerprint[^\n]*$"),
    ):
        list(engine.certify(other, split_blocks(work), lambda _: None))


def test_another_version_on_a_node_is_refused(tmp_path: Path) -> None:
    certify(toy_spec(tmp_path), tmp_path / "run", track=quietly)
    request = read_spec(tmp_path / "run" / "config.json").to_json()
    with pytest.raises(EngineError, match=r"^node \S+: expected sigmax 9\.9"):
        Worker().load(request, replace(Surroundings.here(), version="9.9"))


def test_a_cluster_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="workers=0"):
        RayEngine(workers=0)
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1, got: .*refused.*ray start"):
        RayEngine(address="127.0.0.1:1").workers()
