"""Models that load from the folders in which they are published."""

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
]


def __dir__() -> list[str]:
    return __all__
