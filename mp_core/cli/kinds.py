"""The kinds of vectors that ``mp-core embed`` writes: how each is computed and written as JSON."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mp_core.models import TextEncoder
from mp_core.models.precision import CODES, unit_codes
from mp_core.models.texts import TextModel

__all__ = ["KINDS", "Kind", "kind_of"]


class Kind(NamedTuple):
    """A kind of vectors."""

    # ``encode(model, texts, options, on_cut, on_batch)`` -> vectors. It calls `on_cut` with the positions of
    # texts that were cut off, if any, and `on_batch` with the number of texts that are done.
    encode: Callable[[Any, list[str], argparse.Namespace, Callable[[list[int]], None], Callable[[int], object]], Any]
    entries: Callable[[Any], str]  # returns the members of the JSON object of a text, without braces
    formats: tuple[str, ...]  # the file formats that can store such vectors
    options: tuple[str, ...] = ()  # options that only this kind has


def _dense(model: TextEncoder, texts: list[str], options: argparse.Namespace, cut: Any, done: Any) -> Any:
    """Return embeddings. Each is quantized alone (--precision), so that no output line depends on the others."""
    precision = options.precision or "float32"
    embeddings = model.encode(
        texts,
        batch_size=options.batch_size,
        normalize=True if precision in CODES else options.normalize,
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        truncate_dim=options.truncate_dim,
        on_cut=cut,
        on_batch=done,
    )
    return unit_codes(embeddings, precision)


def _by_tokens(method: str, encoder: Any, texts: list[str], options: argparse.Namespace, cut: Any, done: Any) -> Any:
    """Tokenize texts and return the vectors that `method` of the encoder computes for the tokens."""
    task = {} if options.task is None else {"task": options.task}
    tokens = encoder.tokenize(texts, prompt=options.prompt, prompt_name=options.prompt_name, **task)
    if tokens.cut:
        cut(tokens.cut)
    return getattr(encoder, method)(tokens, options.batch_size, on_batch=done, **task)


def _numbers(row: Iterable[Any]) -> str:
    # str() of a float32 is its shortest exact decimal; json would write the digits of a float64.
    return f"[{', '.join(map(str, row))}]"


def _sparse_entries(vector: tuple[Any, Any]) -> str:
    indices, values = vector
    return f'"indices": {_numbers(indices)}, "values": {_numbers(values)}'


def _multi_entries(vectors: Sequence[Any]) -> str:
    return f'"embeddings": [{", ".join(map(_numbers, vectors))}]'


KINDS = {
    "dense": Kind(
        _dense,
        lambda row: f'"embedding": {_numbers(row)}',
        ("npy", "jsonl", "tsv"),
        ("normalize", "truncate_dim", "precision"),
    ),
    "sparse": Kind(partial(_by_tokens, "encode_sparse_tokens"), _sparse_entries, ("jsonl",)),
    "multi-vector": Kind(partial(_by_tokens, "encode_multi_tokens"), _multi_entries, ("jsonl",)),
}


def kind_of(encoder: TextModel, options: argparse.Namespace, chosen: str) -> Kind:
    """Return the kind of vectors that the options choose; `chosen` is the file format."""
    known = encoder.vector_kinds
    options.kind = options.kind or known[0]
    if options.kind not in known:
        raise argparse.ArgumentError(None, f"argument --kind: this model computes only {' or '.join(known)} vectors")
    kind = KINDS[options.kind]
    if chosen not in kind.formats:
        raise argparse.ArgumentError(None, f"argument --format: must be jsonl for {options.kind} vectors")
    if options.precision in CODES and options.normalize is False:
        raise argparse.ArgumentError(None, f"argument --no-normalize: not allowed with --precision {options.precision}")
    for name in {name for other in KINDS.values() for name in other.options} - {*kind.options}:
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise argparse.ArgumentError(None, f"argument {option}: not allowed with {options.kind} vectors")
    return kind
