"""The engine of a Ray cluster: workers load the model once and take blocks, on as many nodes as there are.

A lost worker's block goes on elsewhere, after its last certificate that arrived. Certificates are given in the order of
the inputs, so table and memory do not depend on who was faster.
"""

import os
import socket
from collections.abc import Generator, Sequence
from typing import Any, final

import torch

from sigmax.engine.backlog import Backlog
from sigmax.engine.base import Engine
from sigmax.engine.blocks import Block
from sigmax.engine.crew import Crew, Note
from sigmax.engine.prepare import Prepared
from sigmax.errors import EngineError, InvalidInputError, one_line
from sigmax.runs.points import Certified
from sigmax.sampling import Progress

_AHEAD = 4  # blocks per worker from the first unfinished one on
_CONNECT = 10.0  # seconds to wait for a cluster to answer
_STORE = 2**27  # bytes for objects in a cluster of our own: certificates are small


@final
class RayEngine(Engine):
    """Certifies on a Ray cluster.

    A worker has as many threads as torch has here, because the last bits of a sum may depend on their number. It takes
    as many cores of its node. On an accelerator it has one device.

    Args:
        address: The cluster, such as "auto" or "host:6379"; None: a new one on this machine, without a dashboard.
        workers: Number of workers; None: as many as the cluster has room for.
        on_note: Told about events such as lost workers.
    """

    def __init__(self, *, address: str | None = None, workers: int | None = None, on_note: Note | None = None) -> None:
        if workers is not None and workers < 1:
            raise InvalidInputError(f"expected --workers >= 1, got workers={workers}")
        self._address, self._workers, self._on_note = address, workers, on_note or (lambda _: None)
        self._ray: Any = None  # once connected
        self._is_ours = False  # the connection

    def workers(self) -> int:
        """How many blocks run at a time, if nobody else uses the cluster."""
        return self._workers or max(1, self._room(is_accelerated=torch.accelerator.is_available()))

    def certify(self, work: Prepared, blocks: Sequence[Block], advance: Progress) -> Generator[Certified, None, None]:
        """Certificates as they arrive, in the order of the inputs."""
        found = work.spec.found
        assert found is not None, "the request is resolved"
        if not blocks:
            return
        is_accelerated, ray = found.device != "cpu", self._connect()
        count = self._workers or self._room(is_accelerated=is_accelerated)
        if not count:
            needed = "a GPU" if is_accelerated else f"{torch.get_num_threads()} cores, one for each thread"
            raise EngineError(
                f"expected a cluster whose nodes have {needed}, got {ray.cluster_resources()}; "
                "add a node, or set OMP_NUM_THREADS=1 for workers with one thread"
            )
        backlog = Backlog(blocks, ahead=_AHEAD * count)
        crew = Crew(ray, work.spec, backlog, is_accelerated=is_accelerated, on_note=self._on_note)
        try:
            crew.hire(min(count, len(blocks)))
            while not backlog.is_done:
                crew.work(advance)
                yield from backlog.in_order()
        finally:
            crew.dismiss()

    def close(self) -> None:
        """Leave the cluster, and end it if this engine started it."""
        if self._is_ours:
            self._ray.shutdown()
        self._ray, self._is_ours = None, False

    def _room(self, *, is_accelerated: bool) -> int:
        """How many workers the nodes have devices for."""
        nodes = [node["Resources"] for node in self._connect().nodes() if node["Alive"]]
        if is_accelerated:
            return sum(int(node.get("GPU", 0)) for node in nodes)
        return sum(int(node.get("CPU", 0)) // torch.get_num_threads() for node in nodes)

    def _connect(self) -> Any:
        """Ray, connected to the cluster; a connection that this process has already is used."""
        if self._ray is None:
            ray = _import_ray()
            if not ray.is_initialized():
                self._init(ray)
                self._is_ours = True
            self._ray = ray
        return self._ray

    def _init(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if self._address is not None:
                _check_reachable(self._address)
                ray.init(address=self._address, **quiet)
                return
            ray.init(
                address="local",
                num_cpus=max(os.cpu_count() or 1, (self._workers or 1) * torch.get_num_threads()),
                include_dashboard=False,
                object_store_memory=_STORE,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineError(
                f"expected a Ray cluster at {self._address or 'this machine'}, got: {one_line(error)}; "
                "start one by ray start --head"
            ) from error


def _check_reachable(address: str) -> None:
    """Refuse HOST:PORT where nobody listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()


def _import_ray() -> Any:
    """Ray, which reports its use to nobody."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Workers are told their device, so Ray need not hide accelerators, and need not warn that it soon will not.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Else the workers of a cluster of our own get the lowest priority, and starve beside other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise EngineError("expected Ray for --engine ray, got none; pip install 'sigmax[ray]'") from error
    return ray
