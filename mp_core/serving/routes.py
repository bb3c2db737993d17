"""The table of routes: for each path with a body, the inputs of the model and the answer."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.models.pieces import TooManyTokensError
from mp_core.models.precision import CODES, unit_codes
from mp_core.models.reranker import ranked
from mp_core.serving import schema
from mp_core.serving.completions import COMPLETIONS, Form
from mp_core.serving.errors import RefusedError
from mp_core.serving.models import KINDS, Encoder, Scorer, Served
from mp_core.serving.schema import Fields

__all__ = ["ROUTES", "ByKind", "ModelInputs", "Route", "Unqueued"]


class ModelInputs(NamedTuple):
    """A request to a model."""

    inputs: Sequence[Any]  # texts, or pairs of texts
    options: Mapping[str, Any]  # the options of the computation


@dataclass(frozen=True, slots=True)
class Route:
    """A path at which a model computes."""

    fields: Fields  # the fields of its body
    kinds: tuple[str, ...]  # the kinds of models that it uses
    ask: Callable[[Served, dict[str, Any]], ModelInputs]  # (model, fields) -> :class:`ModelInputs`
    # (model, fields, rows of numbers, usage) -> the answer, for :func:`mp_core.serving.portions.json_portions`
    answer: Callable[[Served, dict[str, Any], Array, dict[str, Any]], Any]
    within: str | None = None  # The field that contains the options of tokenization. Default: the body itself.


@dataclass(frozen=True, slots=True)
class Unqueued:
    """A path that only needs the tokenizer, and so bypasses the queue."""

    fields: Fields  # fields, kinds: those of :class:`Route`
    kinds: tuple[str, ...]
    inputs: str  # the field with the texts
    # (model, fields, most) -> (results, number of tokens); raises TooManyTokensError for more than `most` tokens
    work: Callable[[Served, dict[str, Any], int], tuple[list[Any], int]]
    answer: Callable[[list[Any]], Any]  # results -> the answer
    bytes: int  # memory for each token until it is answered


@dataclass(frozen=True, slots=True)
class ByKind:
    """A path that redirects to another one, depending on the kind of model."""

    paths: Mapping[str, str]  # kind of the model -> path
    objects: Mapping[str, str]  # the same if ``inputs`` is an object

    def route(self, served: Served, data: Any) -> Route:
        """Return the route for a model and the JSON of a body."""
        given = isinstance(data, dict) and isinstance(data.get("inputs"), dict)
        path = self.objects.get(served.kind) if given else None
        return cast(Route, ROUTES[path or self.paths[served.kind]])


_LOGITS = {"activation": "linear"}
"""The option for scores before the activation. Ranking uses them, since the activation may round several to 1."""


def _dimensions(served: Served, fields: dict[str, Any]) -> int | None:
    dim: int | None = fields["dimensions"]
    encoder = cast(Encoder, served)
    if dim is not None and dim > encoder.dim:
        most = f"{encoder.dim}, the length of an embedding of {served.name}"
        raise RefusedError("invalid", f'"dimensions" must be at most {most}; received {dim}', "dimensions")
    return dim


# ---- /v1, for clients of OpenAI and Jina


def _ask_embeddings(served: Served, fields: dict[str, Any]) -> ModelInputs:
    """Ask for embeddings with the folder's normalization; shorter ones and codes are normalized, as by OpenAI."""
    dim = _dimensions(served, fields)
    of_length_1 = dim is not None or fields["encoding_format"] in CODES
    return ModelInputs(fields["input"], {"truncate_dim": dim, "normalize": True if of_length_1 else None})


