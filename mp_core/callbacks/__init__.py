"""What is called while a model trains: by Keras' names."""

from mp_core.callbacks.base import Callback, History, LambdaCallback
from mp_core.callbacks.calling import CallbackList
from mp_core.callbacks.keeping import BackupAndRestore, ModelCheckpoint
from mp_core.callbacks.progress import ProgbarLogger
from mp_core.callbacks.records import CSVLogger, LossCurve
from mp_core.callbacks.watching import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau, TerminateOnNaN

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "LossCurve",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "TerminateOnNaN",
]


def __dir__() -> list[str]:
    return __all__
