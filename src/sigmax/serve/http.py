"""The service over HTTP: the Open Inference Protocol, one image by `curl`, a page, and metrics."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, final

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sigmax import __version__
from sigmax.certificate import PointCertificate
from sigmax.errors import InvalidInputError, SigmaxError, one_line
from sigmax.serve.answer import Answer, Question
from sigmax.serve.desk import DeskClosedError, DeskFullError
from sigmax.serve.images import decode_image
from sigmax.serve.meters import LOG, Meters
from sigmax.serve.openapi import ERRORS, IMAGE_BODY, INFER_BODY
from sigmax.serve.page import render_page
from sigmax.serve.protocol import EXTENSIONS, HEADER, VERSION, check_parameters, decode_request, encode_reply
from sigmax.serve.protocol import model_metadata as metadata_of
from sigmax.serve.service import Service, answer_fields, proved_fields
from sigmax.serve.tokens import Role

_QUIET_SECONDS = 5.0  # after which a stream says that it still lives
_PAUSE_SECONDS = 0.05  # between two messages of a stream
_CLOSE = {"connection": "close"}  # for replies that do not wait for the rest of a body


class _RefusedError(Exception):
    """A reply that ends a request."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def create_app(service: Service) -> FastAPI:
    """The application; it closes the desk and the memory when it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="sigmax",
        version=__version__,
        summary="A certified classifier that never contradicts itself.",
        lifespan=lifespan,
        docs_url=None,  # its page would be fetched from the network
        redoc_url=None,
    )
    meters = Meters(service.desk, service.memory)
    _Routes(service, meters).add_to(app)
    app.add_middleware(_Journal, meters=meters)
    app.add_exception_handler(Exception, _on_error)
    for kind in (SigmaxError, _RefusedError, HTTPException, RequestValidationError, ClientDisconnect):
        app.add_exception_handler(kind, _on_error)
    return app


@final
class _Routes:
    """The routes of the application."""

    def __init__(self, service: Service, meters: Meters) -> None:
        self.service = service
        self.meters = meters
        self.page, self.page_headers = render_page(needs_token=bool(service.tokens))
        self.streams: dict[str, Question] = {}

    def add_to(self, app: FastAPI) -> None:
        """Add all routes."""
        app.get("/", include_in_schema=False)(self.show_page)
        app.get("/about", responses=ERRORS)(self.about)
        app.post("/ask", responses=ERRORS, openapi_extra=IMAGE_BODY)(self.ask)
        app.post("/ask/{question}/stop", responses=ERRORS)(self.stop)
        app.get("/metrics", responses=ERRORS)(self.metrics)
        app.get("/v2/health/live")(self.live)
        app.get("/v2/health/ready", responses=ERRORS)(self.ready)
        app.get("/v2", responses=ERRORS)(self.server)
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            app.get(path, responses=ERRORS)(self.model)
            app.get(f"{path}/ready", responses=ERRORS)(self.model_ready)
            app.post(f"{path}/infer", responses=ERRORS, openapi_extra=INFER_BODY)(self.infer)

    async def show_page(self) -> Response:
        """The page to drop an image on."""
        return Response(self.page, media_type="text/html", headers=self.page_headers)

    async def about(self, request: Request) -> Response:
        """What the page shows of the service."""
        self._allow(request, self.service.role)
        return JSONResponse(self.service.about())

    async def metrics(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        self._allow(request, Role.ADMINISTER)
        return Response(generate_latest(self.meters.registry), media_type=CONTENT_TYPE_LATEST)

    async def live(self) -> Response:
        """Whether the process answers at all."""
        return JSONResponse({"live": True})

    async def ready(self) -> Response:
        """Whether questions are taken."""
        if self.service.desk.is_closing:
            raise _RefusedError(503, "expected a service that takes questions, got one that shuts down")
        return JSONResponse({"ready": True})

    async def server(self, request: Request) -> Response:
        """Name and version of the server."""
        self._allow(request, self.service.role)
        return JSONResponse({"name": "sigmax", "version": __version__, "extensions": list(EXTENSIONS)})

    async def model(self, request: Request, name: str, version: str = VERSION) -> Response:
        """What the model takes and gives."""
        self._find(request, name, version)
        return JSONResponse(metadata_of(name, self.service.shape, self.service.outputs))

    async def model_ready(self, request: Request, name: str, version: str = VERSION) -> Response:
        """Whether this model answers."""
        self._find(request, name, version)
        return await self.ready()

    async def infer(self, request: Request, name: str, version: str = VERSION) -> Response:
        """Certify images: label, radius and more for each."""
        self._find(request, name, version)
        service, limits = self.service, self.service.limits
        body = await self._body(request)
        given = request.headers.get(HEADER)
        if given is not None and not (given.isascii() and given.isdecimal() and len(given) < 12):
            raise InvalidInputError(f"expected {HEADER} as a number, got {given[:40]!r}")
        asked = decode_request(
            body,
            header_length=None if given is None else int(given),
            shape=service.shape,
            outputs=service.outputs,
            most=min(limits.images, service.desk.most),
            decode_image=lambda content: decode_image(content, service.shape, service.preprocessing),
        )
        questions = service.questions(asked.images, n=asked.n, alpha=asked.alpha, deadline=asked.deadline)
        answers = await self._answers(request, questions)
        digest = service.memory.digest
        parameters = {} if digest is None else {"memory": digest}
        content, length = encode_reply(name, asked, answers, parameters)
        if length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})

    async def ask(
        self,
        request: Request,
        n: Annotated[int | None, Query(description="Samples at most.")] = None,
        alpha: Annotated[float | None, Query(description="Failure probability.")] = None,
        deadline: Annotated[float | None, Query(description="Seconds after which sampling stops.")] = None,
    ) -> Response:
        """Certify one image file. With `Accept: text/event-stream`, say what is proved while samples arrive."""
        self._allow(request, self.service.role)
        service = self.service
        n, alpha, deadline = check_parameters(n, alpha, deadline)
        image = decode_image(await self._body(request), service.shape, service.preprocessing)
        wants_stream = "text/event-stream" in request.headers.get("accept", "")
        news = _News() if wants_stream else None
        (question,) = service.questions(image[None], n=n, alpha=alpha, deadline=deadline, on_proved=news)
        if news is None:
            (answer,) = await self._answers(request, [question])
            return JSONResponse(answer_fields(answer, service.class_names))
        began = time.monotonic()
        (reply,) = service.desk.ask([question])
        stream = self._stream(question, asyncio.wrap_future(reply), news, began)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )

    async def stop(self, request: Request, question: str) -> Response:
        """End the sampling of a question; its stream ends with what has been proved so far."""
        self._allow(request, self.service.role)
        found = self.streams.get(question)
        if found is None:
            raise _RefusedError(404, "expected a question that is being sampled, got none with this name")
        found.is_stopped = True
        return JSONResponse({"stopped": True})

    async def _stream(
        self, question: Question, reply: "asyncio.Future[Answer]", news: "_News", began: float
    ) -> AsyncIterator[str]:
        """Server-sent events: first the name of the question, then what is proved, at last the answer."""
        name = secrets.token_hex(16)  # whoever knows it may stop the question
        self.streams[name] = question
        try:
            yield _event("question", {"id": name, "n": question.budget.n, "alpha": question.budget.alpha})
            while not reply.done():
                point = await news.next(reply)
                yield ": waiting\n\n" if point is None else _event("proved", proved_fields(point))
            try:
                answer = reply.result()
            except Exception as error:
                yield _event("error", {"error": _reply_to(error)[1]})
                return
            self.meters.count_answer(answer, time.monotonic() - began)
            nearest = await asyncio.to_thread(self.service.nearest, question.x)
            yield _event("answer", answer_fields(answer, self.service.class_names) | {"nearest": nearest})
        finally:
            self.streams.pop(name, None)
            reply.cancel()

    async def _answers(self, request: Request, questions: Sequence[Question]) -> list[Answer]:
        """The answers; questions of a client that hangs up are dropped."""
        began = time.monotonic()
        replies = asyncio.gather(*map(asyncio.wrap_future, self.service.desk.ask(questions)))
        replies.add_done_callback(_forget)
        leaving = asyncio.ensure_future(_hang_up(request))
        try:
            either: set[asyncio.Future[Any]] = {replies, leaving}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not replies.done():
                raise ClientDisconnect
            answers = replies.result()
        finally:
            leaving.cancel()
            replies.cancel()
        for answer in answers:
            self.meters.count_answer(answer, time.monotonic() - began)
        return list(answers)

    def _allow(self, request: Request, needed: Role) -> None:
        """Refuse a request whose token lacks the needed role."""
        role = self.service.tokens.role(request.headers.get("authorization"))
        if role is None:
            raise _RefusedError(
                401, "expected a bearer token, got none that is known", {"www-authenticate": "Bearer", **_CLOSE}
            )
        if role < needed:
            raise _RefusedError(
                403, f"expected a token with the role {needed.name.lower()}, got {role.name.lower()}", _CLOSE
            )

    def _find(self, request: Request, name: str, version: str) -> None:
        self._allow(request, self.service.role)
        if (name, version) != (self.service.name, VERSION):
            raise _RefusedError(404, f"expected model {self.service.name}, version {VERSION}, got another", _CLOSE)

    async def _body(self, request: Request) -> bytes:
        """The body, if it is neither too large nor too slow."""
        limits = self.service.limits
        if request.headers.get("content-encoding", "identity") != "identity":
            raise _RefusedError(415, "expected a body without content-encoding, got one with it", _CLOSE)
        too_large = _RefusedError(413, f"expected at most {limits.body_bytes} bytes, got more", _CLOSE)
        given = request.headers.get("content-length", "0")
        if not given.isdecimal() or int(given[:20]) > limits.body_bytes:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in request.stream():
                    parts.append(part)
                    size += len(part)
                    if size > limits.body_bytes:
                        raise too_large
        except TimeoutError:
            raise _RefusedError(
                408, f"expected the whole body within {limits.body_seconds:g} s, got a part", _CLOSE
            ) from None
        return b"".join(parts)


@final
class _News:
    """What is proved of one question, passed on from the desk's thread; only the newest is kept."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_new = asyncio.Event()
        self._point: PointCertificate | None = None

    def __call__(self, point: PointCertificate) -> None:
        """From any thread."""
        with suppress(RuntimeError):  # the service has ended
            self._loop.call_soon_threadsafe(self._take, point)

    def _take(self, point: PointCertificate) -> None:
        self._point = point
        self._is_new.set()

    async def next(self, reply: "asyncio.Future[Answer]") -> PointCertificate | None:
        """The newest news; None if nothing came for a while, or if the reply came."""
        await asyncio.sleep(_PAUSE_SECONDS)
        waiting = asyncio.ensure_future(self._is_new.wait())
        either: set[asyncio.Future[Any]] = {waiting, reply}
        await asyncio.wait(either, timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not self._is_new.is_set():
            return None
        self._is_new.clear()
        return self._point


@final
class _Journal:
    """One line in the log and one count for each request; never a token, an address or a pixel."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app = app
        self.meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note what became of it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 499  # as nginx says of a client that hung up

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.meters.count_request(route, status)
            fields = {"method": scope["method"], "route": route, "status": status}
            LOG.info("request", extra={"fields": fields | {"seconds": round(time.monotonic() - began, 6)}})


def _forget(replies: "asyncio.Future[list[Answer]]") -> None:
    """Look at an error that nobody waits for any more, else asyncio complains."""
    if not replies.cancelled():
        replies.exception()


async def _hang_up(request: Request) -> None:
    """Wait until the client hangs up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


def _reply_to(error: Exception) -> tuple[int, str, dict[str, str] | None]:
    """Status, message and headers for an error."""
    match error:
        case _RefusedError():
            return error.status, str(error), error.headers
        case DeskFullError():
            return 429, str(error), {"retry-after": str(error.seconds)}
        case DeskClosedError():
            return 503, str(error), _CLOSE
        case InvalidInputError():
            return 400, one_line(error), None
        case HTTPException():
            return error.status_code, str(error.detail), dict(error.headers or {})
        case RequestValidationError():
            wrong = [".".join(map(str, problem["loc"])) for problem in error.errors()[:3]]
            return 400, f"expected other values for {', '.join(wrong)}", _CLOSE
        case ClientDisconnect():
            return 400, "expected a whole request, got a part of one", _CLOSE
    LOG.error("failed", exc_info=error)
    if isinstance(error, SigmaxError):  # of the memory
        return 503, "expected a memory that answers, got an error; the log of the service says which", None
    return 500, "expected no error, got one; the log of the service says which", None


async def _on_error(_request: Request, error: Exception) -> Response:
    status, message, headers = _reply_to(error)
    return JSONResponse({"error": message}, status_code=status, headers=headers)
