"""The first steps of every operation: convert arguments to arrays, check `out`, cast."""

from mp_core.arrays.casting import cast
from mp_core.arrays.conversion import FORMATS
from mp_core.arrays.floats import as_float, as_mask, as_vector, contiguous
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
    imported,
    imported_all,
    imported_out,
    may_overlap,
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
    "may_overlap",
    "out_of_band",
    "refuse_masked",
]
