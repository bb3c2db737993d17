"""The fields of request bodies: a table for each route, and their checks."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request

from mp_core.models.precision import PRECISIONS
from mp_core.serving.errors import RefusedError
from mp_core.serving.limits import Limits

__all__ = [
    "CHATS",
    "COMPLETIONS",
    "DECODE",
    "EMBED",
    "EMBEDDINGS",
    "EMBED_PARTS",
    "FUNCTIONS",
    "PREDICT",
    "RERANK",
    "RERANKING",
    "SIMILARITY",
    "TOKENIZE",
    "Fields",
    "checked",
    "read_json",
]


class _Field(NamedTuple):
    """A field: the function that checks and returns its value, and the default if it is absent or null."""

    read: Callable[[Any, str], Any]
    default: Any = None
    required: bool = False


Fields = Mapping[str, _Field]

_OBJECTS = 16  # allowed in a body, in addition to one for each text


def _wrong(name: str, must: str, value: Any) -> RefusedError:
    return RefusedError("invalid", f"{name} must be {must}; received {_shown(value)}", name.split('"')[1])


def _shown(value: Any) -> str:
    """Return a JSON value for an error message; only its kind if it may be long."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 10**12):
        return json.dumps(value)
    if isinstance(value, str):
        return f"the string {json.dumps(value)}" if len(value) <= 40 else f"a string of {len(value)} characters"
    return {int: "a large number", list: "a list" if value else "an empty list", dict: "an object"}[type(value)]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a string", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        half = f"{name} has half of a surrogate pair, which is not a character"
        raise RefusedError("text", half, name.split('"')[1]) from None
    return value


