# The table of formats, for compiled modules.
cimport numpy as cnp

from mp_core.core.header cimport MP_FORMATS, MP_PANEL_FORMATS

cdef struct Formats:
    int known                                            # length of by_type
    signed char *by_type                                 # NumPy type number -> format; -1: no kernel reads the type
    int types[MP_FORMATS + 1]                            # format -> NumPy type number; no array has type int4
    int products[MP_FORMATS][MP_PANEL_FORMATS]           # formats of a, b -> format of the result; -1: cast one first

cdef const Formats *formats() noexcept
cdef int format_named(object dtype) except -2            # format of a name, dtype or scalar type; -1: none


cdef inline int format_of(const Formats *f, cnp.ndarray x) noexcept:
    cdef int number = cnp.PyArray_TYPE(x)
    return f.by_type[number] if number < f.known else -1
