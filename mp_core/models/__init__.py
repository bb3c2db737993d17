"""Models that load from the folders in which they are published; and `model_from_json`, as Keras has it here."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mp_core.models.bert import BertEncoder
from mp_core.models.classifiers import Classifier, TokenClassifier
from mp_core.models.m3 import M3Encoder, M3Vectors
from mp_core.models.model import Model
from mp_core.models.multi import MultiVectorEncoder, max_similarity
from mp_core.models.reranker import Reranker
from mp_core.models.sparse import SparseEncoder, SparseVectors
from mp_core.models.templates import Template

__all__ = [
    "BertEncoder",
    "Classifier",
    "M3Encoder",
    "M3Vectors",
    "Model",
    "MultiVectorEncoder",
    "Reranker",
    "SparseEncoder",
    "SparseVectors",
    "Template",
    "TokenClassifier",
    "max_similarity",
    "model_from_json",
]

model_from_json: Callable[..., Any]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return what Keras has in a module of this name, from :mod:`mp_core.interop.keras`, at its first use."""
        if name != "model_from_json":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("mp_core.interop.keras"), name)


def __dir__() -> list[str]:
    return __all__
