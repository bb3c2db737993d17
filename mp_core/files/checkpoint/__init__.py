"""Checkpoints: read, inspect, compare, write and convert safetensors files."""

from mp_core.files.checkpoint.coding import QUANTIZATION
from mp_core.files.checkpoint.conversion import MAX_MEMORY, convert
from mp_core.files.checkpoint.conversion_plan import RequestError, stored_as
from mp_core.files.checkpoint.errors import Threshold
from mp_core.files.checkpoint.loading import open_tensors, stored_policies
from mp_core.files.checkpoint.measure import inspect, verify
from mp_core.files.checkpoint.pool import MIN_MEMORY
from mp_core.files.checkpoint.writing import save_folder, save_tensors

__all__ = [
    "MAX_MEMORY",
    "MIN_MEMORY",
    "QUANTIZATION",
    "RequestError",
    "Threshold",
    "convert",
    "inspect",
    "open_tensors",
    "save_folder",
    "save_tensors",
    "stored_as",
    "stored_policies",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
