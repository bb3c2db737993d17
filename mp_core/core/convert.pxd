# Casts, for entry points that have filled an mp_cast.
cimport numpy as cnp

from mp_core.core.library cimport mp_cast

cdef int contiguous(mp_cast *c) except -1
cdef int note_cast(const mp_cast *c, cnp.ndarray src, cnp.ndarray dst, bint is_new=*) except -1
