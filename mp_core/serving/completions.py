"""Completions in OpenAI's form: prompts, answers as one object or as server-sent events."""

import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mp_core.models.generation import Sampling
from mp_core.models.generation.batch import Run
from mp_core.serving import schema
from mp_core.serving.decoding import Job, Piece
from mp_core.serving.errors import RefusedError, error_response
from mp_core.serving.models import Decoder
from mp_core.serving.schema import Fields

__all__ = ["COMPLETIONS", "Completion", "EventStream", "Form"]

_PENALTIES = "repetition_penalty", "presence_penalty", "frequency_penalty"
_SAMPLING = "temperature", "top_k", "top_p", "min_p", *_PENALTIES, "logit_bias"
_LEAST = -9999.0
"""OpenAI's number for the logarithm of 0, which JSON lacks."""
_TOKEN_BYTES = 64
_ALTERNATIVE_BYTES = 160
"""The bytes of a token in an answer, and of a log-probability with its token."""


@dataclass(frozen=True, slots=True)
class Form:
    """A path that generates: its fields, and the form of its answers."""

    fields: Fields
    object: str  # the type of an answer
    chunk: str  # the type of an event
    prefix: str  # of identifiers
    # (model, fields) -> the texts or tokens of the prompts
    prompts: Callable[[Decoder, dict[str, Any]], list[Any]]
    # fields -> the number of alternatives for each token, or None
    alternatives: Callable[[dict[str, Any]], int | None]
    # (model, piece, number of characters before it, alternatives) -> the log-probabilities of its tokens
    logs: Callable[[Decoder, Piece, int, int], Any]
    whole: Callable[[Piece], dict[str, Any]]  # piece -> the fields of a choice of an answer
    part: Callable[[Piece, bool], dict[str, Any]]  # (piece, whether it is the first one) -> those of an event
    kinds: tuple[str, ...] = (Decoder.kind,)


def _chat_prompts(served: Decoder, fields: dict[str, Any]) -> list[Any]:
    return [served.generator.chat_tokens(fields["messages"], **fields["chat_template_kwargs"])]


def _chat_alternatives(fields: dict[str, Any]) -> int | None:
    if fields["top_logprobs"] is not None and not fields["logprobs"]:
        raise RefusedError("invalid", '"top_logprobs" needs "logprobs": true', "top_logprobs")
    return (fields["top_logprobs"] or 0) if fields["logprobs"] else None


def _chat_logs(served: Decoder, piece: Piece, before: int, alternatives: int) -> Any:
    def entry(token: int, number: float) -> dict[str, Any]:
        (word,) = served.words([token])
        return {"token": word, "logprob": max(number, _LEAST), "bytes": list(word.encode())}

    content = [
        entry(token, number) | {"top_logprobs": [entry(*pair) for pair in best.items()]}
        for token, (number, best) in zip(piece.tokens, piece.noted, strict=True)
    ]
    return {"content": content, "refusal": None}


def _text_logs(served: Decoder, piece: Piece, before: int, alternatives: int) -> Any:
    words, offsets = served.words(piece.tokens), []
    for word in words:
        offsets.append(before)
        before += len(word)
    best = [{served.words([token])[0]: max(n, _LEAST) for token, n in listed.items()} for _, listed in piece.noted]
    numbers = [max(number, _LEAST) for number, _ in piece.noted]
    tops = best if alternatives else None
    return {"tokens": words, "token_logprobs": numbers, "top_logprobs": tops, "text_offset": offsets}


def _delta(piece: Piece, first: bool) -> dict[str, Any]:
    role = {"role": "assistant", "content": ""} if first else {}
    return {"delta": role | ({"content": piece.text} if piece.text else {})}


COMPLETIONS: Mapping[str, Form] = {
    "/v1/completions": Form(
        schema.COMPLETIONS, "text_completion", "text_completion", "cmpl-",
        lambda served, fields: fields["prompt"], lambda fields: fields["logprobs"], _text_logs,
        lambda piece: {"text": piece.text}, lambda piece, first: {"text": piece.text},
    ),
    "/v1/chat/completions": Form(
        schema.CHATS, "chat.completion", "chat.completion.chunk", "chatcmpl-",
        _chat_prompts, _chat_alternatives, _chat_logs,
        lambda piece: {"message": {"role": "assistant", "content": piece.text, "refusal": None}}, _delta,
    ),
}  # fmt: skip
"""Path -> the form of its answers."""


