"""``mp-core convert --verify``: run the written model on texts and check that all outputs are finite."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mp_core.cli import options
from mp_core.cli.embed import read_texts
from mp_core.models import MultiVectorEncoder, Reranker, SparseEncoder, TextEncoder
from mp_core.models.opening import class_of
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite

__all__ = ["failures"]

_RUN: dict[type, Callable[[Any, list[str]], object]] = {
    TextEncoder: lambda model, texts: model.encode(texts),
    SparseEncoder: lambda model, texts: model.encode_sparse(texts),
    MultiVectorEncoder: lambda model, texts: model.encode_multi(texts),
    Reranker: lambda model, texts: model.predict([(text, text) for text in texts]),
}
"""Class of a model -> function that runs it on texts. A reranker scores each text against itself."""


def failures(arguments: argparse.Namespace) -> list[str]:
    """Return an empty list if all outputs of the model in OUT are finite, else one sentence with the reason.

    The argument `verify` of ``mp-core convert`` is a list of text files.
    """
    kind = class_of(Path(arguments.output))
    model = kind.from_folder(arguments.output)
    texts = list(read_texts(arguments.verify))
    options.announce(arguments, f"running {arguments.output} on {len(texts):,} texts")
    run = next(run for known, run in _RUN.items() if issubclass(kind, known))
    try:
        with nonfinite("raise"):
            run(model, texts)
    except NonFiniteError as error:
        return [f"text {error.position + 1} of --verify {error.reason}"]
    return []
