# The table of formats, as the compiled modules ask it.
cimport numpy as cnp

from mp_core.core.header cimport MP_FORMATS, MP_PANEL_FORMATS

cdef struct Formats:
    int known                                            # length of by_type
    signed char *by_type                                 # NumPy's number of a type -> format, -1: no kernel knows it
    int types[MP_FORMATS + 1]                            # format -> NumPy's number; int4 is no type of arrays
    int products[MP_FORMATS][MP_PANEL_FORMATS]           # formats of a and b -> of the result, -1: one needs a cast

cdef const Formats *formats() noexcept
cdef int format_named(object dtype) except -2            # of a name, a dtype or a scalar type; -1: in no table


cdef inline int format_of(const Formats *f, cnp.ndarray x) noexcept:
    cdef int number = cnp.PyArray_TYPE(x)
    return f.by_type[number] if number < f.known else -1
