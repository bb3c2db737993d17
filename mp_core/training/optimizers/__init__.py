"""Optimizers of Keras 3: update variables with their gradients.

A step computes all new values before it assigns them, so that a step that fails changes no variable.
"""

from typing import TYPE_CHECKING

from mp_core.training.optimizers import schedules
from mp_core.training.optimizers.adafactor import Adafactor
from mp_core.training.optimizers.adaptive import Adagrad, Adam, AdamW, RMSprop
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.composed import Adadelta, Adamax, Ftrl, Lamb, Nadam
from mp_core.training.optimizers.descent import SGD, Lion
from mp_core.training.optimizers.loss_scale import LossScaleOptimizer, wrap_optimizer
from mp_core.training.optimizers.muon import Muon
from mp_core.training.optimizers.registry import deserialize, get, serialize
from mp_core.utilities.absent import refusing

__all__ = [
    "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "LossScaleOptimizer",
    "Muon", "Nadam", "Optimizer", "RMSprop", "deserialize", "get", "schedules", "serialize", "wrap_optimizer",
]  # fmt: skip


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("optimizers", __all__)
