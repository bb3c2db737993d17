# library/cast.h as Cython sees it, and casts as steps of a recording.
cimport numpy as cnp

from mp_core.core.header cimport mp_kernels

cdef extern from "library/cast.h" nogil:
    enum:
        F64 "MP_F64"
        COPY "MP_COPY"
        CHUNK "MP_CAST_CHUNK"
        CAST_WORK "MP_CAST_WORK"
        STREAMED "MP_STREAMED"

    ctypedef struct Cast "mp_cast":
        const mp_kernels *kernels
        const char *src
        char *dst
        Py_ssize_t n, share
        int src_format, dst_format, src_size, dst_size, mode

    void cast_share "mp_cast_share"(void *cast, Py_ssize_t index) noexcept
    Py_ssize_t share_cast "mp_share_cast"(Cast *c, int threads)
    void run_cast "mp_run_cast"(Cast *c, int threads)
    void cast_line "mp_cast_line"(const Cast *c, const char *src, Py_ssize_t src_stride, char *dst,
                                  Py_ssize_t dst_stride, Py_ssize_t n)

cdef int contiguous(Cast *c) except -1
cdef int note_cast(const Cast *c, cnp.ndarray src, cnp.ndarray dst, bint is_new=*) except -1
