# One product: operands, epilogue and plan. products/operands.pyx describes it, and `run_product` plans and runs it;
# attention.pyx and pooling.pyx describe products of their own, and run them by `plan_product` and `run_here`.
from libc.stdint cimport int32_t

from mp_core.core.header cimport mp_gemm, mp_kernels
from mp_core.core.plan cimport Plan

cdef struct Axis:      # of the batch; strides in bytes, of a packed B in matrices
    Py_ssize_t length, a, b, out, residual

cdef struct Left:               # A, m x k
    const char *data
    int format
    Py_ssize_t size             # bytes of an element
    Py_ssize_t rs, cs           # bytes from one row, one column to the next
    const float *row_scale      # [batch][m] if common.epilogue.row_stride is 1, one value if it is 0; row_zero alike
    const int32_t *row_zero
    bint quantized_here         # A is float and becomes int8: by `scales`, row_scale or the rows' largest magnitudes
    const float *scales         # quantized_here by given scales: [k], with `zeros`; or NULL
    const int32_t *zeros

cdef struct Right:              # B, k x n
    const char *data
    int format
    Py_ssize_t rs, cs           # bytes from one row, one column to the next; of an array
    bint packed                 # B is the panels of a PackedMatrix
    Py_ssize_t matrix_bytes     # bytes of the panels of each matrix
    const int32_t *sums         # packed: [matrices][n], or NULL
    const float *scale          # [n] or NULL
    const float *group_scale    # [k / group][n], or NULL
    Py_ssize_t group            # elements of K in a scale group
    const int32_t *zero_point   # [n] or NULL

cdef struct Rows:               # m x n, unit stride along n
    char *data
    Py_ssize_t rs, size         # bytes from one row to the next; of an element

cdef struct Product:
    const mp_kernels *kernels
    Py_ssize_t m, n, k
    Left a
    Right b
    Rows out, residual
    const float *bias
    mp_gemm common              # what all calls of the kernels share
    int batch_axes
    Axis *batch
    Plan plan
    bint failed                 # a task got no scratch

cdef int run_product(Product *p, Py_ssize_t matrices) except -1
cdef void plan_product(Product *p, Py_ssize_t matrices, int threads) noexcept nogil
cdef void run_here(const Product *p, char *work) noexcept nogil
cdef int refuse_huge(Py_ssize_t k) except -1
