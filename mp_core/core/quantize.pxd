# library/quantize.h as Cython sees it.
from libc.stdint cimport int32_t, uint8_t

from mp_core.core.header cimport mp_kernels

cdef extern from "library/quantize.h" nogil:
    ctypedef enum ScalesFrom "mp_scales_from":
        GIVEN "MP_GIVEN"
        SYMMETRIC "MP_SYMMETRIC"
        POSITIVE "MP_POSITIVE"
        ASYMMETRIC "MP_ASYMMETRIC"

    enum:
        QUANTIZE_WORK "MP_QUANTIZE_WORK"

    ctypedef struct Layout "mp_scale_layout":
        Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups
        bint by_column

    ctypedef struct Codes "mp_codes_kind":
        int kind
        bint nibbles
        int32_t qmin, qmax
        float largest

    ctypedef struct Quantization "mp_quantization":
        const mp_kernels *kernels
        Layout layout
        Codes codes
        ScalesFrom how
        bint back
        int mode, format
        Py_ssize_t size
        char *x
        uint8_t *q
        float *scale
        int32_t *zero_point

    int run_quantization "mp_run_quantization"(Quantization *z, int threads)
