"""The kinds of vectors that ``mp-core embed`` writes: what each is computed by, and how a line of JSON says it."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from mp_core.models import BertEncoder, M3Encoder, MultiVectorEncoder, SparseEncoder
from mp_core.models.texts import Tokens, batches

__all__ = ["KINDS", "Kind", "kind_of"]


class Kind(NamedTuple):
    """A kind of vectors.

    Attributes
    ----------
    encode : callable
        Returns the vectors of texts, given a model and the options. Its last two arguments are called with the
        positions of texts that were cut off, if there are any, and with the number of texts that are done.
    entries : callable
        Returns the members of the JSON object of a text, without braces.
    formats : tuple of str
        The formats of files that can hold such vectors.
    options : tuple of str
        Options that only this kind has.
    """

    encode: Callable[[Any, list[str], argparse.Namespace, Callable[[list[int]], None], Callable[[int], object]], Any]
    entries: Callable[[Any], str]
    formats: tuple[str, ...]
    options: tuple[str, ...] = ()


def _dense(model: BertEncoder, texts: list[str], options: argparse.Namespace, cut: Any, done: Any) -> Any:
    return model.encode(
        texts,
        batch_size=options.batch_size,
        normalize=options.normalize,
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        truncate_dim=options.truncate_dim,
        on_cut=cut,
        on_batch=done,
    )


def _late(model: Any, texts: list[str], options: argparse.Namespace, cut: Any, done: Any) -> Any:
    """Return the sparse or multi-vectors of texts."""
    task = {} if options.task is None or isinstance(model, M3Encoder) else {"task": options.task}
    tokens = model.tokenize(texts, prompt=options.prompt, prompt_name=options.prompt_name, **task)
    if tokens.cut:
        cut(tokens.cut)
    vectors: dict[int, Any] = {}
    for batch in batches(tokens.rows, options.batch_size, show_progress=False):
        vectors |= zip(batch.tolist(), _late_vectors(model, tokens.taken(batch), options, task), strict=True)
        done(len(batch))
    return [vectors[position] for position in range(len(texts))]


def _late_vectors(model: Any, tokens: Tokens, options: argparse.Namespace, task: dict[str, Any]) -> Any:
    """Return the sparse or multi-vectors of the texts of a batch."""
    if isinstance(model, M3Encoder):
        every = model.encode_all_tokens(tokens, options.batch_size)
        return every.sparse if options.kind == "sparse" else every.multi
    if isinstance(model, SparseEncoder):
        return model.encode_sparse_tokens(tokens, options.batch_size, **task)
    return model.encode_multi_tokens(tokens, options.batch_size, **task)


def _numbers(row: Iterable[Any]) -> str:
    # str() of a float32 is its shortest exact decimal; json would write the digits of the float64.
    return f"[{', '.join(str(x) if isfinite(x) else 'null' for x in row)}]"


def _sparse_entries(vector: tuple[Any, Any]) -> str:
    indices, values = vector
    return f'"indices": {_numbers(indices)}, "values": {_numbers(values)}'


def _multi_entries(vectors: Sequence[Any]) -> str:
    return f'"embeddings": [{", ".join(map(_numbers, vectors))}]'


KINDS = {
    "dense": Kind(
        _dense, lambda row: f'"embedding": {_numbers(row)}', ("npy", "jsonl", "tsv"), ("normalize", "truncate_dim")
    ),
    "sparse": Kind(_late, _sparse_entries, ("jsonl",)),
    "multi-vector": Kind(_late, _multi_entries, ("jsonl",)),
}
_OF_CLASSES: dict[type, tuple[str, ...]] = {
    M3Encoder: tuple(KINDS),
    BertEncoder: ("dense",),
    SparseEncoder: ("sparse",),
    MultiVectorEncoder: ("multi-vector",),
}


def kind_of(model: Any, options: argparse.Namespace, chosen: str) -> Kind:
    """Return the kind of vectors that options ask of a model, for a format of files.

    Raises
    ------
    argparse.ArgumentError
        The message names the option.
    """
    known = _OF_CLASSES[type(model)]
    options.kind = options.kind or known[0]
    if options.kind not in known:
        raise argparse.ArgumentError(None, f"argument --kind: the model has {' or '.join(known)} vectors only")
    kind = KINDS[options.kind]
    if chosen not in kind.formats:
        raise argparse.ArgumentError(None, f"argument --format: {options.kind} vectors are written as jsonl only")
    for name in {name for other in KINDS.values() for name in other.options} - {*kind.options}:
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise argparse.ArgumentError(None, f"argument {option}: does not go with {options.kind} vectors")
    return kind
