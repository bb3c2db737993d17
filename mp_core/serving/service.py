"""From a request to its answer: the body is checked, texts become tokens, the queue computes them."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mp_core.arrays import Array
from mp_core.core.cpu import __version__
from mp_core.models.texts import Tokens
from mp_core.serving.batching import Batcher
from mp_core.serving.errors import RefusedError
from mp_core.serving.limits import Limits
from mp_core.serving.metrics import Gauge, Metrics
from mp_core.serving.models import Served
from mp_core.serving.routes import Asked, Route, as_json
from mp_core.serving.schema import checked, read_json

__all__ = ["Record", "Service"]

T = TypeVar("T")

# Characters to make tokens of, or numbers to write, for which another thread costs more than it spares the event loop.
# 384 numbers take 0.26 ms as decimals (Zen 4, November 2026).
_SMALL = 2048


@dataclass(slots=True)
class Record:
    """What the log says of a request; None is left out."""

    model: str | None = None
    texts: int | None = None
    tokens: int | None = None
    truncated: int | None = None
    queue_ms: float | None = None
    error: str | None = None


class Service:
    """The models, and what computes their texts.

    Parameters
    ----------
    models : sequence of Served
        Where a request names none, the first one of the right kind answers.
    limits : Limits

    Attributes
    ----------
    metrics : Metrics
    batcher : Batcher
    in_flight : int
        Requests that are read, wait or are answered.
    """

    def __init__(self, models: Sequence[Served], limits: Limits) -> None:
        self.models, self.limits, self.in_flight = list(models), limits, 0
        self.metrics = Metrics(
            Gauge("mp_core_requests_in_flight", "Requests that are not answered yet.", lambda: self.in_flight),
            Gauge("mp_core_queue_tokens", "Tokens that wait.", lambda: self.batcher.waiting),
            Gauge("mp_core_queue_texts", "Texts that wait.", lambda: self.batcher.texts),
        )
        self.batcher = Batcher(limits, self.metrics)
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="texts")  # reads texts and writes answers

    async def close(self) -> None:
        """Compute what waits, and end the threads."""
        try:
            await self.batcher.close()
        finally:
            self._aside.shutdown()

    def find(self, name: str | None, kinds: Sequence[str]) -> Served:
        """Return the model of a name, or the first one of these kinds.

        Raises
        ------
        RefusedError
            There is none, or it is of another kind.
        """
        known = [served for served in self.models if set(served.kinds) & set(kinds)]
        names = ", ".join(served.name for served in known)
        wanted = " or ".join(kinds)
        if not known:
            raise RefusedError("model", f"this server has no {wanted}", "model")
        found = known if name is None else [served for served in self.models if served.name == name]
        if not found:
            raise RefusedError("model", f"there is no model of that name; those of this kind are {names}", "model")
        if not set(found[0].kinds) & set(kinds):
            told = f"{found[0].name} is no {wanted}, but of kind {found[0].kind}"
            raise RefusedError("invalid", f"{told}; those of this kind are {names}", "model")
        return found[0]

    async def respond(self, route: Route, record: Record, request: Request) -> Response:
        """Return the answer to a request, whose client may go away meanwhile.

        Raises
        ------
        RefusedError
            The request is wrong, or too large, or the server too busy.
        ClientDisconnect
            Nobody waits for the answer any more.
        """
        fields = checked(await read_json(request, self.limits), route.fields)
        served = self.find(fields["model"], route.kinds)
        record.model = served.name
        asked = route.ask(served, fields)
        if fields.get("prompt_name") in served.tasks:
            asked = asked._replace(options={**asked.options, "task": fields["prompt_name"]})
        record.texts = len(asked.inputs)
        if record.texts > self.limits.texts:
            most = f"a request may have at most {self.limits.texts} texts"
            raise RefusedError("large", f"{most}; received {record.texts}")
        return await _unless_gone(request, self._computed(route, record, served, fields, asked))

    async def _computed(
        self, route: Route, record: Record, served: Served, fields: dict[str, Any], asked: Asked
    ) -> Response:
        tokens = await self._tokens(served, fields, asked)
        record.tokens, record.truncated = sum(map(len, tokens.rows)), len(tokens.cut)
        if record.tokens > self.limits.tokens:
            most = f"a request may have at most {self.limits.tokens} tokens"
            raise RefusedError("large", f"{most}; received {record.tokens}")
        rows, waited = await self.batcher(served, tokens, asked.options)
        record.queue_ms = round(waited * 1e3, 3)
        self.metrics.queued.add(waited, served.name)
        self.metrics.truncated.add(len(tokens.cut), served.name)
        body = await self._beside(partial(_body, route, served, fields, rows, tokens), _numbers(rows))
        told = {"X-Compute-Tokens": str(record.tokens), "X-Truncated": str(len(tokens.cut))}
        return Response(body, headers=told, media_type="application/json")

    async def _tokens(self, served: Served, fields: dict[str, Any], asked: Asked) -> Tokens:
        """Return the tokens of a request's texts; refuse those that are cut though they should not be."""
        prompt = fields.get("prompt_name")
        if prompt is not None and prompt not in served.prompts:
            known = ", ".join(map(json.dumps, served.prompts))
            raise RefusedError("invalid", f'"prompt_name" must be one of {known}', "prompt_name")
        try:
            size = sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in asked.inputs)
            tokens = await self._beside(partial(served.tokenize, asked.inputs, prompt), size)
        except ValueError as error:
            raise RefusedError("text", str(error)) from None
        if tokens.cut and not fields["truncate"]:
            told = f"text {tokens.cut[0]} has more than {served.max_length} tokens"
            raise RefusedError("text", f'{told}, and "truncate" is false')
        return tokens

    async def _beside(self, work: Callable[[], T], size: int) -> T:
        """Return what a function returns; if it reads or writes much, in a thread, so that others need not wait."""
        if size <= _SMALL:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._aside, work)

    def described(self) -> dict[str, Any]:
        """Return what ``/info`` says, of the first model as text-embeddings-inference has it."""
        first = self.models[0]
        return {
            "model_id": first.name,
            "model_dtype": first.policy,
            "model_type": first.as_tei(),
            "max_input_length": first.max_length,
            "max_concurrent_requests": self.limits.requests,
            "max_batch_tokens": self.limits.batch_tokens,
            "max_client_batch_size": self.limits.texts,
            "auto_truncate": True,
            "version": __version__,
            "models": {served.name: served.describe() for served in self.models},
        }


def _numbers(rows: Array) -> int:
    """Return how many numbers rows have, those of objects included."""
    return rows.size if rows.dtype != object else sum(np.size(part) for row in rows for part in row)


def _body(route: Route, served: Served, fields: dict[str, Any], rows: Array, tokens: Tokens) -> bytes:
    count = sum(map(len, tokens.rows))
    usage: dict[str, Any] = {"usage": {"prompt_tokens": count, "total_tokens": count}}
    if tokens.cut:
        usage["truncated"] = tokens.cut
    return as_json(route.answer(served, fields, rows, usage))


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return what `work` returns; end it, and raise ClientDisconnect, if the client goes away before."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
