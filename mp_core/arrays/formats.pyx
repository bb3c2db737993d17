"""The only table of the formats that kernels read and write: name, number, dtype, and result types of products.

Numbers are those of ``mp_format`` in core/kernels/kernels.h. float64, which is only a source of casts, has the number
``MP_F64`` of core/library/cast.h.
"""

import sys

cimport numpy as cnp
from libc.stdlib cimport malloc
from libc.string cimport memset

from mp_core.core.arrays cimport may_be_key
from mp_core.core.header cimport MP_FLOATS, MP_I8, MP_I32, MP_PANEL_FORMATS, MP_U8, mp_format_names, mp_group
from mp_core.core.library cimport MP_F64, mp_types_multiply

from mp_core.arrays.dtypes import ALLOWED, dtype_of, result_type

cnp.import_array()


def _name(int number):
    """Return the name of a format, interned, so that dictionary look-ups compare it with literals by identity."""
    return sys.intern(mp_format_names[number].decode())


# Name -> number of the formats in kernels/formats.def. FLOATS: what casts and row kernels read and write.
cdef int number
FLOATS = {_name(number): number for number in range(<int>MP_FLOATS)}
CASTS = FLOATS | {"float64": MP_F64}                         # what casts read
# Right operands of products, packed. Those in FOURS exist only packed.
PANELS = {_name(number): number for number in range(<int>MP_PANEL_FORMATS) if mp_group[number]}
FOURS = ("int4", "float4_e2m1fn")
RESULTS = FLOATS | {"int32": MP_I32}                      # results of products
NARROW = ("float8_e4m3fn", "float8_e5m2", "int8", "int4", "float4_e2m1fn")  # if B has one of these, the result has A's type

PANEL_DTYPES = {name: dtype_of(name) for name in PANELS}
RESULT_DTYPES = frozenset(ALLOWED[name] for name in RESULTS)


def _result(a, b):
    """Return the result type of a product of the formats `a` and `b`."""
    if a not in FLOATS:
        return "int32"
    return a if b in NARROW else result_type(ALLOWED[a], ALLOWED[b]).name


def _products():
    """Return (format of A, format of B) -> result type, for all pairs that the library multiplies without a cast."""
    left = FLOATS | {"int8": MP_I8, "uint8": MP_U8}
    return {(a, b): _result(a, b) for a, m in left.items() for b, n in PANELS.items()
            if mp_types_multiply(<int>m, <int>n, False)}


PRODUCTS = _products()

cdef Formats _formats
cdef dict _numbers = {}                                   # name, dtype, scalar type -> number


def _fill():
    arrays = CASTS | RESULTS | {"int8": MP_I8, "uint8": MP_U8}
    _formats.known = max([ALLOWED[name].num for name in arrays]) + 1
    _formats.by_type = <signed char *>malloc(_formats.known)
    if _formats.by_type == NULL:
        raise MemoryError
    memset(_formats.by_type, -1, _formats.known)
    memset(_formats.products, -1, sizeof(_formats.products))
    for name, number in arrays.items():
        dtype = ALLOWED[name]
        _formats.types[<int>number], _formats.by_type[<int>dtype.num] = dtype.num, number
        _numbers[name] = _numbers[dtype] = _numbers[dtype.type] = number
    for (a, b), result in PRODUCTS.items():
        _formats.products[<int>arrays[a]][<int>PANELS[b]] = RESULTS[result]


_fill()


cdef const Formats *formats() noexcept:
    return &_formats


cdef int format_named(object dtype) except -2:
    found = _numbers.get(dtype) if may_be_key(dtype) else None
    return -1 if found is None else found
