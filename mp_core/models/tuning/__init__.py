"""Fine-tuning of encoders and rerankers: examples, losses and training."""

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
