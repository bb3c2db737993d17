"""Attention, by tasks of some rows of queries of one head: their scores stay in the cache until they are used.

A task multiplies its rows of queries by all keys of the head, takes the softmax of the scores where they lie, rounds it
to the type of the values, and multiplies it by them, straight into the result.
"""

cimport numpy as cnp
from libc.stdint cimport uint8_t
from libc.string cimport memset

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_F32, MP_ROWS, mp_element_bytes, mp_format, mp_kernels
from mp_core.core.plan cimport round_up, this_machine
from mp_core.core.run cimport Product, plan_product, refuse_huge, run_here

cnp.import_array()

cdef enum:
    LEAST_ROWS = 4 * MP_ROWS    # of a task, however long a row of scores is: panels of keys are packed for each task

cdef struct Steps:              # bytes from one sequence, head, row to the next; 0 where an axis is broadcast
    Py_ssize_t sequence, head, row

cdef struct Attention:
    const mp_kernels *kernels
    Product scores, context     # of the first task; the pointers and m of the others differ
    Steps query, key, value, out, keep, bias
    const uint8_t *kept         # the mask, one byte for each score, or NULL
    float scale
    Py_ssize_t targets, heads, sharing  # rows of queries, heads of queries, and how many of these share one of keys
    Py_ssize_t block, blocks    # rows of a task; tasks of one head
    size_t narrowed, work, total        # in scratch behind the scores: they rounded, what the products need; all bytes
    bint failed


cdef Steps steps_of(cnp.ndarray x, int head, int row) noexcept:
    """Return the strides of an array of 4 axes; `head` and `row` say which these are, sequences are the first."""
    cdef Steps steps
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(x)
    steps.sequence, steps.head, steps.row = strides[0], strides[head], strides[row]
    return steps


cdef inline Py_ssize_t offset(const Steps *steps, Py_ssize_t sequence, Py_ssize_t head, Py_ssize_t row) noexcept nogil:
    return sequence * steps.sequence + head * steps.head + row * steps.row


cdef void run_block(void *context, Py_ssize_t index) noexcept nogil:
    """One task: up to `block` rows of queries of one head of one sequence."""
    cdef Attention *t = <Attention *>context
    cdef Product scores = t.scores, products = t.context
    cdef Py_ssize_t first = index % t.blocks * t.block, rest = index // t.blocks
    cdef Py_ssize_t head = rest % t.heads, sequence = rest // t.heads, shared = head // t.sharing
    cdef Py_ssize_t rows = min(t.block, t.targets - first), row, size = mp_element_bytes[scores.a.format]
    cdef const uint8_t *keep = NULL
    cdef float *x
    cdef char *work = <char *>scratch(t.total)
    if work == NULL:
        t.failed = True
        return
    scores.m = products.m = rows
    scores.a.data += offset(&t.query, sequence, head, first)
    scores.b.data += offset(&t.key, sequence, shared, 0)
    scores.out.data = work
    if scores.residual.data != NULL:
        scores.residual.data += offset(&t.bias, sequence, head, first)
    run_here(&scores, work + t.work)
    for row in range(rows):
        x = <float *>(work + row * scores.out.rs)
        if t.kept != NULL:
            keep = t.kept + offset(&t.keep, sequence, head, first + row)
        t.kernels.rows.softmax(x, keep, t.scale, scores.n, x)
        if t.narrowed:
            t.kernels.casts.narrow[scores.a.format](x, work + t.narrowed + row * scores.n * size, scores.n, 0)
    products.a.data = work + t.narrowed
    products.b.data += offset(&t.value, sequence, shared, 0)
    products.out.data += offset(&t.out, sequence, head, first)
    run_here(&products, work + t.work)


