"""Fine-tuning of encoders and rerankers: examples of texts, losses of vectors, and the training of a folder's model."""

from mp_core.training.losses.texts import (
    MSE,
    CoSENT,
    CosineSimilarity,
    MarginMSE,
    Matryoshka,
    MultipleNegatives,
    Triplet,
    get,
)

__all__ = ["MSE", "CoSENT", "CosineSimilarity", "MarginMSE", "Matryoshka", "MultipleNegatives", "Triplet", "get"]


def __dir__() -> list[str]:
    return __all__
