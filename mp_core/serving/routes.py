"""What is asked and answered at each path that computes: a table of routes."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from mp_core.arrays import Array
from mp_core.serving import schema
from mp_core.serving.errors import RefusedError
from mp_core.serving.models import Encoder, Scorer, Served
from mp_core.serving.schema import Fields

__all__ = ["ROUTES", "Asked", "Route", "as_json"]


class Asked(NamedTuple):
    """What a request asks a model for.

    Attributes
    ----------
    inputs : sequence
        Texts, or pairs of texts.
    options : mapping of str to object
        How the model computes.
    """

    inputs: Sequence[Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Route:
    """A path that computes.

    Attributes
    ----------
    fields : Fields
        What its body may hold.
    kinds : tuple of str
        The kinds of models that it asks.
    ask : callable
        Returns what the fields ask a model for.
    answer : callable
        Returns the JSON of the rows of numbers, of the fields, the model and the count of tokens.
    """

    fields: Fields
    kinds: tuple[str, ...]
    ask: Callable[[Served, dict[str, Any]], Asked]
    answer: Callable[[Served, dict[str, Any], Array, dict[str, Any]], Any]


def as_json(answer: Any) -> bytes:
    """Return an answer as JSON. What a model that overflows makes infinite or NaN is null: JSON has no such numbers."""
    try:
        return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(answer), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _dimensions(served: Served, fields: dict[str, Any]) -> int | None:
    dim: int | None = fields["dimensions"]
    encoder = cast(Encoder, served)
    if dim is not None and dim > encoder.dim:
        most = f"{encoder.dim}, the length of an embedding of {served.name}"
        raise RefusedError("invalid", f'"dimensions" must be at most {most}; received {dim}', "dimensions")
    return dim


# ---- /v1, as OpenAI's and Jina's clients have it


def _ask_embeddings(served: Served, fields: dict[str, Any]) -> Asked:
    """Ask for embeddings as the folder says, or for shorter ones of length 1, as OpenAI's are."""
    dim = _dimensions(served, fields)
    return Asked(fields["input"], {"truncate_dim": dim, "normalize": None if dim is None else True})


def _answer_embeddings(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    if fields["encoding_format"] == "base64":
        vectors = [base64.b64encode(row.tobytes()).decode() for row in rows.astype("<f4", copy=False)]
    else:
        vectors = rows.tolist()
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": served.name} | usage


def _ask_reranking(served: Served, fields: dict[str, Any]) -> Asked:
    return Asked([(fields["query"], document) for document in fields["documents"]], {})


def _answer_reranking(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": fields["documents"][index]}} if fields["return_documents"] else {})
        for index, score in _ranked(rows)[: fields["top_n"]]
    ]
    return {"object": "list", "model": served.name, "results": results} | usage


# ---- as text-embeddings-inference has it


def _ask_embed(served: Served, fields: dict[str, Any]) -> Asked:
    return Asked(fields["inputs"], {"truncate_dim": _dimensions(served, fields), "normalize": fields["normalize"]})


def _answer_embed(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return rows.tolist()


def _ask_sparse(served: Served, fields: dict[str, Any]) -> Asked:
    return Asked(fields["inputs"], {"kind": "sparse"})


def _answer_sparse(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return [
        [{"index": index, "value": value} for index, value in zip(indices.tolist(), values.tolist(), strict=True)]
        for indices, values in rows
    ]


def _ask_all(served: Served, fields: dict[str, Any]) -> Asked:
    return Asked(fields["inputs"], {"kind": "multi-vector"})


def _answer_all(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return [vectors.tolist() for vectors in rows]


def _activation(served: Served, fields: dict[str, Any]) -> dict[str, Any]:
    if fields["raw_scores"]:
        return {"activation": "linear"}
    return {"activation": "sigmoid" if served.kind == "reranker" else "softmax"}


def _ask_rerank(served: Served, fields: dict[str, Any]) -> Asked:
    return Asked([(fields["query"], text) for text in fields["texts"]], _activation(served, fields))


def _answer_rerank(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return [
        {"index": index, "score": score} | ({"text": fields["texts"][index]} if fields["return_text"] else {})
        for index, score in _ranked(rows)
    ]


def _ask_predict(served: Served, fields: dict[str, Any]) -> Asked:
    inputs = fields["inputs"]
    return Asked(inputs if isinstance(inputs, list) else [inputs], _activation(served, fields))


def _answer_predict(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    labels = cast(Scorer, served).labels
    told = [
        [{"score": score, "label": labels[index]} for index, score in _ranked(row)]
        for row in rows.reshape(len(rows), len(labels))
    ]
    return told if isinstance(fields["inputs"], list) else told[0]


def _ranked(scores: Array) -> list[tuple[int, float]]:
    """Return the positions of scores and the scores, the best first, of equal ones the earlier."""
    return [(int(index), float(scores[index])) for index in np.argsort(-scores, kind="stable")]


_SCORING = ("reranker", "classifier")

ROUTES: Mapping[str, Route] = {
    "/v1/embeddings": Route(schema.EMBEDDINGS, ("encoder",), _ask_embeddings, _answer_embeddings),
    "/v1/rerank": Route(schema.RERANKING, ("reranker",), _ask_reranking, _answer_reranking),
    "/embed": Route(schema.EMBED, ("encoder",), _ask_embed, _answer_embed),
    "/embed_sparse": Route(schema.EMBED_PARTS, ("sparse",), _ask_sparse, _answer_sparse),
    "/embed_all": Route(schema.EMBED_PARTS, ("multi-vector",), _ask_all, _answer_all),
    "/rerank": Route(schema.RERANK, ("reranker",), _ask_rerank, _answer_rerank),
    "/predict": Route(schema.PREDICT, _SCORING, _ask_predict, _answer_predict),
}
"""Path -> what is asked and answered there."""
