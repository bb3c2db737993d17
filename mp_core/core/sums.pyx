"""Sums of rows and of columns, in the order of kernels/rows/sums.h: 16 lanes, blocks of 4096 elements, a tree.

An array is seen as (outer, k, inner), C-contiguous, and summed over k. If `inner` is 1, blocks of rows are summed along
memory. If not, rows of `inner` elements are added to each other, some columns at a time, so that memory is read in its
order. Both add the same elements in the same order.
"""

cimport numpy as cnp
from libc.string cimport memcpy

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport MP_BLOCK_ROW, MP_BLOCKS_TOGETHER, MP_LANES, mp_format, mp_kernels

cnp.import_array()

cdef double WORTHWHILE = 1 << 17  # elements, each read and added, from which a second thread pays

cdef enum:
    MOST_COLUMNS = 256  # of a strip: their lanes, 16 KiB, stay in the L1 cache
    LEAST_COLUMNS = 64

cdef struct Sums:
    const mp_kernels *kernels
    int format
    Py_ssize_t size         # of an element of x
    const char *x
    float *out
    float divisor
    Py_ssize_t outer, k, inner
    Py_ssize_t blocks       # of k elements
    Py_ssize_t share        # blocks (of all rows) of a task; columns of a strip
    float *lanes            # [outer][blocks][16], of rows with more than one block
    bint failed


