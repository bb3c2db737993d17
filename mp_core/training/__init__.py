"""Models that train: Keras' Model, Functional and Sequential, with compile, fit, evaluate and predict."""

from mp_core.layers.symbolic import Input, KerasTensor
from mp_core.training.models import Functional, Model, Sequential
from mp_core.training.trainer import Trainer

__all__ = ["Functional", "Input", "KerasTensor", "Model", "Sequential", "Trainer"]


def __dir__() -> list[str]:
    return __all__
