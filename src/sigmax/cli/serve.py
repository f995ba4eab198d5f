"""`sigmax serve`."""

import os
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from sigmax.cli.certify import RequestOptions, make_spec
from sigmax.cli.groups import command
from sigmax.cli.options import ModelOptions, SamplingOptions, SearchOptions
from sigmax.errors import InvalidInputError

if TYPE_CHECKING:
    from sigmax.serve.service import Service
    from sigmax.serve.tokens import Tokens

_TOKENS = "SIGMAX_TOKENS"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is served, to whom, and how much of it."""

    memory: str
    frozen: bool = False
    name: str | None = None
    shape: str | None = None
    n: int = 10_000
    n0: int = 100
    alpha: float = 0.001
    max_n: int = 100_000
    max_body: int = 16
    queue: int = 256
    tokens: Path | None = None


@command
def serve(
    model: ModelOptions, search: SearchOptions, options: ServeOptions, host: str = "127.0.0.1", port: int = 8_000
) -> None:
    """Serve a certified classifier over HTTP, with a page at `/`. Its answers never contradict each other.

    Example: `sigmax serve sigmax-demo --memory answers.db --per-input`
    """
    if not 0 <= port < 2**16:
        raise InvalidInputError(f"expected --port from 0 to {2**16 - 1}, got port={port}")
    tokens = _read_tokens(options.tokens)
    if not tokens and not _is_loopback(host):
        raise InvalidInputError(
            f"expected tokens for a service that others can reach, got none for --host {host}; "
            f"give --tokens FILE or ${_TOKENS}"
        )
    try:
        from sigmax.serve.http import create_app
        from sigmax.serve.meters import log_as_json
        from sigmax.serve.server import serve as run
    except ImportError as error:
        raise InvalidInputError(
            f"expected the service's packages, got: {error}; pip install 'sigmax[serve]'"
        ) from error
    log_as_json()
    with make_service(model, search, options, tokens) as service:
        run(create_app(service), host=host, port=port)


def make_service(model: ModelOptions, search: SearchOptions, options: ServeOptions, tokens: "Tokens") -> "Service":
    """The service that the options ask for."""
    from sigmax.data.preprocessing import Preprocessing
    from sigmax.engine.prepare import smooth
    from sigmax.memory import CertificateMemory, FrozenMemory
    from sigmax.serve.answer import Answerer
    from sigmax.serve.desk import Desk
    from sigmax.serve.service import Limits, Service

    sampling = SamplingOptions(n0=options.n0, alpha=options.alpha)
    if options.frozen and search.sigma is None:
        with FrozenMemory.existing(options.memory) as frozen:
            search = replace(search, sigma=frozen.sigma)
    request = RequestOptions(n=options.n, memory=options.memory, frozen=options.frozen)
    spec, loaded = make_spec(model, search, sampling, request)
    shape = _parse_shape(options.shape) or loaded.input_shape
    if shape is None:
        raise InvalidInputError("expected --shape for a model that does not say its input shape, such as 3,32,32")
    if options.n > options.max_n:
        raise InvalidInputError(f"expected --n <= --max-n, got n={options.n}, max_n={options.max_n}")
    smoothed, _, _ = smooth(spec, spec.model.classifier(loaded), shape, levels=255)
    kind = FrozenMemory if options.frozen else CertificateMemory
    memory = kind.open(options.memory, norm=smoothed.noise.norm, fingerprint=smoothed.fingerprint)
    return Service(
        name=options.name or spec.model.short_name,
        shape=shape,
        preprocessing=Preprocessing.parse(model.preprocess or loaded.preprocess or "none"),
        class_names=loaded.card.class_names if loaded.card else (),
        desk=Desk(Answerer(smoothed, spec.budget, memory), most=options.queue),
        memory=memory,
        tokens=tokens,
        limits=Limits(n=options.max_n, body_bytes=options.max_body * 2**20),
    )


def _read_tokens(file: Path | None) -> "Tokens":
    from sigmax.serve.tokens import Tokens

    try:
        text = file.read_text() if file is not None else os.environ.get(_TOKENS)
    except UnicodeDecodeError:
        raise InvalidInputError(f"expected a text file for --tokens, got {file}, which is none") from None
    return Tokens({}) if text is None else Tokens.parse(text)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        shape = tuple(int(side) for side in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise InvalidInputError(f"expected --shape like 3,32,32, got {text!r}")
    return shape