class Completion:
    """A request for completions, checked and tokenized.

    Parameters
    ----------
    form : Form
    served : Decoder
    fields : dict
        The checked fields of the body.
    new_tokens : int
        The number of tokens of an answer if the fields do not say it.
    """

    def __init__(self, form: Form, served: Decoder, fields: dict[str, Any], new_tokens: int) -> None:
        self._form, self._served, self._fields = form, served, fields
        self._alternatives, self._new_tokens = form.alternatives(fields), new_tokens
        self._head = {"id": f"{form.prefix}{uuid4().hex}", "created": int(time.time()), "model": served.name}
        self._characters: defaultdict[int, int] = defaultdict(int)
        self._generated = self.prompt_tokens = 0

    @property
    def streams(self) -> bool:
        """Whether the answer is a stream of events."""
        return bool(self._fields["stream"])

    def job(self, most_tokens: int) -> Job:
        """Return the runs of all prompts, of at most so many tokens together; errors name the field."""
        fields, generator = self._fields, self._served.generator
        try:
            sampling = Sampling(**{name: fields[name] for name in _SAMPLING}, seed=fields["seed"] % 2**32)
            prompts = self._form.prompts(self._served, fields)
            rows = [run.prompt for run in generator.runs(prompts, sampling, 1)]
        except (ValueError, TypeError, RecursionError) as error:
            told = str(error).replace("`prompts", "`prompt")
            named = re.match(r"`(\w+)", told)
            raise RefusedError("text", told, named and named[1]) from None
        self.prompt_tokens = sum(map(len, rows))
        if self.prompt_tokens * fields["n"] > most_tokens:
            raise RefusedError("large", f"the prompts of a request may have at most {most_tokens} tokens")
        copies = [row for row in rows for _ in range(fields["n"])]
        runs = [
            generator.runs([row], sampling, self._most(row), self._alternatives, first=number)[0]
            for number, row in enumerate(copies)
        ]
        return Job(runs, fields["stop"])

    def _most(self, row: list[int]) -> int:
        """Return the most tokens after a prompt."""
        given: int | None = self._fields.get("max_completion_tokens") or self._fields["max_tokens"]
        room = max(1, self._served.generator.cache_tokens - len(row))
        return min(self._new_tokens, room) if given is None else given

    def bytes_of(self, runs: list[Run]) -> int:
        """Return the bytes that the answer may have."""
        each = _TOKEN_BYTES + (0 if self._alternatives is None else _ALTERNATIVE_BYTES * (self._alternatives + 1))
        return each * sum(run.most for run in runs)

    async def whole(self, pieces: AsyncGenerator[Piece]) -> dict[str, Any]:
        """Return the answer as one object."""
        found: defaultdict[int, list[Piece]] = defaultdict(list)
        async with aclosing(pieces):
            async for piece in pieces:
                found[piece.place].append(piece)
                self._generated += len(piece.tokens)
        choices = [self._choice(_joined(parts)) for _, parts in sorted(found.items())]
        return {"object": self._form.object, **self._head, "choices": choices, "usage": self._usage()}

    async def events(self, pieces: AsyncGenerator[Piece]) -> AsyncGenerator[bytes]:
        """Yield the answer as server-sent events."""
        usage = {"usage": None} if self._fields["stream_options"]["include_usage"] else {}
        known: set[int] = set()
        async with aclosing(pieces):
            async for piece in pieces:
                self._generated += len(piece.tokens)
                if piece.place in known and not piece.text and piece.reason is None and self._alternatives is None:
                    continue
                choice = self._choice(piece, self._form.part(piece, piece.place not in known))
                known.add(piece.place)
                yield _event({"object": self._form.chunk, **self._head, "choices": [choice], **usage})
        if usage:
            yield _event({"object": self._form.chunk, **self._head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _choice(self, piece: Piece, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        logs, before = None, self._characters[piece.place]
        if self._alternatives is not None:
            logs = self._form.logs(self._served, piece, before, self._alternatives)
        self._characters[piece.place] += sum(map(len, self._served.words(piece.tokens))) if logs else 0
        own = self._form.whole(piece) if fields is None else fields
        return {"index": piece.place, **own, "logprobs": logs, "finish_reason": piece.reason}

    def _usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self._generated
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self._generated, "total_tokens": total}


def _joined(parts: list[Piece]) -> Piece:
    """Return the pieces of a run as one."""
    tokens = [token for part in parts for token in part.tokens]
    noted = [entry for part in parts for entry in part.noted]
    return Piece(parts[0].place, "".join(part.text for part in parts), tokens, noted, parts[-1].reason)


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    """An answer in events, of which the first one is there; `unless_gone` ends the work if the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes],
        unless_gone: Callable[[Request, Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first, self._rest, self._unless_gone = first, rest, unless_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._rest):
            await self._unless_gone(Request(scope, receive), self._send(send))

    async def _send(self, send: Send) -> None:
        def body(content: bytes, more: bool) -> dict[str, Any]:
            return {"type": "http.response.body", "body": content, "more_body": more}

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(body(self._first, True))
        try:
            async for event in self._rest:
                await send(body(event, True))
        except Exception as error:
            told = error if isinstance(error, RefusedError) else RefusedError("failed", "the server failed")
            await send(body(b"data: %s\n\n" % bytes(error_response("/v1/", told).body), False))
            raise
        await send(body(b"", False))
