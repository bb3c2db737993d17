# library/rows.h as Cython sees it.
from libc.stdint cimport uint8_t

from mp_core.core.header cimport mp_activation, mp_kernels

cdef extern from "library/rows.h" nogil:
    enum:
        ROWS_WORK "MP_ROWS_WORK"

    ctypedef enum Operation "mp_row_operation":
        SOFTMAX "MP_SOFTMAX"
        LAYER_NORM "MP_LAYER_NORM"
        ACTIVATE "MP_ACTIVATE"
        RMS_NORM "MP_RMS_NORM"

    ctypedef struct Mask "mp_mask":
        const uint8_t *keep
        int axes
        Py_ssize_t *shape
        Py_ssize_t *stride

    ctypedef struct Rows "mp_row_call":
        const mp_kernels *kernels
        Operation what
        int format, size
        Py_ssize_t rows, length, ldx, ldo, share
        const char *x
        const char *residual
        char *out
        float scale, epsilon
        const float *gamma
        const float *beta
        mp_activation activation
        Mask mask
        bint failed

    void run_rows "mp_run_rows_task"(void *call, Py_ssize_t index) noexcept
    Py_ssize_t share_rows "mp_share_rows"(Rows *r, int threads)
