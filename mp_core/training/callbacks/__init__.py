"""Keras' callbacks: objects whose methods are called during training, evaluation and prediction."""

from typing import TYPE_CHECKING

from mp_core.training.callbacks.averages import SwapEMAWeights
from mp_core.training.callbacks.base import Callback, History, LambdaCallback
from mp_core.training.callbacks.calling import CallbackList
from mp_core.training.callbacks.keeping import BackupAndRestore, ModelCheckpoint
from mp_core.training.callbacks.progress import ProgbarLogger
from mp_core.training.callbacks.rates import LearningRateScheduler, ReduceLROnPlateau
from mp_core.training.callbacks.records import CSVLogger, LossCurve
from mp_core.training.callbacks.watching import EarlyStopping, MonitorCallback, TerminateOnNaN
from mp_core.utilities.absent import refusing

__all__ = [
    "BackupAndRestore", "CSVLogger", "Callback", "CallbackList", "EarlyStopping", "History", "LambdaCallback",
    "LearningRateScheduler", "LossCurve", "ModelCheckpoint", "MonitorCallback", "ProgbarLogger", "ReduceLROnPlateau",
    "SwapEMAWeights", "TerminateOnNaN",
]  # fmt: skip


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("callbacks", __all__)
