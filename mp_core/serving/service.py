"""Process a request: check its body, tokenize the texts, compute them in the queue, and write the answer."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mp_core.arrays import Array
from mp_core.core.cpu import __version__
from mp_core.models.pieces import TooManyTokensError
from mp_core.models.texts import Tokens
from mp_core.serving.batching import Batcher
from mp_core.serving.completions import Completion, EventStream, Form
from mp_core.serving.decoding import Engine
from mp_core.serving.errors import RefusedError
from mp_core.serving.flight import Flight, Share
from mp_core.serving.limits import Limits
from mp_core.serving.metrics import Gauge, Metrics
from mp_core.serving.models import Computing, Decoder, Served
from mp_core.serving.portions import json_portions, text_portions, tokens_of
from mp_core.serving.routes import ByKind, ModelInputs, Route, Unqueued
from mp_core.serving.schema import checked, read_json

__all__ = ["RequestLog", "Service"]

T = TypeVar("T")

# Up to so many characters to tokenize, or numbers to write, the event loop does the work: a thread would cost more.
# Up to so many bytes, a body's strings are not counted again.
# To write 384 numbers as decimals takes 0.26 ms (Zen 4, November 2026).
_SMALL = 2048

_DECIMAL_BYTES = 20  # the most bytes of a number in an answer, with its separator
_NUMBER_BYTES = 4 + _DECIMAL_BYTES


@dataclass(slots=True)
class RequestLog:
    """The fields of a request's log line; None is left out."""

    model: str | None = None
    texts: int | None = None
    tokens: int | None = None
    truncated: int | None = None
    queue_ms: float | None = None
    error: str | None = None


