"""Keras 3: convert its models to layers of mp_core, and accelerate its NumPy backend.

:func:`from_keras` needs Keras; :func:`load_keras` reads files of Keras without it.
"""

from mp_core.interop.keras.acceleration import accelerate, accelerated
from mp_core.interop.keras.models import from_keras
from mp_core.training.saving.cloning import clone_model
from mp_core.training.saving.reading import load_keras, load_model
from mp_core.training.saving.text import model_from_json

__all__ = [
    "accelerate",
    "accelerated",
    "clone_model",
    "from_keras",
    "load_keras",
    "load_model",
    "model_from_json",
]
