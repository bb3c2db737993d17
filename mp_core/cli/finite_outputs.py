"""``mp-core convert --verify``: the folder that was written runs on texts, and its outputs must be finite."""

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
"""Class of a model -> what runs it on texts; a reranker compares each with itself."""


def failures(arguments: argparse.Namespace) -> list[str]:
    """Return why the model in the folder OUT fails, one sentence at most.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of ``mp-core convert``; `verify` holds the names of files with texts.

    Raises
    ------
    OSError, ValueError
        A file is missing or damaged, or no model of mp_core is in the folder.
    """
    kind = class_of(Path(arguments.output))
    model = kind.from_folder(arguments.output)
    texts = list(read_texts(arguments.verify))
    options.tell(arguments, f"running {arguments.output} on {len(texts):,} texts")
    found = next(work for known, work in _RUN.items() if issubclass(kind, known))
    try:
        with nonfinite("raise"):
            found(model, texts)
    except NonFiniteError as error:
        return [f"text {error.position + 1} of --verify {error.reason}"]
    return []
