"""What the body of a request may hold: a table of fields for each route."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request

from mp_core.serving.errors import RefusedError
from mp_core.serving.limits import Limits

__all__ = ["EMBED", "EMBEDDINGS", "EMBED_PARTS", "PREDICT", "RERANK", "RERANKING", "Fields", "checked", "read_json"]


class _Field(NamedTuple):
    """A field: the function that returns its value or raises, and the value if it is absent or null."""

    read: Callable[[Any, str], Any]
    default: Any = None
    required: bool = False


Fields = Mapping[str, _Field]


def _wrong(name: str, must: str, value: Any) -> RefusedError:
    return RefusedError("invalid", f"{name} must be {must}; received {_told(value)}", name.split('"')[1])


def _told(value: Any) -> str:
    """Return a value of JSON in words; of what may be long only the kind."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 10**12):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the string {json.dumps(value)}" if len(value) <= 40 else f"a string of {len(value)} characters"
    return {int: "a large number", list: "a list", dict: "an object"}[type(value)]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise RefusedError("text", f"{name} has half of a surrogate pair, which is no character", name.split('"')[1])
    return value


def _texts(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a list of at least one string", value)
    return [_text(item, f"{name}[{place}]") for place, item in enumerate(value)]


def _inputs(value: Any, name: str) -> list[str]:
    """Read a text or several. Numbers of tokens are those of one tokenizer, and no client has the model's."""
    first = value[0] if isinstance(value, list) and value else None
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, int) and not isinstance(first, bool):
        text = "numbers of tokens belong to one tokenizer, which may not be the model's: send text"
        raise RefusedError("invalid", f"{name} must be a string or a list of strings; {text}", name.split('"')[1])
    return [_text(value, name)] if isinstance(value, str) else _texts(value, name)


def _documents(value: Any, name: str) -> list[str]:
    """Read texts, or objects that hold one each."""
    if not isinstance(value, list) or not value:
        raise _wrong(name, 'a list of at least one string, or of objects with "text"', value)
    found = []
    for place, item in enumerate(value):
        text = item.get("text") if isinstance(item, dict) and item.keys() == {"text"} else item
        found.append(_text(text, f"{name}[{place}]"))
    return found


def _predicted(value: Any, name: str) -> str | tuple[str, ...] | list[str | tuple[str, ...]]:
    """Read a text, a pair of texts, or a list of lists of one text or two: tuples are pairs."""
    if isinstance(value, str):
        return _text(value, name)
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a string, a pair of strings, or a list of lists of one string or two", value)
    if isinstance(value[0], list):
        return [_one_or_two(item, f"{name}[{place}]") for place, item in enumerate(value)]
    return _one_or_two(value, name)


def _one_or_two(value: Any, name: str) -> str | tuple[str, ...]:
    if not isinstance(value, list) or len(value) not in (1, 2):
        count = f"; received {len(value)}" if isinstance(value, list) else f"; received {_told(value)}"
        raise RefusedError("invalid", f"{name} must have one string or two{count}", name.split('"')[1])
    texts = tuple(_text(item, f"{name}[{place}]") for place, item in enumerate(value))
    return texts[0] if len(texts) == 1 else texts


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _positive(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise _wrong(name, "a positive integer below 2^31", value)
    return value


def _one_of(*words: str) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise _wrong(name, " or ".join(map(json.dumps, words)), value)
        return value

    return read


_CUT: Fields = {"truncate": _Field(_flag, True)}
_TEI: Fields = {**_CUT, "truncation_direction": _Field(_one_of("right", "Right")), "model": _Field(_text)}
_VECTORS: Fields = {"dimensions": _Field(_positive), "prompt_name": _Field(_text)}

EMBEDDINGS: Fields = {
    "input": _Field(_inputs, required=True),
    "model": _Field(_text),
    "encoding_format": _Field(_one_of("float", "base64"), "float"),
    "user": _Field(_text),
    **_VECTORS,
    **_CUT,
}
"""Of ``/v1/embeddings``."""

RERANKING: Fields = {
    "query": _Field(_text, required=True),
    "documents": _Field(_documents, required=True),
    "model": _Field(_text),
    "top_n": _Field(_positive),
    "return_documents": _Field(_flag, False),
    **_CUT,
}
"""Of ``/v1/rerank``."""

EMBED: Fields = {
    "inputs": _Field(_inputs, required=True),
    "normalize": _Field(_flag, True),
    **_VECTORS,
    **_TEI,
}
"""Of ``/embed``."""

EMBED_PARTS: Fields = {"inputs": _Field(_inputs, required=True), "prompt_name": _Field(_text), **_TEI}
"""Of ``/embed_sparse`` and ``/embed_all``, which have the same fields."""

RERANK: Fields = {
    "query": _Field(_text, required=True),
    "texts": _Field(_texts, required=True),
    "raw_scores": _Field(_flag, False),
    "return_text": _Field(_flag, False),
    **_TEI,
}
"""Of ``/rerank``."""

PREDICT: Fields = {
    "inputs": _Field(_predicted, required=True),
    "raw_scores": _Field(_flag, False),
    **_TEI,
}
"""Of ``/predict``."""


def checked(data: Any, fields: Fields) -> dict[str, Any]:
    """Return the value of every field; raise RefusedError, which names the field, if one is wrong, absent or unknown.

    Examples
    --------
    >>> checked({"inputs": "a", "normalize": None}, EMBED)["normalize"]
    True
    >>> checked({"inputs": ["a", 1]}, EMBED)
    Traceback (most recent call last):
    ...
    mp_core.serving.errors.RefusedError: "inputs"[1] must be a string; received 1
    """
    if not isinstance(data, dict):
        raise RefusedError("malformed", f"the body must be a JSON object; received {_told(data)}")
    for name in data:
        if name not in fields:
            known = ", ".join(map(json.dumps, fields))
            raise RefusedError("invalid", f"the field {json.dumps(name[:40])} is unknown; known are {known}", name[:40])
    found = {}
    for name, field in fields.items():
        value = data.get(name)
        if value is None and field.required:
            raise RefusedError("invalid", f'"{name}" is missing', name)
        found[name] = field.default if value is None else field.read(value, f'"{name}"')
    return found


async def read_json(request: Request, limits: Limits) -> Any:
    """Return the JSON of a body, of which no more is kept than a body may have.

    Raises
    ------
    RefusedError
        The body is too long, comes too slowly, or is no JSON.
    ClientDisconnect
        The client went away before it was complete.
    """
    large = RefusedError("large", f"a body may have at most {limits.body_bytes} bytes")
    if int(request.headers.get("content-length", 0)) > limits.body_bytes:
        raise large  # uvicorn reads the rest and drops it
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.body_bytes:
                    raise large
    except TimeoutError:
        late = f"a body must arrive within {limits.body_seconds:g} seconds"
        raise RefusedError("slow", late, headers={"Connection": "close"}) from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError("malformed", f"the body must be JSON: {error}") from None
