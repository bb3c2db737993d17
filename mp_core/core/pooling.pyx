"""One row for each of several sequences, whose rows lie one behind the other: their mean, or one of them."""

cimport numpy as cnp
from libc.math cimport sqrtf
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_F32, mp_element_bytes
from mp_core.core.plan cimport Plan, this_machine
from mp_core.core.run cimport Product, plan_product, refuse_huge, run_here
from mp_core.core.steps cimport NO_ARITHMETIC, Cost, Kind, recording

cnp.import_array()

cdef enum:
    MEAN
    MEAN_BY_ROOT                # the sum over the root of the number of rows
    FIRST
    LAST

POOLINGS = {"mean": MEAN, "mean_sqrt_len_tokens": MEAN_BY_ROOT, "cls": FIRST, "lasttoken": LAST}

cdef struct Pool:
    Product sums                # of the first sequence: weights @ rows
    const int32_t *offsets      # [sequences + 1]
    int how
    Py_ssize_t sequences, skipped
    bint failed


cdef void run_pool(void *context, Py_ssize_t index) noexcept nogil:
    """One task: the row that is made of those of a sequence behind the first `skipped`; a product adds them."""
    cdef Pool *t = <Pool *>context
    cdef Product sums = t.sums
    cdef Py_ssize_t column, row
    cdef float count
    cdef float *out
    cdef char *work
    sums.k = t.offsets[index + 1] - t.offsets[index]
    sums.b.data += t.offsets[index] * sums.b.rs
    sums.out.data += index * sums.n * 4
    if t.how >= FIRST:
        row = t.skipped if t.how == FIRST else sums.k - 1
        if sums.b.format == MP_F32:
            memcpy(sums.out.data, sums.b.data + row * sums.b.rs, sums.n * 4)
        else:
            sums.kernels.casts.widen[sums.b.format](sums.b.data + row * sums.b.rs, <float *>sums.out.data, sums.n, 0)
        return
    memset(&sums.plan, 0, sizeof(Plan))
    plan_product(&sums, 1, 1)
    work = <char *>scratch(sums.plan.scratch.total)
    if work == NULL:
        t.failed = True
        return
    run_here(&sums, work)
    out, count = <float *>sums.out.data, <float>(sums.k - t.skipped)
    if t.how == MEAN_BY_ROOT:
        count = sqrtf(count)
    for column in range(sums.n):
        out[column] /= count


cdef Py_ssize_t prepare(void *context, Py_ssize_t sequences, int threads) noexcept nogil:
    cdef Pool *t = <Pool *>context
    t.sums.kernels = kernels()
    if sequences >= 0:
        t.sequences = sequences
    return t.sequences


def pool(int fmt, int how, cnp.ndarray x not None, cnp.ndarray offsets not None, cnp.ndarray weights not None,
         Py_ssize_t skipped, cnp.ndarray out not None):
    """out[i] = the row of x that `how`, of :data:`POOLINGS`, makes of those of sequence i without the first `skipped`.

    A mean is the sum of weights[j] x[offsets[i] + j] over the rows j of sequence i, by their number less `skipped`.

    `x` has shape (rows, width), format `fmt` and unit last stride; `offsets` is int32, ascending. `weights`, of x's
    type, has at least as many elements as a sequence has rows: `skipped` zeros, then ones. `out` is float32,
    C-contiguous, (sequences, width).
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
    t.sums.out.data, t.sums.out.rs, t.sums.out.size = cnp.PyArray_BYTES(out), t.sums.n * 4, 4
    t.sums.common.epilogue.out_format = MP_F32
    refuse_huge(cnp.PyArray_DIM(x, 0))
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            "pooling", Kind(prepare, run_pool, sizeof(t), <Py_ssize_t>&t.failed - base), &t,
            (<Py_ssize_t>&t.sums.a.data - base, <Py_ssize_t>&t.sums.b.data - base,
             <Py_ssize_t>&t.sums.out.data - base, <Py_ssize_t>&t.offsets - base),
            Cost(t.sequences, 0, NO_ARITHMETIC, cnp.PyArray_NBYTES(x)))
    threads = threads_for(<double>cnp.PyArray_SIZE(x), this_machine().tuning.thread_work)
    tasks = prepare(&t, -1, threads)
    with nogil:
        parallel_for(threads, tasks, run_pool, &t)
    if t.failed:
        raise MemoryError("no memory for the scratch of pooling")
