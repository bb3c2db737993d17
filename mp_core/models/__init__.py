"""Text models that load from published folders, and Keras' model classes and functions under their Keras names.

It imports training and the rooms below it; interop, serving and cli may import it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mp_core.models.classifiers import Classifier, TokenClassifier
from mp_core.models.generation import Generated, Generator, Perplexity, Sampling
from mp_core.models.m3 import M3Encoder, M3Vectors
from mp_core.models.multi import MultiVectorEncoder, max_similarity
from mp_core.models.network import TextNetwork
from mp_core.models.reranker import Reranker
from mp_core.models.sparse import SparseEncoder, SparseVectors
from mp_core.models.templates import Template
from mp_core.models.text_encoder import BertEncoder, TextEncoder

if TYPE_CHECKING:
    from mp_core.programs import ProgramModel
    from mp_core.training.models import Functional, Model
    from mp_core.training.sequential import Sequential

    clone_model: Callable[..., Model]
    load_model: Callable[..., Model]
    model_from_json: Callable[..., Model]
    save_model: Callable[..., None]

__all__ = [
    "BertEncoder",
    "Classifier",
    "Functional",
    "Generated",
    "Generator",
    "M3Encoder",
    "M3Vectors",
    "Model",
    "MultiVectorEncoder",
    "Perplexity",
    "ProgramModel",
    "Reranker",
    "Sampling",
    "Sequential",
    "SparseEncoder",
    "SparseVectors",
    "Template",
    "TextEncoder",
    "TextNetwork",
    "TokenClassifier",
    "clone_model",
    "load_model",
    "max_similarity",
    "model_from_json",
    "save_model",
]

_LATER = {
    **dict.fromkeys(("Functional", "Model"), "training.models"),
    "Sequential": "training.sequential",
    **dict.fromkeys(("load_model", "save_model"), "training.saving"),
    "clone_model": "training.saving.cloning",
    "model_from_json": "training.saving.text",
    "ProgramModel": "programs",
}
"""Name -> the module of mp_core that defines it. The module is imported at the first use."""

if not TYPE_CHECKING:  # so that type checkers report names that are not imported above

    def __getattr__(name: str) -> Any:
        """Return a name that another module defines."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"mp_core.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
