"""The ASGI application: API keys, the limit of concurrent requests, errors, log and metrics."""

import asyncio
import hmac
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from mp_core.serving.cors import Origins
from mp_core.serving.errors import RefusedError, error_response
from mp_core.serving.flight import Share
from mp_core.serving.limits import Limits
from mp_core.serving.logs import Log
from mp_core.serving.models import KINDS, Served
from mp_core.serving.routes import ROUTES
from mp_core.serving.service import RequestLog, Service

__all__ = ["Front", "create_app"]

_OPEN = ("/health", "/ready")
"""The paths that need no key, for health checks of orchestrators."""

_MODELS = "/v1/models"

_PORTION = 1 << 16
"""Bytes of an answer that are written at once: with a slow client, the server buffers no more than that."""

_GONE = 499
"""The status in log and metrics if the client closed the connection, as in nginx. It is never sent."""


def create_app(
    models: Sequence[Served],
    *,
    limits: Limits | None = None,
    keys: Collection[str] = (),
    log: Log | None = None,
    origins: Origins | None = None,
) -> "Front":
    """Return the ASGI application for models with different names.

    `keys` are the API keys: a request needs one of them, as ``Authorization: Bearer KEY``; default: no key is needed.
    `origins` are the web pages that may send requests; default: no pages of other origins.
    """
    service = Service(models, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await service.close()

    paths = [Route(path, _endpoint(service, path), methods=["POST"]) for path in ROUTES]
    paths += [Route(path, partial(answer, service)) for path, answer in _GET.items()]
    router = Router(paths, redirect_slashes=False, default=_not_found, lifespan=lifespan)
    return Front(service, router, keys, log or Log(), origins or Origins())


def _endpoint(service: Service, path: str) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        return await service.respond(ROUTES[path], request.scope["mp_core.record"], request)

    return answer


class Front:
    """Admits requests, converts errors to answers, and logs and counts each request."""

    def __init__(self, service: Service, app: Router, keys: Collection[str], log: Log, origins: Origins) -> None:
        self._service, self._app, self._log, self._origins = service, app, log, origins
        self._keys = [key.encode() for key in keys]
        self._paths = {route.path for route in app.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._service.flight.share() as share:
            await self._answer(scope, share, receive, send)

    def finish(self) -> None:
        """Answer the received requests in order of arrival: the server is going to stop."""
        for queue in self._service.queues:
            queue.finish()

    @property
    def busy(self) -> bool:
        """Whether a thread is still working on requests whose clients have gone."""
        return self._service.busy

    async def _answer(self, scope: Scope, share: Share, receive: Receive, send: Send) -> None:
        start, record, sent, whole = time.perf_counter(), RequestLog(), 0, False
        address = _ADDRESS.match(scope.get("raw_path", b""))
        scope, headers = _in_origin_form(scope, address), Headers(scope=scope)

        async def receiving() -> Message:
            nonlocal whole
            message = await receive()
            share.add(len(message.get("body", b"")))
            if message["type"] == "http.request" and not (whole or message.get("more_body", False)):
                self._check_room()
                whole = True
                self._service.whole += 1
            return message

        async def sending(message: Message) -> None:
            nonlocal sent
            sent = message.get("status", sent)
            if message["type"] == "http.response.start":
                added = self._origins.headers(headers.get("origin"))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            for portion in _portions(message):
                await send(portion)

        # With "app" in the scope, Starlette raises its errors about paths and methods instead of answering them.
        inner = {**scope, "app": self, "mp_core.record": record, "mp_core.share": share}
        self._service.in_flight += 1
        try:
            _check_address(address)
            _check_framing(headers)
            preflight = self._origins.preflight(scope["method"], headers)
            if preflight is None:
                self._admit(scope["path"], headers)
            await (preflight or self._app)(inner, receiving, sending)
        except ClientDisconnect:
            sent = _GONE
        except (Exception, asyncio.CancelledError) as error:
            refusal = self._refusal(error)
            record.error = refusal.message[:200]
            if not sent:
                await error_response(scope["path"], refusal)(scope, receive, sending)
            error.__traceback__ = None  # breaks a reference cycle that would keep the body until a garbage collection
        finally:
            self._service.in_flight -= 1
            self._service.whole -= whole
            self._report(scope, record, sent, time.perf_counter() - start)

    def _admit(self, path: str, headers: Headers) -> None:
        """Raise RefusedError if a request has no valid key, or too many requests are in progress."""
        if path in _OPEN:
            return
        if self._keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            known = [hmac.compare_digest(key.strip().encode(), each) for each in self._keys]
            if scheme.lower() != "bearer" or not any(known):
                raise RefusedError("key", "a key is needed: Authorization: Bearer KEY", headers=_CHALLENGE)
        if path in ROUTES:
            self._check_room()

    def _check_room(self) -> None:
        """Raise RefusedError if too many requests are in progress; a request counts once its body is complete."""
        if self._service.whole >= self._service.limits.requests:
            retry = {"Retry-After": str(self._service.batcher.retry_after())}
            most = f"at most {self._service.limits.requests} requests are answered at once"
            raise RefusedError("busy", f"the server is busy: {most}", headers=retry)

    def _refusal(self, error: BaseException) -> RefusedError:
        """Return the error for the client; log unexpected errors."""
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, HTTPException):  # Starlette raises it only for a wrong method: see `_not_found`
            allowed = (error.headers or {}).get("Allow", "other methods")
            return RefusedError("method", f"this path takes {allowed}", headers=error.headers)
        if isinstance(error, asyncio.CancelledError):
            return RefusedError("stopping", "the server stopped before it could answer", headers={"Retry-After": "5"})
        self._log.exception("the request failed", error)
        return RefusedError("failed", "the server failed; its log says why")

    def _report(self, scope: Scope, record: RequestLog, status: int, seconds: float) -> None:
        """Add a request to the metrics and the log."""
        path = scope["path"]
        route = _MODELS if path.startswith(f"{_MODELS}/") else path if path in self._paths else "other"
        self._service.metrics.requests.add(1, route, str(status))
        self._service.metrics.latency.add(seconds, route)
        if path in _OPEN or path == "/metrics" or (self._log.quiet and status < 500):
            return
        level = "error" if status >= 500 and status != 503 else "info"
        client = scope["client"][0] if scope.get("client") else None
        fields = {"status": status, "ms": round(seconds * 1e3, 3), **asdict(record), "client": client}
        gone = ", whose client went away" if status == _GONE else ""
        self._log.write(level, f"{scope['method']} {quote(path[:200], safe=_PLAIN)}{gone}", **fields)


_ADDRESS = re.compile(rb"https?://(?P<host>[^/]*)(?P<path>.*)", re.IGNORECASE)


def _in_origin_form(scope: Scope, address: re.Match[bytes] | None) -> Scope:
    """Replace a target in absolute form, as proxies send it, by its path (RFC 9112, 3.2.2)."""
    return scope if address is None else {**scope, "path": unquote(address["path"].decode()) or "/"}


def _check_address(address: re.Match[bytes] | None) -> None:
    """Raise RefusedError if a target in absolute form has no host, or has a user (RFC 9110, 4.2)."""
    if address is not None and (not address["host"] or b"@" in address["host"]):
        raise RefusedError("malformed", "an address must be http://HOST/PATH, with a host and without a user name")


def _check_framing(headers: Headers) -> None:
    """Raise RefusedError if a body has two lengths: a proxy might use the other one (RFC 9112, 6.1)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        both = "a request must have Content-Length or Transfer-Encoding; received both"
        raise RefusedError("malformed", both, headers={"Connection": "close"})


_PLAIN = "/:@!$&'()*+,;~"
"""Characters of a path that are not quoted in the log, besides letters, digits and ``_.-``."""


def _portions(message: Message) -> Iterator[Message]:
    """Split a message with a long body into portions: the server waits for buffer space before each."""
    body = memoryview(message.get("body", b""))
    if len(body) <= _PORTION:
        yield message
        return
    for start in range(0, len(body), _PORTION):
        yield {**message, "body": bytes(body[start : start + _PORTION]), "more_body": True}
    yield {**message, "body": b""}


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise RefusedError("path", f"there is nothing at {scope['path'][:200]}")


# ---- GET


async def _health(service: Service, request: Request) -> Response:
    """Report whether the server can compute; otherwise a supervisor should restart it."""
    good = all(queue.running for queue in service.queues) and all(served.is_whole for served in service.models)
    return JSONResponse({"status": "ok" if good else "failed"}, 200 if good else 503)


async def _ready(service: Service, request: Request) -> Response:
    """Report whether the server accepts requests."""
    service.batcher.check()
    return JSONResponse({"status": "ok"})


async def _metrics(service: Service, request: Request) -> Response:
    return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _info(service: Service, request: Request) -> Response:
    return JSONResponse(service.described())


def _listed(served: Served) -> dict[str, object]:
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "mp_core"} | served.describe()


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_listed(served) for served in service.models]})


async def _model(service: Service, request: Request) -> Response:
    name = request.path_params["name"]
    return JSONResponse(_listed(service.find(name, KINDS)))


_GET = {
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/info": _info,
    _MODELS: _models,
    f"{_MODELS}/{{name:path}}": _model,
}
"""Path -> the function that answers GET requests."""
