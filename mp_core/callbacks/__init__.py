"""What is called while a model trains: by Keras' names."""

from mp_core.callbacks.base import Callback, CallbackList, History, LambdaCallback
from mp_core.callbacks.keeping import BackupAndRestore, ModelCheckpoint
from mp_core.callbacks.progress import ProgbarLogger
from mp_core.callbacks.watching import EarlyStopping, LearningRateScheduler, TerminateOnNaN

__all__ = [
    "BackupAndRestore",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "TerminateOnNaN",
]


def __dir__() -> list[str]:
    return __all__
