"""What deploy/compose.yaml starts, without Docker: replicas of the service behind nginx, on this machine only."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final
from urllib.request import urlopen

NGINX_CONF = Path(__file__).parents[1] / "deploy" / "nginx.conf"
_PATIENCE = 300.0  # seconds that a start may take on a busy machine


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def wait_until_ready(port: int, check: Callable[[], None] = lambda: None) -> None:
    """Wait until a service takes questions; `check` is called meanwhile."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        check()
        try:
            with urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@final
class Replica:
    """One `sigmax serve` in a process of its own; its log goes to a file.

    Args:
        options: Of the command, with the model first.
        log: Where its log goes.
        port: Where it listens.
    """

    def __init__(self, options: Sequence[str], log: Path, port: int) -> None:
        self.port = port
        self._command = [sys.executable, "-m", "sigmax", "serve", *options, "--port", str(port)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; `wait_until_ready` says when it answers."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log, stdout=log, env=environment)

    def wait(self) -> None:
        """Wait until it takes questions."""
        wait_until_ready(self.port, self._check_alive)

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"expected a replica that runs, got: {self._log.read_text()[-500:]}")

    def kill(self) -> None:
        """As a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As an operator does: it finishes what it has accepted. Return its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait()
        self._process = None
        return code

    def events(self) -> list[dict[str, object]]:
        """Its log."""
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]


@contextmanager
def behind_nginx(ports: Sequence[int], folder: Path) -> Iterator[int]:
    """Start nginx with the configuration of `deploy/` in front of these ports; give its own port."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    port, text = free_port(), NGINX_CONF.read_text()
    for number, replica in enumerate(ports, start=1):
        text = text.replace(f"replica-{number}:8000", f"127.0.0.1:{replica}")
    text = text.replace("listen 8080;", f"listen 127.0.0.1:{port};").replace("/tmp/nginx", f"{folder}/nginx")
    (folder / "nginx.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker could not write to the folder
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", f"daemon off; {user}"]
    with (folder / "nginx.log").open("ab") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def replicas(options: Sequence[str], folder: Path, count: int = 2) -> Iterator[list[Replica]]:
    """Start so many replicas, and stop them in the end."""
    found = [Replica(options, folder / f"replica-{i + 1}.log", free_port()) for i in range(count)]
    try:
        for replica in found:
            replica.start()
        for replica in found:
            replica.wait()
        yield found
    finally:
        enders = [threading.Thread(target=replica.stop) for replica in found]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()


def nginx_is_installed() -> bool:
    """Whether nginx can be started."""
    return bool(shutil.which("nginx") or os.access("/usr/sbin/nginx", os.X_OK))