cdef void cut(Attention *t, Py_ssize_t sequences, int threads) noexcept nogil:
    """Choose the rows of a task: scores of at most L2 / 4, and at least two tasks for each of several threads."""
    cdef Py_ssize_t fitting = this_machine().l2 // 4 // (t.scores.n * 4), heads = sequences * t.heads
    cdef Py_ssize_t wanted = 1 if threads == 1 else (2 * threads + heads - 1) // heads
    t.blocks = (t.targets + max(fitting, <Py_ssize_t>LEAST_ROWS) - 1) // max(fitting, <Py_ssize_t>LEAST_ROWS)
    t.blocks = max(t.blocks, min(wanted, (t.targets + MP_ROWS - 1) // MP_ROWS))
    t.block = (t.targets + t.blocks - 1) // t.blocks
    t.blocks = (t.targets + t.block - 1) // t.block


cdef void plan_tasks(Attention *t) noexcept nogil:
    """Plan the two products of a task, and lay out its scratch."""
    cdef Py_ssize_t sources = t.scores.n, bytes = round_up(t.block * sources * 4, 64)
    t.scores.m = t.context.m = t.block
    plan_product(&t.scores, 1, 1)
    plan_product(&t.context, 1, 1)
    t.work = bytes
    if t.context.a.format != MP_F32:
        t.narrowed = bytes
        t.work += round_up(t.block * sources * t.context.a.size, 64)
    t.total = t.work + max(t.scores.plan.scratch.total, t.context.plan.scratch.total)


cdef void describe(Attention *t, cnp.ndarray query, cnp.ndarray key, cnp.ndarray value, cnp.ndarray out,
                   int fmt) noexcept:
    """Describe the products ``query[i, :, h] @ key[i, :, h].T`` and ``scores @ value[i, :, h]``."""
    cdef Product *scores = &t.scores
    cdef Product *context = &t.context
    cdef Py_ssize_t size = mp_element_bytes[fmt], sources = cnp.PyArray_DIM(key, 1)
    scores.kernels = context.kernels = t.kernels
    scores.n, scores.k, context.k, context.n = sources, cnp.PyArray_DIM(key, 3), sources, cnp.PyArray_DIM(value, 3)
    scores.a.data, scores.a.format, scores.a.size = cnp.PyArray_BYTES(query), fmt, size
    scores.a.rs, scores.a.cs = cnp.PyArray_STRIDE(query, 1), cnp.PyArray_STRIDE(query, 3)
    scores.b.data, scores.b.format = cnp.PyArray_BYTES(key), fmt
    scores.b.rs, scores.b.cs = cnp.PyArray_STRIDE(key, 3), cnp.PyArray_STRIDE(key, 1)
    scores.out.rs, scores.out.size, scores.common.epilogue.out_format = sources * 4, 4, MP_F32
    context.a.format, context.a.size, context.a.rs, context.a.cs = fmt, size, sources * size, size
    context.b.data, context.b.format = cnp.PyArray_BYTES(value), fmt
    context.b.rs, context.b.cs = cnp.PyArray_STRIDE(value, 1), cnp.PyArray_STRIDE(value, 3)
    context.out.data, context.out.rs, context.out.size = cnp.PyArray_BYTES(out), cnp.PyArray_STRIDE(out, 1), size
    context.common.epilogue.out_format = <mp_format>fmt
    t.query, t.key, t.value, t.out = (
        steps_of(query, 2, 1), steps_of(key, 2, 1), steps_of(value, 2, 1), steps_of(out, 2, 1))


def attention(int fmt, cnp.ndarray query not None, cnp.ndarray key not None, cnp.ndarray value not None,
              cnp.ndarray out not None, float scale, cnp.ndarray keep=None, tuple bias=None):
    """out = softmax(scale * query @ key' + bias) @ value for each head, masked scores left out.

    `query` has shape (n, targets, heads, size), `key` (n, sources, key heads, size), `value` (n, sources, key heads,
    value size) and `out`, C-contiguous, (n, targets, heads, value size): of format `fmt` and native byte order, no
    length 0. `keep` is bool, of shape (n, heads, targets, sources) and unit last stride. `bias` is an array of the same
    shape and last stride, float32, aligned, and a vector of `sources` times `scale` in float32.
    """
    cdef Attention t
    cdef cnp.ndarray added, scales
    cdef Py_ssize_t sequences = cnp.PyArray_DIM(query, 0), tasks
    cdef double work
    cdef int threads
    memset(&t, 0, sizeof(t))
    t.kernels, t.scale, t.targets, t.heads = kernels(), scale, cnp.PyArray_DIM(query, 1), cnp.PyArray_DIM(query, 2)
    t.sharing = t.heads // cnp.PyArray_DIM(key, 2)
    describe(&t, query, key, value, out, fmt)
    refuse_huge(max(t.scores.k, t.context.k))
    if keep is not None:
        t.kept, t.keep = <const uint8_t *>cnp.PyArray_DATA(keep), steps_of(keep, 1, 2)
    if bias is not None:
        added, scales = bias
        t.scale, t.scores.b.scale, t.bias = 1, <const float *>cnp.PyArray_DATA(scales), steps_of(added, 1, 2)
        t.scores.residual.data, t.scores.residual.rs = cnp.PyArray_BYTES(added), t.bias.row
        t.scores.residual.size, t.scores.common.epilogue.residual_format = 4, MP_F32
    work = <double>sequences * t.heads * t.targets * t.scores.n * (t.scores.k + t.context.n)
    threads = threads_for(work, this_machine().tuning.thread_work)
    cut(&t, sequences, threads)
    plan_tasks(&t)
    tasks = sequences * t.heads * t.blocks
    with nogil:
        parallel_for(threads, tasks, run_block, &t)
    if t.failed:
        raise MemoryError("no memory for the scratch of attention")
