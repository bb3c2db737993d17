"""Attention, by tasks of some rows of queries of one head: their scores stay in the cache until they are used.

A task multiplies its rows of queries by all keys of the head, takes the softmax of the scores where they lie, rounds it
to the type of the values, and multiplies it by them, straight into the result. Sequences are of equal length, or lie
one behind the other in the rows of one array (ragged): then `offsets` says where each begins. Near attention, of
queries to keys at most `reach` rows away, takes the queries of a band of 128 rows together with the keys that one of
them reaches, so that its time is linear in the length.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, reproducible_here, scratch, threads_for
from mp_core.core.header cimport MP_F32, MP_ROWS, mp_element_bytes, mp_format, mp_kernels, mp_row_block
from mp_core.core.plan cimport arithmetic_of, round_up, this_machine
from mp_core.core.run cimport Product, plan_product, refuse_huge, run_here
from mp_core.core.steps cimport Cost, Kind, recording

cnp.import_array()

cdef enum:
    LEAST_ROWS = 4 * MP_ROWS    # of queries that a task should have, since each packs the keys of its head again
    BAND = 128                  # near attention: queries whose sums run over the same keys; part of the contract

cdef struct Strides:            # bytes from one sequence, head, row to the next; 0 where an axis is broadcast
    Py_ssize_t sequence, head, row

cdef struct Keys:               # of a task
    Py_ssize_t first, end

cdef struct Cut:
    Py_ssize_t block, blocks    # rows of queries in a task; tasks of one head
    size_t narrowed             # where in scratch the scores are that are rounded to the type of the values
    size_t mask                 # ... the mask of near attention
    size_t work                 # ... and what the two products need
    size_t total                # bytes of scratch

cdef struct Attention:
    const mp_kernels *kernels
    Product scores, context     # of the first task; the pointers and m of the others differ
    Strides query, key, value, out, keep, bias
    const uint8_t *kept         # the mask, one byte for each score, or NULL
    const int32_t *offsets      # ragged: [sequences + 1] rows at which sequences begin, and the last one ends; or NULL
    float scale
    Py_ssize_t sequences, heads, sharing    # heads of queries, and how many of these share one of keys
    Py_ssize_t targets, sources             # of a sequence; ragged: of the longest
    Py_ssize_t reach                        # how many rows away a query finds keys
    Cut cut
    bint failed


cdef Strides strides_of(cnp.ndarray x, int head, int row) noexcept:
    """Return the strides of the axes of heads and rows, and of the first axis: that of sequences, if row is not 0."""
    cdef Strides found
    cdef cnp.npy_intp *strides = cnp.PyArray_STRIDES(x)
    found.sequence, found.head, found.row = strides[0], strides[head], strides[row]
    return found


cdef inline Py_ssize_t offset(const Strides *by, Py_ssize_t sequence, Py_ssize_t head, Py_ssize_t row) noexcept nogil:
    return sequence * by.sequence + head * by.head + row * by.row


cdef size_t plan_block(Attention *t, Product *scores, Product *products, Py_ssize_t sources) noexcept nogil:
    """Plan the two products of a task with so many keys, and lay out its scratch; return its bytes."""
    cdef Py_ssize_t size = mp_element_bytes[scores.a.format], bytes = round_up(t.cut.block * sources * 4, 64)
    cdef Py_ssize_t band = t.cut.block + sources
    scores.m = products.m = t.cut.block
    scores.n = products.k = sources
    scores.out.rs, products.a.rs = sources * 4, sources * size
    plan_product(scores, 1, 1)
    plan_product(products, 1, 1)
    t.cut.narrowed = bytes if size != 4 else 0
    t.cut.mask = bytes + (round_up(t.cut.block * sources * size, 64) if size != 4 else 0)
    t.cut.work = t.cut.mask
    if is_near(t):
        t.cut.work += round_up(band if t.kept == NULL else band + t.cut.block * sources, 64)
    return t.cut.work + max(scores.plan.scratch.total, products.plan.scratch.total)


cdef inline bint is_near(const Attention *t) noexcept nogil:
    """Whether there are keys that a query does not reach."""
    return t.reach < t.sources - 1


cdef Keys keys_of(const Attention *t, Py_ssize_t query) noexcept nogil:
    """The keys that the band of a query reaches."""
    cdef Keys keys
    keys.first, keys.end = 0, t.sources
    if is_near(t):
        query -= query % BAND
        keys.first, keys.end = max(0, query - t.reach), min(t.sources, query + BAND + t.reach)
    return keys


cdef const uint8_t *mask_of(const Attention *t, const uint8_t *keep, Py_ssize_t rows, Py_ssize_t sources,
                            Py_ssize_t apart, uint8_t *room, Py_ssize_t *stride) noexcept nogil:
    """The mask of near attention of some queries, the first of which is `apart` behind the first key.

    Without `keep` all rows share one buffer, and each begins one byte before the previous one (stride -1). With `keep`,
    a mask of rows `stride` bytes apart, each is a copy, combined with it. `stride` becomes that of the result.
    """
    cdef Py_ssize_t first = max(0, rows - 1 + apart - t.reach), row, j
    cdef Py_ssize_t end = min(rows + sources - 1, rows + apart + t.reach)
    cdef uint8_t *mask = room + rows + sources
    memset(room, 0, rows + sources)
    memset(room + first, 1, end - first)
    if keep == NULL:
        stride[0] = -1
        return room + rows - 1
    for row in range(rows):
        for j in range(sources):
            mask[row * sources + j] = keep[row * stride[0] + j] & room[rows - 1 - row + j]
    stride[0] = sources
    return mask


cdef void run_block(void *context, Py_ssize_t index) noexcept nogil:
    """One task: up to `block` rows of queries of one head of one sequence."""
    cdef Attention t = (<Attention *>context)[0]
    cdef Product *scores = &t.scores
    cdef Product *products = &t.context
    cdef Py_ssize_t first = index % t.cut.blocks * t.cut.block, rest = index // t.cut.blocks
    cdef Py_ssize_t head = rest % t.heads, sequence = rest // t.heads, shared = head // t.sharing
    cdef Py_ssize_t rows, begin = 0, stride = t.keep.row
    cdef const uint8_t *keep = NULL
    cdef Keys keys
    cdef mp_row_block b
    cdef char *work
    if t.offsets != NULL:
        begin = t.offsets[sequence]
        t.targets = t.sources = t.offsets[sequence + 1] - begin
        if t.targets <= first:
            return
        sequence = 0
    keys = keys_of(&t, first)
    if keys.end - keys.first != scores.n:
        t.cut.total = plan_block(&t, scores, products, keys.end - keys.first)
    rows = min(t.cut.block, t.targets - first)
    work = <char *>scratch(t.cut.total)
    if work == NULL:
        (<Attention *>context).failed = True
        return
    scores.m = products.m = rows
    scores.a.data += offset(&t.query, sequence, head, begin + first)
    scores.b.data += offset(&t.key, sequence, shared, begin + keys.first)
    scores.out.data = work
    if scores.residual.data != NULL:
        scores.residual.data += offset(&t.bias, sequence, head, first) + keys.first * 4
    run_here(scores, work + t.cut.work)
    if t.kept != NULL:
        keep = t.kept + offset(&t.keep, sequence, head, first) + keys.first
    if is_near(&t):
        keep = mask_of(&t, keep, rows, scores.n, first - keys.first, <uint8_t *>work + t.cut.mask, &stride)
    b.rows, b.n, b.x_format, b.out_format = rows, scores.n, MP_F32, <mp_format>scores.a.format
    b.x, b.work, b.out = work, <float *>work, work + t.cut.narrowed
    b.ldx = b.ldw = b.ldo = scores.n
    t.kernels.rows.softmax(&b, keep, stride, t.scale)
    products.a.data = work + t.cut.narrowed
    products.b.data += offset(&t.value, sequence, shared, begin + keys.first)
    products.out.data += offset(&t.out, sequence, head, begin + first)
    run_here(products, work + t.cut.work)


cdef inline Py_ssize_t most_keys(const Attention *t) noexcept nogil:
    """The keys of a task, at most."""
    return min(t.sources, 2 * t.reach + BAND) if is_near(t) else t.sources


cdef void cut_up(Attention *t, int threads) noexcept nogil:
    """Choose the rows of a task: scores of at most L2 / 4, and at least two tasks for each of several threads."""
    cdef Py_ssize_t fitting = this_machine().l2 // 4 // (most_keys(t) * 4), heads = t.sequences * t.heads
    cdef Py_ssize_t wanted = 1 if threads == 1 else (2 * threads + heads - 1) // heads
    t.cut.blocks = (t.targets + max(fitting, <Py_ssize_t>LEAST_ROWS) - 1) // max(fitting, <Py_ssize_t>LEAST_ROWS)
    t.cut.blocks = max(t.cut.blocks, min(wanted, (t.targets + MP_ROWS - 1) // MP_ROWS))
    t.cut.block = (t.targets + t.cut.blocks - 1) // t.cut.blocks
    if is_near(t) and t.targets > BAND:     # a task has rows of one band
        while BAND % t.cut.block:
            t.cut.block = min(t.cut.block - 1, <Py_ssize_t>BAND)
    t.cut.blocks = (t.targets + t.cut.block - 1) // t.cut.block


cdef double work_of(const Attention *t) noexcept nogil:
    """Multiplications; ragged: as if all sequences were as long as the longest."""
    return <double>t.sequences * t.heads * t.targets * most_keys(t) * (t.scores.k + t.context.n)


cdef Py_ssize_t prepare(void *context, Py_ssize_t sequences, int threads, bint reproducible) noexcept nogil:
    """Plan for so many sequences, or those that are recorded; return the number of tasks."""
    cdef Attention *t = <Attention *>context
    cdef Py_ssize_t sequence
    t.kernels = t.scores.kernels = t.context.kernels = kernels()
    t.scores.reproducible = t.context.reproducible = reproducible
    t.sequences = sequences if sequences >= 0 else t.sequences
    if t.offsets != NULL:
        t.targets = 1
        for sequence in range(t.sequences):
            t.targets = max(t.targets, <Py_ssize_t>(t.offsets[sequence + 1] - t.offsets[sequence]))
        t.sources = t.targets
    cut_up(t, threads if work_of(t) >= this_machine().tuning.thread_work else 1)
    t.cut.total = plan_block(t, &t.scores, &t.context, most_keys(t))
    return t.sequences * t.heads * t.cut.blocks


cdef void describe(Attention *t, cnp.ndarray query, cnp.ndarray key, cnp.ndarray value, cnp.ndarray out,
                   int fmt, int rows) noexcept:
    """Describe the products ``query[i, :, h] @ key[i, :, h].T`` and ``scores @ value[i, :, h]``.

    `rows` is the axis of the rows, 1, or 0 of ragged arrays, which have no axis of sequences.
    """
    cdef Product *scores = &t.scores
    cdef Product *context = &t.context
    cdef Py_ssize_t size = mp_element_bytes[fmt]
    scores.k, context.n = cnp.PyArray_DIM(key, rows + 2), cnp.PyArray_DIM(value, rows + 2)
    scores.a.data, scores.a.format, scores.a.size = cnp.PyArray_BYTES(query), fmt, size
    scores.a.rs, scores.a.cs = cnp.PyArray_STRIDE(query, rows), cnp.PyArray_STRIDE(query, rows + 2)
    scores.b.data, scores.b.format = cnp.PyArray_BYTES(key), fmt
    scores.b.rs, scores.b.cs = cnp.PyArray_STRIDE(key, rows + 2), cnp.PyArray_STRIDE(key, rows)
    scores.out.size, scores.common.epilogue.out_format = 4, MP_F32
    context.a.format, context.a.size, context.a.cs = fmt, size, size
    context.b.data, context.b.format = cnp.PyArray_BYTES(value), fmt
    context.b.rs, context.b.cs = cnp.PyArray_STRIDE(value, rows), cnp.PyArray_STRIDE(value, rows + 2)
    context.out.data, context.out.rs, context.out.size = cnp.PyArray_BYTES(out), cnp.PyArray_STRIDE(out, rows), size
    context.common.epilogue.out_format = <mp_format>fmt
    t.query, t.key, t.value, t.out = (
        strides_of(query, rows + 1, rows), strides_of(key, rows + 1, rows), strides_of(value, rows + 1, rows),
        strides_of(out, rows + 1, rows))
    t.heads, t.targets, t.sources = (
        cnp.PyArray_DIM(query, rows + 1), cnp.PyArray_DIM(query, rows), cnp.PyArray_DIM(key, rows))
    t.sharing = t.heads // cnp.PyArray_DIM(key, rows + 1)


cdef void add_bias(Attention *t, cnp.ndarray added, cnp.ndarray scales) noexcept:
    t.scale, t.scores.b.scale, t.bias = 1, <const float *>cnp.PyArray_DATA(scales), strides_of(added, 1, 2)
    t.scores.residual.data, t.scores.residual.rs = cnp.PyArray_BYTES(added), t.bias.row
    t.scores.residual.size, t.scores.common.epilogue.residual_format = 4, MP_F32


cdef int note(const Attention *t, cnp.ndarray out) except -1:
    cdef Attention s = t[0]
    cdef Py_ssize_t base = <Py_ssize_t>&s
    pointers = (
        <Py_ssize_t>&s.scores.a.data - base, <Py_ssize_t>&s.scores.b.data - base, <Py_ssize_t>&s.scores.b.scale - base,
        <Py_ssize_t>&s.scores.residual.data - base, <Py_ssize_t>&s.context.b.data - base,
        <Py_ssize_t>&s.context.out.data - base, <Py_ssize_t>&s.kept - base, <Py_ssize_t>&s.offsets - base)
    recording().add_buffer(out)
    recording().note(
        "attention", Kind(prepare, run_block, sizeof(s), <Py_ssize_t>&s.failed - base), &s, pointers,
        Cost(t.sequences if t.offsets != NULL else 0, 2 * work_of(t),
             arithmetic_of(t.scores.a.format, t.scores.b.format), 4 * cnp.PyArray_NBYTES(out)))
    return 0


cdef int run(Attention *t, cnp.ndarray out) except -1:
    cdef Py_ssize_t tasks
    cdef int threads
    refuse_huge(max(t.scores.k, t.sources))
    if is_recording():
        note(t, out)
    threads = threads_for(work_of(t), this_machine().tuning.thread_work)
    tasks = prepare(t, -1, threads, reproducible_here())
    with nogil:
        parallel_for(threads, tasks, run_block, t)
    if t.failed:
        raise MemoryError("no memory for the scratch of attention")
    return 0


def attention(int fmt, tuple operands not None, cnp.ndarray out not None, float scale, Py_ssize_t reach,
              cnp.ndarray keep=None, tuple bias=None, cnp.ndarray offsets=None):
    """out = softmax(scale * query @ key' + bias) @ value for each head, masked scores left out.

    `operands` are `query` of shape (n, targets, heads, size), `key` (n, sources, key heads, size) and `value` (n,
    sources, key heads, value size); `out`, C-contiguous, has shape (n, targets, heads, value size). All are of format
    `fmt` and native byte order, without a length 0. `keep` is bool, of shape (n, heads, targets, sources) and unit last
    stride. `bias` is a pair: an array of the same shape and last stride, float32, aligned; and a float32 vector of
    `sources` elements that all equal `scale`. If `reach` is less than `sources` - 1, targets and sources are equally
    many, and those farther apart are masked.

    With `offsets`, int32, ascending and not beyond the last row, operands and `out` have no first axis and one shape:
    sequence i has the rows from ``offsets[i]`` to ``offsets[i + 1]``. There is no `keep` then, and `bias` has shape (1,
    heads, at least the longest length, the same).
    """
    cdef Attention t
    query, key, value = operands
    memset(&t, 0, sizeof(t))
    t.scale, t.reach = scale, reach
    if offsets is None:
        t.sequences = cnp.PyArray_DIM(out, 0)
    else:
        t.offsets, t.sequences = <const int32_t *>cnp.PyArray_DATA(offsets), cnp.PyArray_DIM(offsets, 0) - 1
    describe(&t, query, key, value, out, fmt, 1 if offsets is None else 0)
    if keep is not None:
        t.kept, t.keep = <const uint8_t *>cnp.PyArray_DATA(keep), strides_of(keep, 1, 2)
    if bias is not None:
        add_bias(&t, bias[0], bias[1])
    run(&t, out)
