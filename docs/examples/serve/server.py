"""Sentence embeddings over HTTP: ``python server.py MODEL_FOLDER --policy int8``. docs/serving.md explains it."""

import argparse
import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import uvicorn
from batcher import Batcher, BusyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mp_core import config
from mp_core.models import BertEncoder

MAX_BYTES, MAX_TEXTS = 1 << 20, 128  # of one request


def create_app(encode: Callable[[list[str]], np.ndarray], **limits: float) -> Starlette:
    """Return the application; `limits` are those of :class:`Batcher`."""
    batcher = Batcher(encode, **limits)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.close()

    async def embed(request: Request) -> Response:
        texts, form = checked(await read_json(request))
        try:
            rows = await batcher(texts)
        except BusyError:
            raise HTTPException(503, "the server is busy", {"Retry-After": "1"}) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        if form == "floats":
            return JSONResponse({"embeddings": rows.tolist()})
        data = base64.b64encode(rows.astype("<f4", copy=False).tobytes()).decode()
        return JSONResponse({"base64": data, "shape": rows.shape})

    async def health(request: Request) -> Response:
        counts = {"waiting": batcher.waiting, "texts": batcher.texts, "batches": batcher.batches}
        return JSONResponse({"ok": batcher.running, **counts}, 200 if batcher.running else 503)

    routes = [Route("/embed", embed, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: as_json})


async def as_json(request: Request, error: HTTPException) -> Response:
    """Return an error as JSON."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def read_json(request: Request) -> object:
    """Return the body of a request, of which no more than MAX_BYTES are read."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise HTTPException(413, f"the body must have at most {MAX_BYTES} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"the body must be JSON: {error}") from None


def checked(data: object) -> tuple[list[str], str]:
    """Return the texts of a request and the form in which it wants the embeddings."""
    if not isinstance(data, dict) or not data.keys() <= {"texts", "form"}:
        raise HTTPException(400, 'the body must be an object with "texts" and, if you like, "form"')
    texts, form = data.get("texts"), data.get("form", "floats")
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TEXTS:
        raise HTTPException(400, f'"texts" must be a list of 1 to {MAX_TEXTS} strings')
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise HTTPException(400, f'"texts"[{position}] must be a string')
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise HTTPException(400, f'"texts"[{position}] must not have half of a surrogate pair')
    if form not in ("floats", "base64"):
        raise HTTPException(400, '"form" must be "floats" or "base64"')
    return texts, form


def serve(app: Starlette, port: int) -> None:
    """Answer on the loopback interface until SIGTERM or SIGINT; then answer what was received, and return.

    The port is printed as soon as connections are accepted. Port 0 is any that is free.
    """
    # asyncio switches Nagle's algorithm off only for sockets that name TCP; with it, answers wait 40 ms for the client.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(1024)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        settings = uvicorn.Config(app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=30)
        uvicorn.Server(settings).run([listener])


def main() -> None:
    """Read the command line, load the model, serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("model", help="a folder as sentence-transformers writes it")
    parser.add_argument("--policy", help="default: the one under which the model is stored")
    parser.add_argument("--threads", type=int, help="of each operation; default: all CPUs of the process")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=32, help="texts to embed at once")
    parser.add_argument("--wait-ms", type=float, default=3, help="that a request waits for others to fill its batch")
    parser.add_argument("--capacity", type=int, default=512, help="the most texts that may wait")
    options = parser.parse_args()
    if options.threads:
        config.set_num_threads(options.threads)
    encoder = BertEncoder.from_folder(options.model, options.policy)
    encoder.encode(["The first call packs the weights."])
    limits = {"batch_size": options.batch_size, "wait": options.wait_ms / 1000, "capacity": options.capacity}
    serve(create_app(encoder.encode, **limits), options.port)


if __name__ == "__main__":
    main()
