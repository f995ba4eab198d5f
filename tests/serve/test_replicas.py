"""The deployment of deploy/, followed by hand: two replicas with one memory behind nginx, from Debian's packages."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from replicas import NGINX_CONF, behind_nginx, nginx_is_installed, replicas, wait_until_ready
from servers import missing, postgres_server
from sigmax import CertificateMemory
from sigmax.cli import app
from trial import image, png

COMPOSE = NGINX_CONF.with_name("compose.yaml")


@pytest.fixture(scope="module")
def memory_url() -> Iterator[str]:
    with postgres_server() as server:
        yield server.database()


@contextmanager
def asking(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=120) as client:
        yield client


def test_the_compose_file_starts_what_the_configuration_names() -> None:
    """Without a Docker engine: names, ports and options fit each other."""
    import typer

    compose = yaml.safe_load(COMPOSE.read_text())
    servers = set(re.findall(r"server ([\w-]+):8000", NGINX_CONF.read_text()))
    assert servers == {name for name in compose["services"] if name.startswith("replica")}
    port = re.findall(r"listen (\d+);", NGINX_CONF.read_text())[0]
    assert compose["services"]["proxy"]["ports"] == [f"8000:{port}"]
    dockerfile = (COMPOSE.parent / "Dockerfile").read_text()
    entry = re.findall(r'ENTRYPOINT \["sigmax", "serve", (.*)\]', dockerfile)[0].replace('"', "").split(", ")
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    for name in servers:
        service = compose["services"][name]
        words = [*entry, *service["command"].split()]
        with command.make_context("serve", words) as context:
            assert context.params["host"] == "0.0.0.0"
            assert context.params["memory"].startswith("postgresql://sigmax@memory/")
        assert {"PGPASSWORD", "SIGMAX_TOKENS"} <= set(service["environment"])
    ignored = (COMPOSE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored  # no password gets into an image
    assert "!deploy" not in ignored


def test_two_replicas_behind_nginx_are_one_service(memory_url: str, tmp_path: Path) -> None:
    """Both give the same answers, a death goes unnoticed, and nothing is answered twice differently."""
    if not nginx_is_installed():
        missing("nginx")
    options = ["trial:bright", "--memory", memory_url, "--classes", "2", "--sigma", "0.25", "--shape", "1,8,8"]
    with (
        replicas([*options, "--name", "bright", "--batch", "64", "--n", "200"], tmp_path) as found,
        behind_nginx([replica.port for replica in found], tmp_path) as port,
        asking(f"http://127.0.0.1:{port}") as client,
    ):
        wait_until_ready(port)
        images = [png(image(level, seed=3)) for level in np.linspace(0.1, 0.9, 9)]
        answers = [client.post("/ask", content=content).json() for content in images]
        for replica in found:
            with asking(f"http://127.0.0.1:{replica.port}") as direct:
                again = [direct.post("/ask", content=content).json() for content in images]
                for first, second in zip(answers, again, strict=True):
                    if first["label"] is not None:
                        assert second == first | {"recalled": True}
        found[0].kill()
        for content, first in zip(images, answers, strict=True):
            second = client.post("/ask", content=content)
            assert second.status_code == 200
            assert first["label"] is None or second.json()["radius"] == first["radius"]
        # A long question is under way while its replica is asked to end: it is finished first.
        late: list[httpx.Response] = []
        asker = threading.Thread(
            target=lambda: late.append(client.post("/ask", params={"n": 5_000}, content=png(image(0.65, seed=8))))
        )
        asker.start()
        with asking(f"http://127.0.0.1:{found[1].port}") as direct:
            while "questions 1.0" not in direct.get("/metrics").text and not late:
                time.sleep(0.01)
        assert found[1].stop() == 0
        asker.join()
        assert late[0].json()["n"] == 5_000
        assert client.get("/metrics").status_code == 404  # not for everybody
    with CertificateMemory.existing(memory_url) as memory:
        assert not list(memory.contradictions())
        stored = {entry.answer.radius for entry in memory.entries()}
        assert {answer["radius"] for answer in answers if answer["label"] is not None} <= stored
