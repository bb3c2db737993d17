"""Quantized embeddings, as from ``quantize_embeddings`` of sentence-transformers."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.utilities.docstrings import shown

__all__ = ["CODES", "PRECISIONS", "UNIT_RANGES", "unit_codes", "with_precision"]

CODES = ("int8", "uint8")
"""The precisions whose codes depend on the range of each dimension."""

PRECISIONS = ("float32", *CODES, "binary", "ubinary")
"""All precisions. The last two pack eight bits ``x > 0`` into a byte; ``"binary"`` subtracts 128 from each byte."""


@shown('{}(np.array([[0.5, -1, 1, 0]], np.float32), "ubinary").tolist()', "[[160]]")
def with_precision(embeddings: Array, precision: str, ranges: Any = None) -> Array:
    """Return float32 embeddings, shape (n, dim), in one of `PRECISIONS`.

    For int8 and uint8, `ranges` of shape (2, dim) or (2, 1) hold the numbers with the smallest and the largest code.
    They default to the minimum and the maximum of the embeddings in each dimension, which a single embedding does not
    have.
    """
    if precision == "float32":
        return embeddings
    if precision not in CODES:
        bits = np.packbits(embeddings > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if ranges is None:
        if len(embeddings) == 1:
            several = "several texts: the range of each number is that of their embeddings"
            raise ValueError(f'`precision` "{precision}" needs {several}; received 1')
        ranges = [embeddings.min(axis=0, initial=np.inf), embeddings.max(axis=0, initial=-np.inf)]
    least, largest = np.asarray(ranges, np.float32)
    step = (largest - least) / np.float32(255)
    codes: Array = np.clip(np.floor((embeddings - least) / np.where(step == 0, np.float32(1), step)), 0, 255)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)


UNIT_RANGES = np.array([[-128.5 / 127], [126.5 / 127]], np.float32)
"""The ranges for which a code of int8 is ``round(127 * x)`` for x from -1 to 1; uint8 adds 128."""


@shown('{}(np.array([[0.6, -0.8, 0]], np.float32), "int8").tolist()', "[[76, -102, 0]]")
def unit_codes(embeddings: Array, precision: str) -> Array:
    """Return embeddings of length 1 in a precision, with `UNIT_RANGES`: no embedding affects the codes of another."""
    return with_precision(embeddings, precision, UNIT_RANGES)
