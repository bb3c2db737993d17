# One product as matmul.pyx describes it.
from libc.stdint cimport int32_t

from mp_core.core.header cimport MP_I4, mp_gemm, mp_kernels

cdef enum:
    A_U8 = MP_I4  # as the format of a, which is never int4

cdef struct Axis:      # of the batch; strides in bytes, of a packed b in matrices
    Py_ssize_t length, a, b, out, residual


cdef struct Product:   # what every task reads; strides in bytes
    const mp_kernels *kernels
    int arithmetic, a_format, b_format
    Py_ssize_t m, n, k
    const char *a
    Py_ssize_t a_rs, a_cs, a_size
    bint a_direct               # a is read in place: rows with unit stride, of the type that the kernel reads
    const char *b
    Py_ssize_t b_rs, b_cs
    bint packed                 # b is a PackedMatrix's panels
    bint decoded                # ... in a format that is multiplied after it was decoded into scratch
    bint in_place               # the kernel reads rows of b as they lie,
    bint turned                 # or contiguous columns
    bint tiled                  # tiles of panels are multiplied
    bint fetched                # the next range is fetched: rows of b, columns or a panel (choose_way)
    Py_ssize_t matrix_bytes     # packed
    const int32_t *sums         # packed: [matrices][n], or NULL
    bint sums_wanted
    const float *bias
    const float *scale          # by column
    const float *group_scale    # [groups][n], by column and `group` elements of k
    Py_ssize_t group
    const int32_t *col_zero
    const float *row_scale      # [batch][m] if common.row_step, else one value; so is row_zero
    const int32_t *row_zero
    char *out
    Py_ssize_t out_rs, out_size
    bint quantized_here         # a is float and becomes int8: by the steps of its columns, by row_scale or by its own
    const float *steps          # [k], and what stands for 0; or NULL
    const int32_t *zeros
    const char *residual
    Py_ssize_t residual_rs, residual_size
    mp_gemm common              # what all kernel calls share
    int batch_axes
    Axis *batch
    # The schedule.
    Py_ssize_t row_chunk, row_chunks, panel_chunk, panel_chunks
    Py_ssize_t step             # of k in a kernel call: whole blocks, or part of one
    Py_ssize_t together         # panels in work before k advances
    Py_ssize_t tail             # rows at the end of k that are not read in place
    Py_ssize_t copy_bytes, gather_bytes, acc_bytes, chain_bytes, block_bytes, decoded_bytes, sums_bytes, row_sums_bytes
    Py_ssize_t scale_bytes, scratch_bytes
    Py_ssize_t row_scale_bytes
    bint failed

cdef int arithmetic_of(int a_format, int b_format) noexcept nogil
cdef int multiply(Product *p, Py_ssize_t matrices) except -1
