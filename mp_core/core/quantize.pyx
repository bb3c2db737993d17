"""The route through an array that is quantized, or whose codes become numbers again. The arithmetic is in the kernels.

`way_of` decides, from sizes and types alone, in which order memory is read; the `run_...` functions read it so. A part
(mp_part) is what one call of a kernel gets: some rows and columns of the array. What happens to a part is in
quantize_parts.pxi.
"""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

from mp_core.core.cpu cimport parallel_for, threads_for
from mp_core.core.header cimport (
    MP_CHUNK, MP_CODE_U8, MP_F32, MP_MORE, MP_STREAM, MP_WITHIN, mp_chunk_codes, mp_chunk_floats, mp_part,
)

# The next four numbers were found on one Zen 4 core with 32 KiB of L1d and 1 MiB of L2, November 2026.
cdef double WORTHWHILE = 1 << 17  # elements from which a second thread pays

cdef enum:
    STRIP = 1024        # columns of a task: beside 128 rows, their float32 elements are 512 KiB and stay in L2
    FROM_MEMORY = 1 << 21  # bytes from which an array is taken to come from memory: twice L2
    IN_CACHE = 1 << 17  # elements that stay in L2 while their range and then their codes are computed: 512 KiB

# The routes.
cdef enum:
    COLUMNS  # a task is a strip of columns of one scale group of rows: its ranges, scales and codes while it is in L2
    RUNS     # a task is some runs, that is neighbours with one scale, which follow each other
    SLICES   # a task is a slab of several rows with one scale
    SPLIT    # all ranges first, then all codes: if columns are too long for L2, or scales are too few for the threads


cdef Py_ssize_t ceil_div(Py_ssize_t n, Py_ssize_t by) noexcept nogil:
    return (n + by - 1) // by


cdef Py_ssize_t elements_of(const Layout *a) noexcept nogil:
    return a.outer * a.rows * a.cols


cdef Way way_of(const Quantization *z, int threads) noexcept nogil:
    """Decide how to go through the array. It reads sizes and types, but no element."""
    cdef const Layout *a = &z.layout
    cdef Py_ssize_t rows = max(1, min(a.group, a.rows)), along = a.rows if a.rows > 1 else a.cols
    cdef bint beyond_cache = a.by_column and a.groups == 1 and rows > 1 and rows * a.cols > IN_CACHE
    cdef Way way
    way.strip, way.share = <Py_ssize_t>MP_CHUNK if z.how == GIVEN else <Py_ssize_t>STRIP, 1
    # Codes that are 8-bit floats take longer to compute than numbers take to come from memory.
    way.prefetch_next = (z.how != GIVEN and not a.by_column and z.codes.kind > MP_CODE_U8
                         and elements_of(a) * z.size >= FROM_MEMORY and a.outer * a.groups > 1)
    if a.by_column:
        way.route, way.tasks = COLUMNS, a.outer * a.groups * ceil_div(a.cols, way.strip)
    elif a.rows == 1:
        way.route, way.tasks = RUNS, a.outer * a.groups
    else:
        way.route, way.tasks = SLICES, a.outer
    if beyond_cache or (1 < threads and way.tasks < 2 * threads and a.groups == 1 and (a.rows > 1 or not a.by_column)):
        way.route, way.share = SPLIT, ceil_div(along, 4 * threads)
        if a.rows == 1:
            way.share = ceil_div(way.share, 64) * 64
        way.tasks = ceil_div(along, way.share)
    elif way.route == RUNS:
        way.share = max(1, ceil_div(way.tasks, 4 * threads)) if threads > 1 else max(way.tasks, 1)
        way.tasks = ceil_div(way.tasks, way.share)
    return way


cdef int run(Quantization *z) except -1:
    cdef int threads = threads_for(<double>elements_of(&z.layout), WORTHWHILE)
    if z.layout.cols == 0 and z.layout.rows > 1:
        z.layout.rows = 0  # rows without elements may be more than a loop can count
    z.way = way_of(z, threads)
    if z.way.route == SPLIT:
        return run_split(z, threads)
    with nogil:
        if z.way.route == COLUMNS:
            parallel_for(threads, z.way.tasks, run_columns, z)
        elif z.way.route == RUNS:
            parallel_for(threads, z.way.tasks, run_runs, z)
        else:
            parallel_for(threads, z.way.tasks, run_slices, z)
    return 0


