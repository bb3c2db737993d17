"""Models that train: Keras' Model, Functional and Sequential, with compile, fit, evaluate and predict.

The methods that train import the modules of training, so that a model for inference does not load them.
"""

from mp_core.layers.input_layer import Input
from mp_core.layers.symbols import KerasTensor
from mp_core.training.models import Functional, Model
from mp_core.training.sequential import Sequential
from mp_core.training.trainer import Trainer

__all__ = ["Functional", "Input", "KerasTensor", "Model", "Sequential", "Trainer"]


def __dir__() -> list[str]:
    return __all__
