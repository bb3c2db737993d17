"""One row for each of several sequences, whose rows lie one behind the other: a mean, a maximum, or one of them."""

cimport numpy as cnp
from libc.math cimport INFINITY, sqrtf
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, reproducible_here, scratch, threads_for
from mp_core.core.header cimport MP_F32, mp_element_bytes
from mp_core.core.plan cimport this_machine
from mp_core.core.run cimport Product, plan_product, refuse_huge, run_here
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

cnp.import_array()

cdef enum:
    MEAN
    MEAN_BY_ROOT                # the sum over the root of the number of rows
    MEAN_BY_PLACE               # the rows count 1, 2, 3, ... times
    FIRST
    LAST
    LARGEST

POOLINGS = {"mean": MEAN, "mean_sqrt_len_tokens": MEAN_BY_ROOT, "weightedmean": MEAN_BY_PLACE, "cls": FIRST,
            "lasttoken": LAST, "max": LARGEST}

cdef struct Pool:
    Product sums                # of the first sequence: weights @ rows
    const int32_t *offsets      # [sequences + 1]
    int how
    Py_ssize_t sequences, skipped
    bint failed


cdef bint add_rows(Product *sums, int how, Py_ssize_t skipped) noexcept nogil:
    """A mean of the rows; False if there is no memory."""
    cdef float *out = <float *>sums.out.data
    cdef Py_ssize_t column
    cdef float count = <float>(sums.k - skipped)
    cdef char *work
    plan_product(sums, 1, 1)
    work = <char *>scratch(sums.plan.scratch.total)
    if work == NULL:
        return False
    run_here(sums, work)
    if how == MEAN_BY_ROOT:
        count = sqrtf(count)
    elif how == MEAN_BY_PLACE:
        count = <float>((sums.k * (sums.k + 1) - skipped * (skipped + 1)) // 2)
    for column in range(sums.n):
        out[column] /= count
    return True


cdef void widen_row(const Product *sums, Py_ssize_t row, float *out) noexcept nogil:
    if sums.b.format == MP_F32:
        memcpy(out, sums.b.data + row * sums.b.rs, sums.n * 4)
    else:
        sums.kernels.casts.widen[sums.b.format](sums.b.data + row * sums.b.rs, out, sums.n, 0)


cdef bint find_largest(const Product *sums, Py_ssize_t skipped) noexcept nogil:
    """The largest element of each column, NaN if there is one, +0 for a zero; False if there is no memory."""
    cdef float *out = <float *>sums.out.data
    cdef float *line = <float *>scratch(sums.n * 4)
    cdef Py_ssize_t row, column
    if line == NULL:
        return False
    for column in range(sums.n):
        out[column] = -INFINITY
    for row in range(skipped, sums.k):
        widen_row(sums, row, line)
        for column in range(sums.n):
            if line[column] > out[column] or line[column] != line[column]:
                out[column] = line[column]
    for column in range(sums.n):
        out[column] += 0.0
    return True


cdef void run_pool(void *context, Py_ssize_t index) noexcept nogil:
    """One task: pool one sequence into one row, without its first `skipped` rows. A mean is computed as a product."""
    cdef Pool *t = <Pool *>context
    cdef Product sums = t.sums
    sums.k = t.offsets[index + 1] - t.offsets[index]
    sums.b.data += t.offsets[index] * sums.b.rs
    sums.out.data += index * sums.out.rs
    if t.how == FIRST or t.how == LAST:
        widen_row(&sums, t.skipped if t.how == FIRST else sums.k - 1, <float *>sums.out.data)
    elif not (find_largest(&sums, t.skipped) if t.how == LARGEST else add_rows(&sums, t.how, t.skipped)):
        t.failed = True


cdef Py_ssize_t prepare(void *context, Py_ssize_t sequences, int threads, bint reproducible) noexcept nogil:
    cdef Pool *t = <Pool *>context
    t.sums.kernels, t.sums.reproducible = kernels(), reproducible
    if sequences >= 0:
        t.sequences = sequences
    return t.sequences


def pool(int fmt, int how, cnp.ndarray x not None, cnp.ndarray offsets not None, cnp.ndarray weights not None,
         Py_ssize_t skipped, cnp.ndarray out not None, Py_ssize_t column):
    """out[i] = the rows of sequence i but its first `skipped`, pooled into one; `how` is of :data:`POOLINGS`.

    A mean is the sum of weights[j] x[offsets[i] + j] over the rows j of sequence i, divided by the number of rows less
    `skipped`, by the root of that number, or by the sum of the weights.

    `x` has shape (rows, width), format `fmt` and unit last stride; `offsets` is int32, ascending. `weights`, of x's
    type, has at least as many elements as a sequence has rows: `skipped` zeros, then ones; of the mean by places,
    whose x is float32, skipped + 1, skipped + 2, ... `out` is float32, C-contiguous, (sequences, at least column +
    width): the result lies in its columns from `column` on.
    """
    cdef Pool t
    cdef Py_ssize_t base = <Py_ssize_t>&t, tasks, size = mp_element_bytes[fmt]
    cdef int threads
    memset(&t, 0, sizeof(t))
    t.offsets, t.sequences, t.skipped, t.how = (
        <const int32_t *>cnp.PyArray_DATA(offsets), cnp.PyArray_DIM(offsets, 0) - 1, skipped, how)
    t.sums.m, t.sums.n = 1, cnp.PyArray_DIM(x, 1)
    t.sums.a.data, t.sums.a.format, t.sums.a.size = cnp.PyArray_BYTES(weights), fmt, size
    t.sums.a.rs, t.sums.a.cs = cnp.PyArray_NBYTES(weights), size
    t.sums.b.data, t.sums.b.format = cnp.PyArray_BYTES(x), fmt
    t.sums.b.rs, t.sums.b.cs = cnp.PyArray_STRIDE(x, 0), size
    t.sums.out.data, t.sums.out.rs, t.sums.out.size = (
        cnp.PyArray_BYTES(out) + 4 * column, cnp.PyArray_STRIDE(out, 0), 4)
    t.sums.common.epilogue.out_format = MP_F32
    refuse_huge(cnp.PyArray_DIM(x, 0))
    if is_recording():
        if recording().find(<Py_ssize_t>cnp.PyArray_DATA(out)) is None:
            recording().add_buffer(out)
        recording().note(
            "pooling", Kind(prepare, run_pool, sizeof(t), <Py_ssize_t>&t.failed - base), &t,
            (<Py_ssize_t>&t.sums.a.data - base, <Py_ssize_t>&t.sums.b.data - base,
             <Py_ssize_t>&t.sums.out.data - base, <Py_ssize_t>&t.offsets - base),
            Cost(t.sequences, 0, NO_ARITHMETIC, cnp.PyArray_NBYTES(x)))
    threads = threads_for(<double>cnp.PyArray_SIZE(x), this_machine().tuning.thread_work)
    tasks = prepare(&t, -1, threads, reproducible_here())
    with nogil:
        parallel_for(threads, tasks, run_pool, &t)
    if t.failed:
        raise MemoryError("no memory for the scratch of pooling")
