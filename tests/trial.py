"""A service for tests: a classifier of small images with known radii, behind a real server on this machine."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from sigmax import CertificateMemory, SmoothedClassifier
from sigmax.budget import Budget
from sigmax.certificate import SettledCertificate
from sigmax.memory import FrozenMemory
from sigmax.serve.answer import Answerer
from sigmax.serve.desk import Desk
from sigmax.serve.http import create_app
from sigmax.serve.server import make_server
from sigmax.serve.service import Limits, Service
from sigmax.serve.tokens import Tokens

SHAPE = (1, 8, 8)
INFER = "/v2/models/bright/infer"


class Bright(nn.Module):
    """Class 1 where the mean of 64 pixels is above 0.5: a half-space, so that R is 8 |mean - 0.5| for every sigma."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        score = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([-score, score], dim=1)


def bright() -> nn.Module:
    """For the command line: `sigmax serve trial:bright`."""
    return Bright().eval()


def make_service(
    folder: Path,
    *,
    seconds: float = 0.0,
    tokens: str | None = None,
    most: int = 64,
    limits: Limits | None = None,
    is_frozen: bool = False,
) -> Service:
    """A service whose batches take so long, with a memory in this folder."""
    smoothed = SmoothedClassifier(
        Bright(seconds).eval(), num_classes=2, sigma=0.25, levels=255, batch_size=64, identity="bright"
    )
    kind = FrozenMemory if is_frozen else CertificateMemory
    memory = kind.open(folder / "memory.db", norm=2, fingerprint=smoothed.fingerprint)
    return Service(
        name="bright",
        shape=SHAPE,
        class_names=("dark", "bright"),
        desk=Desk(Answerer(smoothed, Budget(n=500), memory), most=most),
        memory=memory,
        tokens=Tokens.parse(tokens) if tokens else Tokens({}),
        limits=limits or Limits(n=100_000, body_bytes=2**20, body_seconds=2.0),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """A service at its address."""

    service: Service
    host: str
    port: int
    client: httpx.Client

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def stored(self, images: NDArray[np.float32]) -> list[SettledCertificate]:
        """What the live memory holds of these images (batch, …)."""
        assert isinstance(self.service.memory, CertificateMemory)
        return [answer for answer in self.service.memory.recall_many(images) if answer is not None]


@contextmanager
def serving(service: Service) -> Iterator[Served]:
    """Serve from a thread of this process; leaving it is a graceful shutdown."""
    server = make_server(create_app(service))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        host, port = bound.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server started"
                time.sleep(0.01)
            with httpx.Client(base_url=f"http://{host}:{port}", timeout=60) as client:
                yield Served(service, host, port, client)
        finally:
            server.should_exit = True
            thread.join()


def image(level: float, seed: int = 0) -> NDArray[np.float32]:
    """An image of 8-bit pixels around this level."""
    noise = np.random.default_rng(seed).integers(-20, 21, SHAPE)
    pixels: NDArray[np.float32] = (np.rint(255 * level) + noise).clip(0, 255).astype(np.float32) / np.float32(255)
    return pixels


def png(pixels: NDArray[np.float32]) -> bytes:
    """The file of an image."""
    file = BytesIO()
    Image.fromarray(np.rint(255 * pixels[0]).astype(np.uint8)).save(file, format="PNG")
    return file.getvalue()


def true_radius(pixels: NDArray[np.float32]) -> float:
    """What can be certified at most."""
    return 8 * abs(float(pixels.mean()) - 0.5)
