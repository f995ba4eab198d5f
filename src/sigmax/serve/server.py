"""The HTTP server: uvicorn, with limits on what a client may take before its request is complete."""

import asyncio
import signal
import socket
import sys
from typing import Any, final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sigmax.serve.meters import LOG

_HEAD_BYTES = 32 * 2**10  # of a request line and headers
_HEAD_SECONDS = 10.0  # to send them in
_CONNECTIONS = 1_024  # at a time
# Longer than a proxy keeps an idle connection, so that it is always the proxy that closes one.
_IDLE_SECONDS = 75


@final
class GuardedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that hangs up on clients that send endless or endlessly slow headers."""

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Hang up where there are too many connections, or if no request comes."""
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.close()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._head_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the headers are complete."""
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        # A body may come in the same piece, but then the headers are complete.
        if self._head_timer is not None and self._head_bytes > _HEAD_BYTES:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The request may be answered."""
        self._head_complete()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_complete()
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._hang_up)

    def _head_complete(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def make_server(app: Any) -> uvicorn.Server:
    """The server of an application, to be run with a bound socket."""
    config = uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
    )
    return uvicorn.Server(config)


def serve(app: Any, *, host: str, port: int) -> None:
    """Serve until a signal comes; then take nothing new, and finish what was accepted."""
    sys.setswitchinterval(0.001)  # a lookup must not wait long for the thread that samples
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as bound:
        name, number, *_ = bound.getsockname()
        address = f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
        LOG.info("serving", extra={"fields": {"address": address}})
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore)  # uvicorn raises the signal again after it has ended as asked
        make_server(app).run(sockets=[bound])
    LOG.info("stopped")


def _ignore(_number: int, _frame: object) -> None:
    pass
