"""Arrays in and out, and what is computed on arrays alone: dtypes, casts, matrix products, quantization.

It imports utilities and core; ops and the rooms above it may import it.
"""

from mp_core.arrays.casting import cast
from mp_core.arrays.conversion import FORMATS
from mp_core.arrays.floats import as_float, as_mask, as_vector
from mp_core.arrays.pickling import out_of_band
from mp_core.arrays.received import (
    F32,
    F64,
    I8,
    I32,
    U8,
    Array,
    asarray,
    check_out,
    contiguous,
    imported,
    imported_all,
    imported_out,
    in_order_of,
    may_overlap,
    memory_order,
    refuse_masked,
)

__all__ = [
    "F32",
    "F64",
    "FORMATS",
    "I8",
    "I32",
    "U8",
    "Array",
    "as_float",
    "as_mask",
    "as_vector",
    "asarray",
    "cast",
    "check_out",
    "contiguous",
    "imported",
    "imported_all",
    "imported_out",
    "in_order_of",
    "may_overlap",
    "memory_order",
    "out_of_band",
    "refuse_masked",
]
