"""The application: who may ask, how many at once, and what is said of each request in log and metrics."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mp_core.serving.errors import RefusedError, error_response
from mp_core.serving.limits import Limits
from mp_core.serving.logs import Log
from mp_core.serving.models import Served
from mp_core.serving.routes import ROUTES
from mp_core.serving.service import Record, Service

__all__ = ["create_app"]

_OPEN = ("/health", "/ready")
"""The paths that need no key: those that orchestrators ask."""

_MODELS = "/v1/models"

_GONE = 499
"""The status, in log and metrics only, of a request whose client went away; nginx has it too."""


def create_app(
    models: Sequence[Served], *, limits: Limits | None = None, keys: Collection[str] = (), log: Log | None = None
) -> ASGIApp:
    """Return the application for a server of ASGI.

    Parameters
    ----------
    models : sequence of Served
        At least one, each with another name.
    limits : Limits, optional
    keys : collection of str
        Of which a request must have one, as ``Authorization: Bearer KEY``. Default: it needs none.
    log : Log, optional
        Default: a plain one.
    """
    service = Service(models, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: object) -> AsyncIterator[None]:
        service.batcher.start()
        try:
            yield
        finally:
            await service.close()

    paths = [Route(path, _endpoint(service, path), methods=["POST"]) for path in ROUTES]
    paths += [Route(path, partial(answer, service)) for path, answer in _ASKED.items()]
    return _Front(
        service, Router(paths, redirect_slashes=False, default=_nowhere, lifespan=lifespan), keys, log or Log()
    )


def _endpoint(service: Service, path: str) -> Callable[[Request], object]:
    async def answer(request: Request) -> Response:
        return await service.respond(ROUTES[path], request.scope["mp_core.record"], request)

    return answer


class _Front:
    """Admits requests, turns errors into answers, and counts and logs what became of each."""

    def __init__(self, service: Service, app: Router, keys: Collection[str], log: Log) -> None:
        self._service, self._app, self._log = service, app, log
        self._keys = [key.encode() for key in keys]
        self._paths = {route.path for route in app.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, record, sent = time.perf_counter(), Record(), 0

        async def sending(message: Message) -> None:
            nonlocal sent
            sent = message.get("status", sent)
            await send(message)

        # As the application, Starlette hands on its refusals of a path or a method, instead of answering in its words.
        inner = {**scope, "app": self, "mp_core.record": record}
        self._service.in_flight += 1
        try:
            self._admit(scope["path"], Headers(scope=scope))
            await self._app(inner, receive, sending)
        except ClientDisconnect:
            sent = _GONE
        except (Exception, asyncio.CancelledError) as error:
            refusal = self._refusal(error)
            record.error = refusal.message[:200]
            if not sent:
                await error_response(scope["path"], refusal)(scope, receive, sending)
        finally:
            self._service.in_flight -= 1
            self._tell(scope, record, sent, time.perf_counter() - start)

    def _admit(self, path: str, headers: Headers) -> None:
        """Raise RefusedError if a request has no key, or too many are not answered yet."""
        if path in _OPEN:
            return
        if self._keys:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            known = [hmac.compare_digest(key.strip().encode(), each) for each in self._keys]
            if scheme.lower() != "bearer" or not any(known):
                raise RefusedError("key", "a key is needed: Authorization: Bearer KEY", headers=_CHALLENGE)
        if path in ROUTES and self._service.in_flight > self._service.limits.requests:
            retry = {"Retry-After": str(self._service.batcher.retry_after())}
            most = f"at most {self._service.limits.requests} requests are answered at once"
            raise RefusedError("busy", f"the server is busy: {most}", headers=retry)

    def _refusal(self, error: BaseException) -> RefusedError:
        """Return what a client is told of an error, and log what only we can mend."""
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, HTTPException):  # of Starlette: of the method, as other paths are ours
            allowed = (error.headers or {}).get("Allow", "other methods")
            return RefusedError("method", f"this path takes {allowed}", headers=error.headers)
        if isinstance(error, asyncio.CancelledError):
            return RefusedError("stopping", "the server stopped before it could answer", headers={"Retry-After": "5"})
        self._log.exception("the request failed", error)
        return RefusedError("failed", "the server failed; its log says why")

    def _tell(self, scope: Scope, record: Record, status: int, seconds: float) -> None:
        """Count a request, and write a line about it."""
        path = scope["path"]
        route = _MODELS if path.startswith(f"{_MODELS}/") else path if path in self._paths else "other"
        self._service.metrics.requests.add(1, route, str(status))
        self._service.metrics.latency.add(seconds, route)
        if path in _OPEN or path == "/metrics" or (self._log.quiet and status < 500):
            return
        level = "error" if status >= 500 and status != 503 else "info"
        client = scope["client"][0] if scope.get("client") else None
        told = {"status": status, "ms": round(seconds * 1e3, 3), **asdict(record), "client": client}
        gone = ", whose client went away" if status == _GONE else ""
        self._log.write(level, f"{scope['method']} {path[:200]}{gone}", **told)


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise RefusedError("path", f"there is nothing at {scope['path'][:200]}")


# ---- what is asked by GET


async def _health(service: Service, request: Request) -> Response:
    """Whether the process computes: a supervisor starts it again if not."""
    good = service.batcher.running
    return JSONResponse({"status": "ok" if good else "failed"}, 200 if good else 503)


async def _ready(service: Service, request: Request) -> Response:
    """Whether requests should be sent here."""
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
    kinds = ("encoder", "sparse", "multi-vector", "reranker", "classifier")
    return JSONResponse(_listed(service.find(name, kinds)))


_ASKED = {
    "/health": _health,
    "/ready": _ready,
    "/metrics": _metrics,
    "/info": _info,
    _MODELS: _models,
    f"{_MODELS}/{{name:path}}": _model,
}
"""Path -> what answers there."""
