"""Optimizers: how gradients change variables, as in Keras 3.

A step computes all new values first and assigns them at the end, so one that fails changes no variable.
"""

from mp_core.optimizers import schedules
from mp_core.optimizers.adafactor import Adafactor
from mp_core.optimizers.adaptive import Adagrad, Adam, AdamW, RMSprop
from mp_core.optimizers.base import Optimizer
from mp_core.optimizers.composed import Adadelta, Adamax, Ftrl, Lamb, Nadam
from mp_core.optimizers.descent import SGD, Lion
from mp_core.optimizers.loss_scale import LossScaleOptimizer, wrap_optimizer
from mp_core.optimizers.muon import Muon
from mp_core.optimizers.registry import deserialize, get, serialize

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "LossScaleOptimizer",
    "Muon",
    "Nadam",
    "Optimizer",
    "RMSprop",
    "deserialize",
    "get",
    "schedules",
    "serialize",
    "wrap_optimizer",
]


def __dir__() -> list[str]:
    return __all__
