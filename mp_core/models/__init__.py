"""Models that load from the folders in which they are published."""

from mp_core.models.bert import BertEncoder
from mp_core.models.classifiers import Classifier, TokenClassifier
from mp_core.models.model import Model
from mp_core.models.reranker import Reranker
from mp_core.models.templates import Template

__all__ = ["BertEncoder", "Classifier", "Model", "Reranker", "Template", "TokenClassifier"]


def __dir__() -> list[str]:
    return __all__