class Service:
    """The models of a server, with queue, metrics and memory limit.

    If a request names no model, the first one of the right kind is used. `in_flight` is the number of requests that are
    being read, wait or are being answered; `whole` is the number of those whose body is complete.
    """

    def __init__(self, models: Sequence[Served], limits: Limits) -> None:
        self.models, self.limits = list(models), limits
        self.in_flight = self.whole = 0
        self.metrics = Metrics(
            Gauge("mp_core_requests_in_flight", "Requests that are not answered yet.", lambda: self.in_flight),
            Gauge("mp_core_bytes_in_flight", "Of bodies and answers.", lambda: self.flight.bytes),
            Gauge("mp_core_queue_tokens", "Tokens that wait.", lambda: sum(queue.waiting for queue in self.queues)),
            Gauge("mp_core_queue_texts", "Texts that wait.", lambda: sum(queue.texts for queue in self.queues)),
            Gauge("mp_core_generating", "Texts that are being generated.", lambda: self._of_engines("active")),
            Gauge(
                "mp_core_cache_tokens", "Tokens that caches have room for.", lambda: self._of_generators("cache_tokens")
            ),
            Gauge("mp_core_cache_pages_used", "Pages of 64 tokens in use.", lambda: self._of_generators("used_pages")),
        )
        self.batcher = Batcher(limits, self.metrics)
        self.engines = {
            served.name: Engine(served, limits, self.metrics) for served in models if isinstance(served, Decoder)
        }
        self.flight = Flight(limits.flight_bytes)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="texts")  # tokenizes texts and writes answers
        self._running_jobs = 0

    @property
    def busy(self) -> bool:
        """Whether a thread is working."""
        return any(queue.busy for queue in self.queues) or self._running_jobs > 0

    @property
    def queues(self) -> list[Batcher | Engine]:
        """The batcher and the engines of decoders."""
        return [self.batcher, *self.engines.values()]

    def _of_engines(self, name: str) -> int:
        return sum(getattr(engine, name) for engine in self.engines.values())

    def _of_generators(self, name: str) -> int:
        return sum(getattr(engine.model.generator, name) for engine in self.engines.values())

    def start(self) -> None:
        """Start the threads. Call this in the event loop of the requests."""
        for queue in self.queues:
            queue.start()

    async def close(self) -> None:
        """Answer requests for which a client waits, and end the threads, without waiting for abandoned work."""
        try:
            await asyncio.gather(*(queue.close() for queue in self.queues))
        finally:
            self._executor.shutdown(wait=not self._running_jobs, cancel_futures=True)

    def find(self, name: str | None, kinds: Sequence[str]) -> Served:
        """Return the model with a name, or the first one of these kinds."""
        known = [served for served in self.models if set(served.kinds) & set(kinds)]
        names = ", ".join(served.name for served in known)
        wanted = " or ".join(kinds)
        if not known:
            raise RefusedError("model", f"this server has no model of kind {wanted}", "model")
        found = known if name is None else [served for served in self.models if served.name == name]
        if not found:
            raise RefusedError("model", f"there is no model of that name; those of this kind are {names}", "model")
        if not set(found[0].kinds) & set(kinds):
            wrong = f"{found[0].name} is of kind {found[0].kind}, not {wanted}"
            raise RefusedError("invalid", f"{wrong}; those of this kind are {names}", "model")
        return found[0]

    async def respond(self, route: Route | Unqueued | ByKind | Form, record: RequestLog, request: Request) -> Response:
        """Answer a request; stop if its client closes the connection (ClientDisconnect)."""
        data = await read_json(request, self.limits)
        if isinstance(route, ByKind):
            name = data.get("model") if isinstance(data, dict) else None
            route = route.route(self.find(name if isinstance(name, str) else None, tuple(route.paths)), data)
        fields = checked(data, route.fields)
        served = self.find(fields["model"], route.kinds)
        record.model = served.name
        share: Share = request.scope["mp_core.share"]
        if share.bytes > _SMALL:  # the strings of a body take at most four times its bytes
            share.add(max(0, _memory(fields) - share.bytes))
        if isinstance(route, Form):
            return await self._generated(route, record, served, fields, request)
        if isinstance(route, Unqueued):
            self._check_texts(record, len(fields[route.inputs]))
            return await _unless_gone(request, self._read(route, record, served, fields, share))
        computing = cast(Computing, served)
        given, how = route.ask(served, fields), fields if route.within is None else fields[route.within]
        if how.get("prompt_name") in served.tasks:
            given = given._replace(options={**given.options, "task": how["prompt_name"]})
        self._check_texts(record, len(given.inputs))
        return await _unless_gone(request, self._computed(route, record, computing, fields, given, share))

    def _check_texts(self, record: RequestLog, count: int) -> None:
        record.texts = count
        if count > self.limits.texts:
            most = f"a request may have at most {self.limits.texts} texts"
            raise RefusedError("large", f"{most}; received {count}")

    def _check_tokens(self, record: RequestLog, count: int) -> None:
        record.tokens = count
        if count > self.limits.tokens:
            most = f"a request may have at most {self.limits.tokens} tokens"
            raise RefusedError("large", f"{most}; received {count}")

    async def _read(
        self, route: Unqueued, record: RequestLog, served: Served, fields: dict[str, Any], share: Share
    ) -> Response:
        """Answer a request that only needs the tokenizer."""
        self.batcher.check()
        _check_prompt(served, fields.get("prompt_name"))
        work = partial(route.work, served, fields, min(self.limits.tokens, share.room // route.bytes))
        try:
            rows, count = await self._in_thread(work, _size(fields[route.inputs]))
        except TooManyTokensError as error:
            self._check_tokens(record, error.count)
            share.add(error.count * route.bytes)  # raises RefusedError, unless memory was released in the meantime
            raise RefusedError("busy", "the server is busy", headers={"Retry-After": "1"}) from None
        except ValueError as error:
            raise RefusedError("text", str(error)) from None
        record.tokens = count
        share.add(count * route.bytes)
        body = await self._written(route.answer(rows), count, share, count * route.bytes)
        return Response(body, headers={"X-Compute-Tokens": str(count)}, media_type="application/json")

    async def _computed(
        self,
        route: Route,
        record: RequestLog,
        served: Computing,
        fields: dict[str, Any],
        given: ModelInputs,
        share: Share,
    ) -> Response:
        tokens = await self._tokens(served, fields if route.within is None else fields[route.within], given)
        record.truncated = len(tokens.cut)
        count = sum(map(len, tokens.rows))
        self._check_tokens(record, count)
        expected = served.numbers(tokens, given.options)
        share.add(expected * _NUMBER_BYTES)
        rows, waited = await self.batcher(served, tokens, given.options)
        numbers = _numbers(rows)
        share.add(max(0, numbers - expected) * _NUMBER_BYTES)
        record.queue_ms = round(waited * 1e3, 3)
        self.metrics.queued.add(waited, served.name)
        self.metrics.truncated.add(len(tokens.cut), served.name)
        usage: dict[str, Any] = {"usage": {"prompt_tokens": count, "total_tokens": count}}
        if tokens.cut:
            usage["truncated"] = tokens.cut
        answer = await self._in_thread(partial(route.answer, served, fields, rows, usage), numbers)
        body = await self._written(answer, numbers, share, max(numbers, expected) * _DECIMAL_BYTES)
        headers = {"X-Compute-Tokens": str(count), "X-Truncated": str(len(tokens.cut))}
        return Response(body, headers=headers, media_type="application/json")

    async def _generated(
        self, form: Form, record: RequestLog, served: Served, fields: dict[str, Any], request: Request
    ) -> Response:
        """Answer a request for completions."""
        engine, share = self.engines[served.name], request.scope["mp_core.share"]
        engine.check()
        self._check_texts(record, len(fields.get("prompt", (None,))) * fields["n"])
        completion = Completion(form, engine.model, fields, self.limits.new_tokens)
        work = partial(completion.job, self.limits.tokens)
        job = await _unless_gone(request, self._in_thread(work, _SMALL + 1))  # a template may take seconds
        record.tokens = completion.prompt_tokens
        share.add(completion.bytes_of(job.runs))
        if completion.streams:
            events = completion.events(engine.pieces(job))
            first = await _unless_gone(request, _first(events))
            answer: Response = EventStream(first, events, _unless_gone)
        else:
            found = await _unless_gone(request, completion.whole(engine.pieces(job)))
            answer = Response(await self._written(found, 0, share, share.bytes), media_type="application/json")
        record.queue_ms = round((job.waited or 0.0) * 1e3, 3)
        return answer

    async def _tokens(self, served: Computing, how: dict[str, Any], given: ModelInputs) -> Tokens:
        """Return the tokens of a request's texts; refuse truncated texts if ``truncate`` is false."""
        prompt = how.get("prompt_name")
        _check_prompt(served, prompt)
        side = how.get("truncation_direction")
        cut = {} if side is None or not how["truncate"] else {"from_start": side == "left"}
        try:
            parts = [
                await self._in_thread(partial(tokens_of, served, portion, prompt, first, **cut), size)
                for first, portion, size in text_portions(given.inputs)
            ]
            tokens = parts[0] if len(parts) == 1 else Tokens.joined(parts)
        except ValueError as error:
            raise RefusedError("text", str(error)) from None
        if tokens.cut and not how["truncate"]:
            long = f"text {tokens.cut[0]} has more than {served.max_length} tokens"
            raise RefusedError("text", f'{long}, and "truncate" is false')
        return tokens

    async def _in_thread(self, work: Callable[[], T], size: int) -> T:
        """Call a function; if `size` is large, in a thread, so that the event loop stays free."""
        if size <= _SMALL:
            return work()

        def counted() -> T:
            self._running_jobs += 1
            try:
                return work()
            finally:
                self._running_jobs -= 1

        return await asyncio.get_running_loop().run_in_executor(self._executor, counted)

    async def _written(self, answer: Any, size: int, share: Share, counted: int) -> memoryview:
        """Return an answer as JSON, written in portions; add bytes beyond those already `counted` to the share."""
        body, written = bytearray(), json_portions(answer)
        while portion := await self._in_thread(partial(next, written, b""), size):
            body += portion
            share.add(max(0, len(body) - counted))
            counted = max(counted, len(body))
        return memoryview(body)

    def described(self) -> dict[str, Any]:
        """Return the answer of ``/info``: the first model in the form of text-embeddings-inference, then all models."""
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


def _check_prompt(served: Served, name: str | None) -> None:
    """Raise RefusedError if a prompt is named that the model does not have."""
    if name is not None and name not in served.prompts:
        known = (
            f"one of {', '.join(map(json.dumps, served.prompts))}" if served.prompts else f"absent for {served.name}"
        )
        raise RefusedError("invalid", f'"prompt_name" must be {known}; received {json.dumps(name[:40])}', "prompt_name")


def _memory(value: Any) -> int:
    """Return the bytes of all strings of a body in memory: each character takes as much as the widest one."""
    if type(value) is str:
        return sys.getsizeof(value)
    if type(value) is list or type(value) is tuple:
        return sum(map(_memory, value))
    return sum(map(_memory, value.values())) if type(value) is dict else 0


def _size(inputs: Sequence[Any]) -> int:
    """Return the number of characters of texts and pairs, or of tokens in rows."""
    return sum(sum(map(len, each)) if isinstance(each, tuple) else len(each) for each in inputs)


def _numbers(rows: Array) -> int:
    """Return the count of numbers in rows, also in objects, which are arrays or tuples of arrays."""
    if rows.dtype != object:
        return rows.size
    return sum(part.size for row in rows for part in (row if isinstance(row, tuple) else [row]))


async def _first(events: AsyncGenerator[bytes]) -> bytes:
    """Return the first event; end the others if there is none, as after an error."""
    try:
        return await anext(events)
    except BaseException:
        await events.aclose()
        raise


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it, and raise ClientDisconnect, if the client closes the connection first."""
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
