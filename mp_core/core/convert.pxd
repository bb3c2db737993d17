# A cast of contiguous elements, as the entry point of casts describes it.
cimport numpy as cnp

from mp_core.core.header cimport MP_I32, mp_kernels

cdef enum:
    F64 = MP_I32 + 1  # the format of float64, a source only
    COPY = -1         # as src_format: elements are copied as they are
    CHUNK = 1024      # elements that pass through a buffer on the stack at a time, of float64 too

cdef struct Cast:
    const mp_kernels *kernels
    const char *src
    char *dst
    Py_ssize_t n, share
    int src_format, dst_format, src_size, dst_size, mode

cdef int contiguous(Cast *c) except -1
cdef int note_cast(const Cast *c, cnp.ndarray src, cnp.ndarray dst, bint is_new=*) except -1
cdef void run_line(const Cast *c, const char *src, Py_ssize_t src_stride, char *dst, Py_ssize_t dst_stride,
                   Py_ssize_t n) noexcept nogil