cdef void add(float *to, const float *x, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        to[i] += x[i]


cdef void add_before(const float *x, float *to, Py_ssize_t n) noexcept nogil:
    """to = x + to, x being the sum of earlier blocks."""
    cdef Py_ssize_t i
    for i in range(n):
        to[i] = x[i] + to[i]


cdef void add_lanes(float *lanes, Py_ssize_t n) noexcept nogil:
    """The sums of n columns, of which lanes[16][n] are the lanes: in lanes[0][n]."""
    add(lanes, lanes + 8 * n, 8 * n)
    add(lanes, lanes + 4 * n, 4 * n)
    add(lanes, lanes + 2 * n, 2 * n)
    add(lanes, lanes + n, n)


cdef void run_blocks(void *context, Py_ssize_t index) noexcept nogil:
    """One task of rows: `share` blocks; the sums of rows that are one block, the lanes of the blocks of others."""
    cdef const Sums *s = <const Sums *>context
    cdef Py_ssize_t item = index * s.share, end = min(item + s.share, s.outer * s.blocks), row, block, n, count, i
    cdef Py_ssize_t stride = MP_BLOCK_ROW * s.size if s.blocks > 1 else s.k * s.size
    cdef float own[MP_BLOCKS_TOGETHER * MP_LANES]
    cdef float *lanes
    while item < end:
        row, block = item // s.blocks, item % s.blocks
        n = min(s.k - block * MP_BLOCK_ROW, <Py_ssize_t>MP_BLOCK_ROW)
        count = min(end - item, <Py_ssize_t>MP_BLOCKS_TOGETHER)
        if s.blocks > 1:
            count = min(count, s.k // MP_BLOCK_ROW - block) if n == MP_BLOCK_ROW else 1
        lanes = &own[0]
        if s.blocks > 1:
            lanes = s.lanes + item * MP_LANES
        s.kernels.rows.sum_blocks(<mp_format>s.format, s.x + (row * s.k + block * MP_BLOCK_ROW) * s.size, count, stride,
                                  n, lanes)
        if s.blocks == 1:
            for i in range(count):
                add_lanes(own + i * MP_LANES, 1)
                s.out[item + i] = own[i * MP_LANES] / s.divisor
        item += count


cdef void join_blocks(const Sums *s) noexcept nogil:
    """The sums of rows from the lanes of their blocks: pairs of blocks, pairs of pairs and so on."""
    cdef Py_ssize_t row, step, block
    cdef float *lanes
    for row in range(s.outer):
        lanes = s.lanes + row * s.blocks * MP_LANES
        step = 1
        while step < s.blocks:
            block = 0
            while block + step < s.blocks:
                add(lanes + block * MP_LANES, lanes + (block + step) * MP_LANES, MP_LANES)
                block += 2 * step
            step *= 2
        add_lanes(lanes, 1)
        s.out[row] = lanes[0] / s.divisor


cdef void run_columns(void *context, Py_ssize_t index) noexcept nogil:
    """One task of columns: a strip of at most `share`. level[i] holds the lanes of 2^i blocks if bit i of `block` is
    set, `block` being how many blocks were added."""
    cdef Sums *s = <Sums *>context
    cdef Py_ssize_t strips = (s.inner + s.share - 1) // s.share, first = index % strips * s.share
    cdef Py_ssize_t n = min(s.share, s.inner - first), lanes = MP_LANES * n, block, i
    cdef const char *x = s.x + (index // strips * s.k * s.inner + first) * s.size
    cdef float *out = s.out + index // strips * s.inner + first
    cdef int levels = 0
    while s.blocks > 1 and s.blocks >> levels:
        levels += 1
    cdef float *current = <float *>scratch((1 + levels) * lanes * sizeof(float))
    cdef float *level
    if current == NULL:
        s.failed = True
        return
    for block in range(s.blocks):
        s.kernels.rows.sum_columns(<mp_format>s.format, x + block * MP_BLOCK_ROW * s.inner * s.size,
                                   min(s.k - block * MP_BLOCK_ROW, <Py_ssize_t>MP_BLOCK_ROW), s.inner * s.size, n,
                                   current)
        if s.blocks > 1:
            level = current + lanes
            i = block
            while i & 1:
                add_before(level, current, lanes)
                level += lanes
                i >>= 1
            memcpy(level, current, lanes * sizeof(float))
    if s.blocks > 1:
        level = current + lanes
        i = s.blocks
        while not i & 1:
            level += lanes
            i >>= 1
        memcpy(current, level, lanes * sizeof(float))
        while i > 1:
            level += lanes
            i >>= 1
            if i & 1:
                add_before(level, current, lanes)
    add_lanes(current, n)
    for i in range(n):
        out[i] = current[i] / s.divisor


def sum_middle(int fmt, cnp.ndarray x not None, cnp.ndarray out not None, float divisor):
    """out[outer][inner] = the sum of x[outer][k][inner] over k, divided by `divisor`; all lengths are at least 1.

    Both are C-contiguous; `x` has the format `fmt`, `out` is float32.
    """
    cdef Sums s
    cdef Py_ssize_t tasks
    cdef cnp.npy_intp length
    cdef int threads
    s.kernels, s.format, s.size = kernels(), fmt, cnp.PyArray_ITEMSIZE(x)
    s.x, s.out, s.divisor = cnp.PyArray_BYTES(x), <float *>cnp.PyArray_DATA(out), divisor
    s.outer, s.k, s.inner = cnp.PyArray_DIM(x, 0), cnp.PyArray_DIM(x, 1), cnp.PyArray_DIM(x, 2)
    s.blocks, s.lanes, s.failed = (s.k + MP_BLOCK_ROW - 1) // MP_BLOCK_ROW, NULL, False
    threads = threads_for(<double>cnp.PyArray_SIZE(x), WORTHWHILE)
    if s.inner > 1:
        s.share = MOST_COLUMNS
        while s.share > LEAST_COLUMNS and (s.inner + s.share - 1) // s.share * s.outer < 2 * threads:
            s.share //= 2
        tasks = (s.inner + s.share - 1) // s.share * s.outer
        with nogil:
            parallel_for(threads, tasks, run_columns, &s)
    else:
        if s.blocks > 1:
            length = s.outer * s.blocks * MP_LANES
            lanes = cnp.PyArray_EMPTY(1, &length, cnp.NPY_FLOAT32, 0)
            s.lanes = <float *>cnp.PyArray_DATA(<cnp.ndarray>lanes)
        s.share = max(1, (s.outer * s.blocks + 4 * threads - 1) // (4 * threads))
        s.share += -s.share % MP_BLOCKS_TOGETHER
        tasks = (s.outer * s.blocks + s.share - 1) // s.share
        with nogil:
            parallel_for(threads, tasks, run_blocks, &s)
            if s.blocks > 1:
                join_blocks(&s)
    if s.failed:
        raise MemoryError("no memory for the sums of columns")