def _texts(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a list of at least one string", value)
    return [_text(item, f"{name}[{place}]") for place, item in enumerate(value)]


def _inputs(value: Any, name: str) -> list[str]:
    """Read one text or several. Token numbers are refused: they belong to another tokenizer than the model's."""
    first = value[0] if isinstance(value, list) and value else None
    first = first[0] if isinstance(first, list) and first else first
    if isinstance(first, int) and not isinstance(first, bool):
        text = "numbers of tokens belong to one tokenizer, which may not be the model's: send text"
        raise RefusedError("invalid", f"{name} must be a string or a list of strings; {text}", name.split('"')[1])
    return [_text(value, name)] if isinstance(value, str) else _texts(value, name)


def _documents(value: Any, name: str) -> list[str]:
    """Read texts, or objects with one text each."""
    if not isinstance(value, list) or not value:
        raise _wrong(name, 'a list of at least one string, or of objects with "text"', value)
    return [_document(item, f"{name}[{place}]") for place, item in enumerate(value)]


def _document(value: Any, name: str) -> str:
    text: str = _object(_DOCUMENT)(value, name)["text"] if isinstance(value, dict) else _text(value, name)
    return text


def _object(fields: Fields) -> Callable[[Any, str], dict[str, Any]]:
    """Return a function that reads an object with these fields."""

    def read(value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(name, "an object", value)
        return _values(value, fields, name)

    return read


def _ids(value: Any, name: str) -> list[list[int]]:
    """Read one row of token numbers or several."""
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a list of at least one token, or of such lists", value)
    if not isinstance(value[0], list):
        if not all(map(_is_token, value)):
            place = next(place for place, item in enumerate(value) if not _is_token(item))
            raise _wrong(f"{name}[{place}]", "the number of a token", value[place])
        return [value]
    return [row for place, item in enumerate(value) for row in _row(item, f"{name}[{place}]")]


def _row(value: Any, name: str) -> list[list[int]]:
    if not isinstance(value, list) or not value or isinstance(value[0], list):
        raise _wrong(name, "a list of at least one token", value)
    return _ids(value, name)


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _predicted(value: Any, name: str) -> str | tuple[str, ...] | list[str | tuple[str, ...]]:
    """Read a text, a pair of texts, or a list of lists of one or two texts; pairs become tuples."""
    if isinstance(value, str):
        return _text(value, name)
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a string, a pair of strings, or a list of lists of one string or two", value)
    if isinstance(value[0], list):
        return [_one_or_two(item, f"{name}[{place}]") for place, item in enumerate(value)]
    return _one_or_two(value, name)


def _one_or_two(value: Any, name: str) -> str | tuple[str, ...]:
    if not isinstance(value, list) or len(value) not in (1, 2):
        count = f"; received {len(value)}" if isinstance(value, list) else f"; received {_shown(value)}"
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


def _side(value: Any, name: str) -> str:
    if not isinstance(value, str) or value.lower() not in ("left", "right"):
        raise _wrong(name, '"left" or "right"', value)
    return value.lower()


def _number_from(least: float, most: float, allowed: str) -> Callable[[Any, str], float]:
    """Return a function that reads a finite number from `least` to `most`."""

    def read(value: Any, name: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise _wrong(name, allowed, value)
        return float(value)

    return read


def _integer_from(least: int, most: int) -> Callable[[Any, str], int]:
    def read(value: Any, name: str) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _wrong(name, f"an integer from {least} to {most}", value)
        return value

    return read


def _only(allowed: Any, why: str) -> Callable[[Any, str], Any]:
    """Return a function that accepts one value, which changes nothing."""

    def read(value: Any, name: str) -> Any:
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise _wrong(name, f"{json.dumps(allowed)} ({why})", value)
        return value

    return read


def _prompts(value: Any, name: str) -> list[str | list[int]]:
    """Read one prompt or several, as texts or as tokens of the model."""
    if isinstance(value, str):
        return [_text(value, name)]
    if not isinstance(value, list) or not value or not isinstance(value[0], str | int | list):
        raise _wrong(name, "a string, a list of at least one token, or a list of those", value)
    found: list[str | list[int]] = []
    found += _texts(value, name) if isinstance(value[0], str) else _ids(value, name)
    return found


def _stops(value: Any, name: str) -> list[str]:
    stops = [_text(value, name)] if isinstance(value, str) else _texts(value, name)
    if len(stops) > _STOPS or not all(0 < len(stop) <= _STOP for stop in stops):
        raise _wrong(name, f"a string of 1 to {_STOP} characters, or a list of at most {_STOPS} of them", value)
    return stops


def _biases(value: Any, name: str) -> dict[int, float]:
    """Read an object with a bias for each token, whose number is a string."""
    read = _number_from(-100, 100, "a number from -100 to 100")
    if not isinstance(value, dict) or len(value) > _BIASES or not all(re.fullmatch("[0-9]{1,9}", key) for key in value):
        raise _wrong(name, f"an object with at most {_BIASES} numbers of tokens", value)
    return {int(key): read(bias, f"{name}.{json.dumps(key)}") for key, bias in value.items()}


def _messages(value: Any, name: str) -> list[dict[str, Any]]:
    """Read the messages of a chat; parts of a content, which must be texts, are joined by line ends."""
    if not isinstance(value, list) or not value:
        raise _wrong(name, "a list of at least one message", value)
    found = []
    for place, item in enumerate(value):
        message = _object(_MESSAGE)(item, f"{name}[{place}]")
        found.append({key: entry for key, entry in message.items() if entry is not None})
    return found


def _content(value: Any, name: str) -> str:
    if not isinstance(value, list):
        return _text(value, name)
    return "\n".join(_object(_PART)(item, f"{name}[{place}]")["text"] for place, item in enumerate(value))


def _variables(value: Any, name: str) -> dict[str, Any]:
    """Read variables of a template; `messages` and the like are fields of their own."""
    if not isinstance(value, dict) or not all(word.isidentifier() and word not in _TAKEN for word in value):
        raise _wrong(name, "an object with names of variables of the template", value)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        half = f"{name} has half of a surrogate pair, which is not a character"
        raise RefusedError("text", half, name.split('"')[1]) from None
    return value


_STOPS, _STOP = 16, 1024  # strings of `stop`, and the most characters of one
_BIASES = 1024  # tokens of `logit_bias`
_TAKEN = {"messages", "template", "add_generation_prompt"}
_DOCUMENT: Fields = {"text": _Field(_text, required=True)}
_CUT: Fields = {"truncate": _Field(_flag, True)}
_SIDES: Fields = {**_CUT, "truncation_direction": _Field(_side)}
_TEI: Fields = {**_SIDES, "model": _Field(_text)}
_SIMILAR: Fields = {**_SIDES, "prompt_name": _Field(_text)}
_VECTORS: Fields = {"dimensions": _Field(_positive), "prompt_name": _Field(_text)}

EMBEDDINGS: Fields = {
    "input": _Field(_inputs, required=True),
    "model": _Field(_text),
    "encoding_format": _Field(_one_of("float", "base64", *PRECISIONS[1:]), "float"),
    "user": _Field(_text),
    **_VECTORS,
    **_CUT,
}
"""The fields of ``/v1/embeddings`` and ``/embeddings``."""

RERANKING: Fields = {
    "query": _Field(_text, required=True),
    "documents": _Field(_documents, required=True),
    "model": _Field(_text),
    "top_n": _Field(_positive),
    "return_documents": _Field(_flag, False),
    **_CUT,
}
"""The fields of ``/v1/rerank``."""

EMBED: Fields = {
    "inputs": _Field(_inputs, required=True),
    "normalize": _Field(_flag, True),
    "precision": _Field(_one_of(*PRECISIONS), "float32"),
    **_VECTORS,
    **_TEI,
}
"""The fields of ``/embed``."""

EMBED_PARTS: Fields = {"inputs": _Field(_inputs, required=True), "prompt_name": _Field(_text), **_TEI}
"""The fields of ``/embed_sparse`` and ``/embed_all``."""

SIMILARITY: Fields = {
    "inputs": _Field(
        _object({"source_sentence": _Field(_text, required=True), "sentences": _Field(_texts, required=True)}),
        required=True,
    ),
    "parameters": _Field(_object(_SIMILAR), {name: field.default for name, field in _SIMILAR.items()}),
    "model": _Field(_text),
}
"""The fields of ``/similarity``."""

TOKENIZE: Fields = {
    "inputs": _Field(_inputs, required=True),
    "add_special_tokens": _Field(_flag, True),
    "prompt_name": _Field(_text),
    "model": _Field(_text),
}
"""The fields of ``/tokenize``."""

DECODE: Fields = {
    "ids": _Field(_ids, required=True),
    "skip_special_tokens": _Field(_flag, True),
    "model": _Field(_text),
}
"""The fields of ``/decode``."""

RERANK: Fields = {
    "query": _Field(_text, required=True),
    "texts": _Field(_texts, required=True),
    "raw_scores": _Field(_flag, False),
    "return_text": _Field(_flag, False),
    **_TEI,
}
"""The fields of ``/rerank``."""

_ABSENT = "others are not supported"
_SAMPLING: Fields = {
    "model": _Field(_text),
    "temperature": _Field(_number_from(0, 1e30, "a number from 0 on"), 1.0),
    "top_p": _Field(_number_from(0, 1, "a number from 0 to 1"), 1.0),
    "top_k": _Field(_positive),
    "min_p": _Field(_number_from(0, 1, "a number from 0 to 1"), 0.0),
    "repetition_penalty": _Field(_number_from(1e-30, 1e30, "a positive number"), 1.0),
    "seed": _Field(_integer_from(-(2**63), 2**63 - 1), 0),
    "n": _Field(_integer_from(1, 128), 1),
    "stop": _Field(_stops, []),
    "stream": _Field(_flag, False),
    "stream_options": _Field(_object({"include_usage": _Field(_flag, False)}), {"include_usage": False}),
    "presence_penalty": _Field(_number_from(-100, 100, "a number from -100 to 100"), 0.0),
    "frequency_penalty": _Field(_number_from(-100, 100, "a number from -100 to 100"), 0.0),
    "logit_bias": _Field(_biases, {}),
    "user": _Field(_text),
}

COMPLETIONS: Fields = {
    "prompt": _Field(_prompts, required=True),
    "max_tokens": _Field(_positive, 16),
    "logprobs": _Field(_integer_from(0, 20)),
    "echo": _Field(_only(False, _ABSENT), False),
    "best_of": _Field(_only(1, _ABSENT), 1),
    **_SAMPLING,
}
"""The fields of ``/v1/completions``."""

_PART: Fields = {"type": _Field(_one_of("text"), required=True), "text": _Field(_text, required=True)}
_MESSAGE: Fields = {
    "role": _Field(_text, required=True),
    "content": _Field(_content, ""),
    "name": _Field(_text),
    "refusal": _Field(_text),
    "reasoning_content": _Field(_text),
}

CHATS: Fields = {
    "messages": _Field(_messages, required=True),
    "max_tokens": _Field(_positive),
    "max_completion_tokens": _Field(_positive),
    "logprobs": _Field(_flag, False),
    "top_logprobs": _Field(_integer_from(0, 20)),
    "response_format": _Field(_only({"type": "text"}, _ABSENT)),
    "chat_template_kwargs": _Field(_variables, {}),
    **_SAMPLING,
}
"""The fields of ``/v1/chat/completions``."""

FUNCTIONS = {"sigmoid": "sigmoid", "softmax": "softmax", "none": "linear"}
"""Function of scores in huggingface_hub -> the name of the activation."""

PREDICT: Fields = {
    "inputs": _Field(_predicted, required=True),
    "raw_scores": _Field(_flag, False),
    "parameters": _Field(_object({"top_k": _Field(_positive), "function_to_apply": _Field(_one_of(*FUNCTIONS))})),
    **_TEI,
}
"""The fields of ``/predict``."""


def checked(data: Any, fields: Fields) -> dict[str, Any]:
    """Return the values of all fields; raise RefusedError, which names the field, for a wrong, missing or unknown one.

    >>> checked({"inputs": "a", "normalize": None}, EMBED)["normalize"]
    True
    >>> checked({"inputs": ["a", 1]}, EMBED)
    Traceback (most recent call last):
    ...
    mp_core.serving.errors.RefusedError: "inputs"[1] must be a string; received 1
    """
    if not isinstance(data, dict):
        raise RefusedError("malformed", f"the body must be a JSON object; received {_shown(data)}")
    return _values(data, fields)


def _values(data: dict[str, Any], fields: Fields, within: str = "") -> dict[str, Any]:
    """Return the values of all fields of an object: the body, or the one with the path `within`."""
    for name in data:
        if name not in fields:
            known = ", ".join(map(json.dumps, fields))
            unknown = f"the field {json.dumps(name[:40])}{within and f' of {within}'} is unknown"
            raise RefusedError(
                "invalid", f"{unknown}; known are {known}", within.split('"')[1] if within else name[:40]
            )
    found = {}
    for name, field in fields.items():
        value, path = data.get(name), f'{within}{within and "."}"{name}"'
        if value is None and field.required:
            raise RefusedError("invalid", f"{path} is missing", path.split('"')[1])
        found[name] = field.default if value is None else field.read(value, path)
    return found


async def read_json(request: Request, limits: Limits) -> Any:
    """Read a body as JSON, with limits of size and time.

    It raises RefusedError if the body is too long, has a Content-Encoding, arrives too slowly, is not JSON, has too
    many objects, or has an object with a duplicate key, and ClientDisconnect if the client closed the connection
    before.
    """
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        encoded = f"a body must have no Content-Encoding; received {coding[:40]}"
        raise RefusedError("coding", encoded, headers={"Accept-Encoding": "identity"})
    large = RefusedError("large", f"a body may have at most {limits.body_bytes} bytes")
    if int(request.headers.get("content-length", 0)) > limits.body_bytes:
        raise large  # the connection drops the rest
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
        return json.loads(body, object_pairs_hook=_objects(limits.texts + _OBJECTS), parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        why = str(error).partition(";")[0]  # without Python's advice on the limit of digits
        raise RefusedError("malformed", f"the body must be JSON: {why}") from None


def _objects(most: int) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return the ``object_pairs_hook`` that creates at most `most` objects.

    It refuses duplicate keys in an object, because programs disagree on which value counts.
    """
    count = itertools.count(1)

    def create(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if next(count) > most:
            raise RefusedError("large", f"a body may have at most {most} objects, as one for each text")
        found = dict(pairs)
        if len(found) < len(pairs):
            known: set[str] = set()
            twice = next(name for name, _ in pairs if name in known or known.add(name))  # type: ignore[func-returns-value]
            raise RefusedError("malformed", f"the body has the key {json.dumps(twice[:40])} twice in one object")
        return found

    return create


def _constant(word: str) -> None:
    """Refuse NaN and Infinity, which Python accepts but JSON does not have."""
    raise ValueError(f"{word} is not a JSON number")