def _answer_embeddings(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    vectors: Any = rows
    if fields["encoding_format"] == "base64":
        vectors = [base64.b64encode(row.tobytes()).decode() for row in rows.astype("<f4", copy=False)]
    elif fields["encoding_format"] != "float":
        vectors = unit_codes(rows, fields["encoding_format"])
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": served.name} | usage


def _ask_reranking(served: Served, fields: dict[str, Any]) -> ModelInputs:
    return ModelInputs([(fields["query"], document) for document in fields["documents"]], _LOGITS)


def _answer_reranking(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": fields["documents"][index]}} if fields["return_documents"] else {})
        for index, score in ranked(rows, cast(Scorer, served).default)[: fields["top_n"]]
    ]
    return {"object": "list", "model": served.name, "results": results} | usage


# ---- for clients of text-embeddings-inference


def _ask_embed(served: Served, fields: dict[str, Any]) -> ModelInputs:
    if fields["precision"] in CODES and not fields["normalize"]:
        why = f'with "precision" {json.dumps(fields["precision"])}, whose codes are for numbers from -1 to 1'
        raise RefusedError("invalid", f'"normalize" must be true {why}; received false', "normalize")
    return ModelInputs(
        fields["inputs"], {"truncate_dim": _dimensions(served, fields), "normalize": fields["normalize"]}
    )


def _answer_embed(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return unit_codes(rows, fields["precision"])


def _ask_similarity(served: Served, fields: dict[str, Any]) -> ModelInputs:
    texts = [fields["inputs"]["source_sentence"], *fields["inputs"]["sentences"]]
    return ModelInputs(texts, {"truncate_dim": None, "normalize": True})


def _answer_similarity(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return ops.matmul(rows[1:], rows[0])


def _ask_sparse(served: Served, fields: dict[str, Any]) -> ModelInputs:
    return ModelInputs(fields["inputs"], {"kind": "sparse"})


def _answer_sparse(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return (
        [{"index": index, "value": value} for index, value in zip(indices.tolist(), values.tolist(), strict=True)]
        for indices, values in rows
    )


def _ask_all(served: Served, fields: dict[str, Any]) -> ModelInputs:
    return ModelInputs(fields["inputs"], {"kind": "multi-vector"})


def _answer_all(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return rows


def _ask_rerank(served: Served, fields: dict[str, Any]) -> ModelInputs:
    return ModelInputs([(fields["query"], text) for text in fields["texts"]], _LOGITS)


def _answer_rerank(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    return [
        {"index": index, "score": score} | ({"text": fields["texts"][index]} if fields["return_text"] else {})
        for index, score in ranked(rows, activations.get("linear" if fields["raw_scores"] else "sigmoid"))
    ]


def _ask_predict(served: Served, fields: dict[str, Any]) -> ModelInputs:
    if fields["raw_scores"] and (fields["parameters"] or {}).get("function_to_apply"):
        both = '"raw_scores" and "function_to_apply" of "parameters" exclude each other; received both'
        raise RefusedError("invalid", both, "raw_scores")
    inputs = fields["inputs"]
    return ModelInputs(inputs if isinstance(inputs, list) else [inputs], _LOGITS)


def _answer_predict(served: Served, fields: dict[str, Any], rows: Array, usage: dict[str, Any]) -> Any:
    """Answer like text-embeddings-inference; with ``parameters``, a list per text, as for huggingface_hub's client."""
    scorer, parameters = cast(Scorer, served), fields["parameters"] or {}
    function = parameters.get("function_to_apply") or ("none" if fields["raw_scores"] else None)
    activation = scorer.probabilities if function is None else activations.get(schema.FUNCTIONS[function])
    most = parameters.get("top_k")
    answers = (
        [{"score": score, "label": scorer.labels[index]} for index, score in ranked(row, activation)[:most]]
        for row in rows.reshape(len(rows), len(scorer.labels))
    )
    return answers if isinstance(fields["inputs"], list) or fields["parameters"] is not None else next(answers)


def _pieces(served: Served, fields: dict[str, Any], most: int) -> tuple[list[Any], int]:
    rows = served.pieces(fields["inputs"], fields["prompt_name"], fields["add_special_tokens"], most)
    return rows, sum(map(len, rows))


def _answer_pieces(rows: list[Any]) -> Any:
    return ((piece._asdict() for piece in row) for row in rows)


def _decoded(served: Served, fields: dict[str, Any], most: int) -> tuple[list[Any], int]:
    count = sum(map(len, fields["ids"]))
    if count > most:
        raise TooManyTokensError(count)
    return served.decode(fields["ids"], fields["skip_special_tokens"]), count


_EMBEDDINGS = Route(schema.EMBEDDINGS, ("encoder",), _ask_embeddings, _answer_embeddings)

ROUTES: Mapping[str, Route | Unqueued | ByKind | Form] = {
    **COMPLETIONS,
    "/v1/embeddings": _EMBEDDINGS,
    "/embeddings": _EMBEDDINGS,
    "/v1/rerank": Route(schema.RERANKING, ("reranker",), _ask_reranking, _answer_reranking),
    "/embed": Route(schema.EMBED, ("encoder",), _ask_embed, _answer_embed),
    "/embed_sparse": Route(schema.EMBED_PARTS, ("sparse",), _ask_sparse, _answer_sparse),
    "/embed_all": Route(schema.EMBED_PARTS, ("multi-vector",), _ask_all, _answer_all),
    "/similarity": Route(schema.SIMILARITY, ("encoder",), _ask_similarity, _answer_similarity, "parameters"),
    "/rerank": Route(schema.RERANK, ("reranker",), _ask_rerank, _answer_rerank),
    "/predict": Route(schema.PREDICT, ("reranker", "classifier"), _ask_predict, _answer_predict),
    "/tokenize": Unqueued(schema.TOKENIZE, KINDS, "inputs", _pieces, _answer_pieces, 500),
    "/decode": Unqueued(schema.DECODE, KINDS, "ids", _decoded, list, 100),
    "/": ByKind(
        {
            "encoder": "/embed",
            "sparse": "/embed_sparse",
            "multi-vector": "/embed_all",
            "reranker": "/rerank",
            "classifier": "/predict",
        },
        {"encoder": "/similarity"},
    ),
}
"""Path -> its route."""