cdef void run_columns(void *context, Py_ssize_t index) noexcept nogil:
    """One task: a strip of columns of a scale group of rows."""
    cdef const Quantization *z = <const Quantization *>context
    cdef const Layout *a = &z.layout
    cdef Py_ssize_t strips = ceil_div(a.cols, z.way.strip)
    cdef Py_ssize_t column = index % strips * z.way.strip, block = index // strips, row = block % a.groups * a.group
    cdef mp_part p = part_at(z, block // a.groups * a.outer_stride + row * a.row_stride + column, a.row_stride)
    p.rows, p.cols, p.by_column = min(a.group, a.rows - row), min(z.way.strip, a.cols - column), 1
    quantize_part(z, &p, block * a.cols + column)


cdef void run_runs(void *context, Py_ssize_t index) noexcept nogil:
    """One task: a share of the runs. Those that are equally long and follow each other are one part."""
    cdef const Quantization *z = <const Quantization *>context
    cdef const Layout *a = &z.layout
    cdef Py_ssize_t at = index * z.way.share, last = min(at + z.way.share, a.outer * a.groups)
    cdef Py_ssize_t full = a.cols // a.group if a.group else 1, block, n, length
    cdef mp_part p
    while at < last:
        block, n, length = at // a.groups, last - at, a.group
        if full < a.groups:  # the last run of a slab is shorter
            n = min(n, full - at % a.groups)
            if n == 0:
                n, length = 1, a.cols - full * a.group
        if z.how != GIVEN:
            n = min(n, max(1, <Py_ssize_t>MP_CHUNK // max(length, 1)))
        p = part_at(z, block * a.outer_stride + at % a.groups * a.group, length)
        p.rows, p.cols, p.by_row = n, length, 1
        quantize_part(z, &p, at)
        at += n


cdef void run_slices(void *context, Py_ssize_t index) noexcept nogil:
    """One task: a slab of several rows that share a scale."""
    cdef const Quantization *z = <const Quantization *>context
    cdef mp_part p = part_at(z, index * z.layout.outer_stride, z.layout.row_stride)
    p.rows, p.cols = z.layout.rows, z.layout.cols
    quantize_part(z, &p, index)


# ---- SPLIT: each thread finds the ranges of its share for all scales; they are merged; then all threads compute codes

cdef int run_split(Quantization *z, int threads) except -1:
    cdef const Layout *a = &z.layout
    cdef Py_ssize_t along = a.rows if a.rows > 1 else a.cols, scales = a.outer * (a.cols if a.by_column else 1), task, i
    cdef Py_ssize_t share = z.way.share, tasks = z.way.tasks
    if z.how != GIVEN:
        if a.rows > 1:  # one task for each thread, since each has ranges as long as a row
            z.way.share = ceil_div(along, threads)
            tasks = ceil_div(along, z.way.share)
        z.lo = <float *>calloc(2 * tasks * scales, sizeof(float))
        if z.lo == NULL:
            raise MemoryError
        z.hi = z.lo + tasks * scales
    with nogil:
        if z.how != GIVEN:
            parallel_for(threads, tasks, find_share, z)
            for task in range(1, tasks):
                for i in range(scales):
                    z.lo[i] = min(z.lo[i], z.lo[task * scales + i])
                    z.hi[i] = max(z.hi[i], z.hi[task * scales + i])
            make_scales(z, z.lo, z.hi, 0, scales)
            free(z.lo)
        z.way.share = share
        parallel_for(threads, z.way.tasks, convert_share, z)
    return 0


cdef mp_part share_of(const Quantization *z, Py_ssize_t block, Py_ssize_t index) noexcept nogil:
    """A share of the rows of a slab or, if it has only one, of its columns."""
    cdef const Layout *a = &z.layout
    cdef Py_ssize_t start = index * z.way.share
    cdef mp_part p
    if a.rows > 1:
        p = part_at(z, block * a.outer_stride + start * a.row_stride, a.row_stride)
        p.rows, p.cols, p.by_column = min(z.way.share, a.rows - start), a.cols, a.by_column
    else:
        p = part_at(z, block * a.outer_stride + start, a.cols)
        p.rows, p.cols = 1, min(z.way.share, a.cols - start)
    return p


cdef void find_share(void *context, Py_ssize_t index) noexcept nogil:
    """One task: the ranges of a share of every slab."""
    cdef const Quantization *z = <const Quantization *>context
    cdef Py_ssize_t scales = z.layout.cols if z.layout.by_column else 1, block, at
    cdef mp_part p
    for block in range(z.layout.outer):
        p = share_of(z, block, index)
        at = (index * z.layout.outer + block) * scales
        find_ranges(z, &p, z.lo + at, z.hi + at)


cdef void convert_share(void *context, Py_ssize_t index) noexcept nogil:
    """One task: the codes, or the numbers, of a share of every slab."""
    cdef const Quantization *z = <const Quantization *>context
    cdef Py_ssize_t block
    cdef mp_part p
    for block in range(z.layout.outer):
        p = share_of(z, block, index)
        convert(z, &p, block * (z.layout.cols if z.layout.by_column else 1))


include "quantize_parts.pxi"
