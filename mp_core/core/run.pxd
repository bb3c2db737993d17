# library/product.h as Cython sees it, and how a product is run from Python.
cimport numpy as cnp
from libc.stdint cimport int32_t

from mp_core.core.header cimport mp_gemm, mp_kernels
from mp_core.core.plan cimport Plan

cdef extern from "library/product.h" nogil:
    ctypedef struct Axis "mp_axis":
        Py_ssize_t length, a, b, out, residual

    ctypedef struct Left "mp_left":
        const char *data
        int format
        Py_ssize_t size, rs, cs
        const float *row_scale
        const int32_t *row_zero
        bint quantized_here
        const float *scales
        const int32_t *zeros

    ctypedef struct Right "mp_right":
        const char *data
        int format
        Py_ssize_t rs, cs
        bint packed
        Py_ssize_t matrix_bytes
        const int32_t *sums
        const float *scale
        const float *group_scale
        Py_ssize_t group
        const int32_t *zero_point

    ctypedef struct Rows "mp_lines":
        char *data
        Py_ssize_t rs, size

    ctypedef struct Product "mp_product":
        const mp_kernels *kernels
        Py_ssize_t m, n, k
        Left a
        Right b
        Rows out, residual
        const float *bias
        mp_gemm common
        bint reproducible
        int batch_axes
        Axis *batch
        Plan plan
        bint failed

    void turn_column "mp_turn_column"(Product *p)
    void plan_product "mp_plan_product"(Product *p, Py_ssize_t matrices, int threads)
    Py_ssize_t tasks_of "mp_product_tasks"(const Product *p, Py_ssize_t matrices)
    void run_task "mp_run_product_task"(void *product, Py_ssize_t index) noexcept
    void run_planned "mp_run_product"(Product *p, Py_ssize_t matrices, int threads)
    void run_here "mp_run_here"(const Product *p, char *work)

cdef int run_product(Product *p, Py_ssize_t matrices, cnp.ndarray result) except -1
cdef int refuse_huge(Py_ssize_t k) except -1
