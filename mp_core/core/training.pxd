# The headers of library/ that only training needs; the others are in library.pxd.
from libc.stdint cimport int32_t, uint32_t, uint64_t

from mp_core.core.library cimport mp_attention, mp_head_strides, mp_pool

cdef extern from "library/taken_rows.h" nogil:
    ctypedef struct mp_taken_rows:
        const char *x
        int format, index_bytes
        Py_ssize_t stride
        const char *indices
        float *out
        Py_ssize_t rows, limit, n

cdef extern from "library/windows.h" nogil:
    ctypedef struct mp_windows:
        const char *x
        int format, size
        float *to
        int axes
        Py_ssize_t *shape
        Py_ssize_t *stride

    void mp_join_windows(mp_windows *w)

cdef extern from "library/random.h" nogil:
    ctypedef enum mp_random_kind:
        MP_DROPOUT, MP_UNIFORM, MP_NORMAL, MP_ROUND_RANDOMLY, MP_NEXT_KEY

    ctypedef struct mp_rounding:
        const uint32_t *key
        uint64_t *stream
        int format, mode

    ctypedef struct mp_random:
        mp_random_kind kind
        const uint32_t *key
        const int32_t *rows_before
        const char *x
        char *out
        int format, size, out_size
        mp_rounding rounding
        uint64_t least
        float factor
        int axes
        Py_ssize_t *shape
        Py_ssize_t *step

cdef extern from "library/pooling.h" nogil:
    ctypedef struct mp_pooling_gradient:
        mp_pool how
        const char *x
        char *out
        int format, size
        const float *d
        Py_ssize_t d_stride
        const int32_t *offsets
        Py_ssize_t sequences, rows, width, skipped

cdef extern from "library/attention_gradient.h" nogil:
    ctypedef struct mp_head_array:
        char *data
        mp_head_strides by

    ctypedef struct mp_attention_gradient:
        mp_attention forward
        mp_head_array d, query, key, value, bias
        float scale
        bint sums_sequences, sums_heads
        Py_ssize_t rows
