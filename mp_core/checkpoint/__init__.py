"""Checkpoints: safetensors files read, inspected, compared, and converted to smaller types."""

from mp_core.checkpoint.convert import MAX_MEMORY, convert_file
from mp_core.checkpoint.errors import Threshold
from mp_core.checkpoint.loading import open_tensors
from mp_core.checkpoint.measure import inspect_file, verify_files
from mp_core.checkpoint.plan import POLICIES, Granularity, RequestError, stored_as
from mp_core.checkpoint.pool import MIN_MEMORY
from mp_core.checkpoint.tensors import QUANTIZATION

__all__ = [
    "MAX_MEMORY",
    "MIN_MEMORY",
    "POLICIES",
    "QUANTIZATION",
    "Granularity",
    "RequestError",
    "Threshold",
    "convert_file",
    "inspect_file",
    "open_tensors",
    "stored_as",
    "verify_files",
]
