"""The ways through an array whose slices share scales: how they read memory least. The arithmetic is in the kernels."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from mp_core.core.cpu cimport parallel_for, threads_for
from mp_core.core.header cimport MP_CODE_U8, MP_F32, MP_FAR, MP_MORE, MP_STREAM, MP_WITHIN, mp_tile

cdef double WORTHWHILE = 1 << 17

cdef enum:
    CHUNK = 4096        # elements that pass through buffers in the first-level cache at a time
    STRIP = 1024        # columns whose scales are found and used at a time: those of 128 rows fit a second-level cache
    SOON = 2048         # elements between a fetch from memory and its use
    WIDE = 1 << 14      # columns whose scales are given, for one thread: the most that a kernel takes at a time
    FETCHED = 1 << 21   # bytes of an array that a second-level cache does not hold
    IN_CACHE = 1 << 17  # elements that stay in a second-level cache from their range to their codes

# What to fetch while there is something to compute. Where a tile is read twice, the second time from a cache: meanwhile
# the next tile or strip, or half of the next tile each time, unless codes take as long as memory. Of what is read once:
# what follows.
cdef enum:
    NOTHING, NEXT_TILE, NEXT_STRIP, HALVES, FOLLOWING


cdef mp_tile tile_of(const Blocks *b, Py_ssize_t at, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t cols,
                     Py_ssize_t row_step, Py_ssize_t col_step) noexcept nogil:
    """`rows` rows, ld elements apart, from element `at` on, as they lie in memory; without their scales."""
    cdef mp_tile t
    t.rows, t.cols, t.ldx, t.ldq, t.row_step, t.col_step = rows, cols, ld, ld, row_step, col_step
    t.x, t.q, t.scale, t.zero_point = <float *>(b.x + at * b.size), b.q + (at >> b.packed), NULL, NULL
    t.qmin, t.qmax, t.mode = b.qmin, b.qmax, b.mode
    t.ahead, t.next = 0, NULL
    if b.fetch == FOLLOWING:
        t.ahead, t.mode = SOON, b.mode | MP_FAR
    return t


cdef Py_ssize_t rows_of_chunk(const mp_tile *t) noexcept nogil:
    return CHUNK // max(1, min(t.cols, <Py_ssize_t>CHUNK))


cdef Py_ssize_t chunks_of(const mp_tile *t) noexcept nogil:
    """How many parts a tile has of at most CHUNK elements: some rows, or a piece of one."""
    cdef Py_ssize_t rows = rows_of_chunk(t)
    return (t.rows + rows - 1) // rows * ((t.cols + CHUNK - 1) // CHUNK)


cdef mp_tile chunk_of(const mp_tile *t, Py_ssize_t index, Py_ssize_t *i, Py_ssize_t *j) noexcept nogil:
    """The scales of a part, numbered along the rows, whose first element is (i, j); its elements are in buffers."""
    cdef mp_tile part = t[0]
    cdef Py_ssize_t across = (t.cols + CHUNK - 1) // CHUNK, rows = rows_of_chunk(t), at
    i[0], j[0] = index // across * rows, index % across * CHUNK
    at = i[0] * t.row_step + j[0] * t.col_step
    part.rows, part.cols = min(t.rows - i[0], rows), min(t.cols - j[0], <Py_ssize_t>CHUNK)
    part.ldx, part.ldq, part.mode, part.ahead = part.cols, part.cols, t.mode & MP_WITHIN, 0
    part.next = NULL
    if t.scale != NULL:
        part.scale = t.scale + at
    if t.zero_point != NULL:
        part.zero_point = t.zero_point + at
    return part


cdef void widen(const Blocks *b, const mp_tile *t, Py_ssize_t i, Py_ssize_t j, const mp_tile *part) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(part.rows):
        b.kernels.casts.widen[b.format](<char *>t.x + ((i + r) * t.ldx + j) * b.size, part.x + r * part.ldx, part.cols, 0)


cdef void find(const Blocks *b, const mp_tile *t, float *lo, float *hi) noexcept nogil:
    """Widen the ranges of the tile's scales by its elements."""
    cdef float middle[CHUNK]
    cdef mp_tile part
    cdef Py_ssize_t i, j, at, index
    if b.format != MP_F32:
        for index in range(chunks_of(t)):
            part = chunk_of(t, index, &i, &j)
            part.x = middle
            widen(b, t, i, j, &part)
            at = i * t.row_step + j * t.col_step
            if b.how == SYMMETRIC:
                b.kernels.quantizers.amax(&part, hi + at)
            else:
                b.kernels.quantizers.range(&part, lo + at, hi + at)
    elif b.how == SYMMETRIC:
        b.kernels.quantizers.amax(t, hi)
    else:
        b.kernels.quantizers.range(t, lo, hi)


cdef void steps(const Blocks *b, const float *lo, const float *hi, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """The n scales from the `first` on, by their ranges."""
    if b.how == ASYMMETRIC:
        b.kernels.quantizers.asymmetric_scales(lo, hi, n, b.qmin, b.qmax, b.scale + first, b.zero_point + first)
    else:
        b.kernels.quantizers.symmetric_scales(hi, n, b.largest, b.scale + first)


cdef void convert(const Blocks *b, mp_tile *t, Py_ssize_t first) noexcept nogil:
    """Numbers of a tile to codes, or back, by the scales from the `first` on."""
    cdef float middle[CHUNK]
    cdef uint8_t codes[CHUNK]
    cdef mp_tile part
    cdef Py_ssize_t i, j, r, index, chunks
    t.scale = b.scale + first
    if b.zero_point != NULL:
        t.zero_point = b.zero_point + first
    if b.format == MP_F32 and not b.packed:
        if b.back:
            b.kernels.quantizers.dequantize[b.code](t)
        else:
            b.kernels.quantizers.quantize[b.code](t)
        return
    chunks = chunks_of(t)
    for index in range(chunks):
        part = chunk_of(t, index, &i, &j)
        if b.format != MP_F32:
            part.x = middle
        else:
            part.x, part.ldx, part.ahead = t.x + i * t.ldx + j, t.ldx, t.ahead
            if not b.back:
                part.mode = t.mode & ~MP_STREAM
            else:
                part.mode = t.mode if index + 1 == chunks else t.mode | MP_MORE
            if t.next != NULL:
                part.next = t.next + (i * t.ldx + j) // 2
        if b.packed:
            part.q = codes
        else:
            part.q, part.ldq = t.q + i * t.ldq + j, t.ldq
        if b.back:
            for r in range(part.rows if b.packed else 0):
                b.kernels.quantizers.unpack_nibbles(t.q + (((i + r) * t.ldq + j) >> 1), part.cols, b.qmin < 0,
                                                     codes + r * part.cols)
            b.kernels.quantizers.dequantize[b.code](&part)
            for r in range(part.rows if b.format != MP_F32 else 0):
                b.kernels.casts.narrow[b.format](middle + r * part.cols, <char *>t.x + ((i + r) * t.ldx + j) * b.size,
                                           part.cols, 0)
        else:
            if b.format != MP_F32:
                widen(b, t, i, j, &part)
            b.kernels.quantizers.quantize[b.code](&part)
            for r in range(part.rows if b.packed else 0):
                b.kernels.quantizers.pack_nibbles(codes + r * part.cols, part.cols, t.q + (((i + r) * t.ldq + j) >> 1))


cdef void tile(const Blocks *b, Py_ssize_t at, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t row_step,
               Py_ssize_t col_step, Py_ssize_t first) noexcept nogil:
    """All there is to do for some scales, at most CHUNK if they are found: their ranges, themselves, and the codes."""
    cdef float lo[CHUNK]
    cdef float hi[CHUNK]
    cdef Py_ssize_t n = rows if row_step else cols if col_step else 1
    cdef mp_tile t = tile_of(b, at, ld, rows, cols, row_step, col_step)
    if b.how != GIVEN:
        memset(lo, 0, n * sizeof(float))
        memset(hi, 0, n * sizeof(float))
        if b.fetch == HALVES:
            t.next = t.x + rows * ld
        find(b, &t, lo, hi)
        steps(b, lo, hi, first, n)
        if b.fetch == HALVES:
            t.next += rows * ld // 2
        elif b.fetch == NEXT_TILE:
            t.ahead = rows * ld
        elif b.fetch == NEXT_STRIP:
            t.ahead = STRIP
    convert(b, &t, first)


cdef void run_columns(void *context, Py_ssize_t index) noexcept nogil:
    """by_column: a strip of columns of a group of rows."""
    cdef const Blocks *b = <const Blocks *>context
    cdef Py_ssize_t strips = (b.cols + b.strip - 1) // b.strip
    cdef Py_ssize_t column = index % strips * b.strip, block = index // strips
    cdef Py_ssize_t row = block % b.groups * b.group
    tile(b, block // b.groups * b.outer_stride + row * b.row_stride + column, b.row_stride,
         min(b.group, b.rows - row), min(b.strip, b.cols - column), 0, 1, block * b.cols + column)


cdef void run_runs(void *context, Py_ssize_t index) noexcept nogil:
    """A share of the runs with one scale each: many at a time that are equally long and follow each other."""
    cdef const Blocks *b = <const Blocks *>context
    cdef Py_ssize_t run = index * b.share, last = min(run + b.share, b.outer * b.groups)
    cdef Py_ssize_t full = b.cols // b.group if b.group else 1, block, n, length, batch
    while run < last:
        block, n, length = run // b.groups, last - run, b.group
        if full < b.groups:
            n = min(n, full - run % b.groups)
            if n == 0:
                n, length = 1, b.cols - full * b.group
        batch = n if b.how == GIVEN else min(n, max(1, <Py_ssize_t>CHUNK // max(length, 1)))
        tile(b, block * b.outer_stride + run % b.groups * b.group, length, batch, length, 1, 0, run)
        run += batch


cdef void run_slices(void *context, Py_ssize_t index) noexcept nogil:
    """A block of several rows that share a scale."""
    cdef const Blocks *b = <const Blocks *>context
    tile(b, index * b.outer_stride, b.row_stride, b.rows, b.cols, 0, 0, index)


# ---- few scales and many threads: all threads find the ranges, then all make codes

cdef mp_tile share_of(const Blocks *b, Py_ssize_t block, Py_ssize_t index) noexcept nogil:
    """A share of a block's rows or, where it has only one, of its columns."""
    cdef Py_ssize_t start = index * b.share
    if b.rows > 1:
        return tile_of(b, block * b.outer_stride + start * b.row_stride, b.row_stride, min(b.share, b.rows - start),
                       b.cols, 0, b.by_column)
    return tile_of(b, block * b.outer_stride + start, b.cols, 1, min(b.share, b.cols - start), 0, 0)


cdef void find_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Blocks *b = <const Blocks *>context
    cdef Py_ssize_t scales = b.cols if b.by_column else 1, block, at
    cdef mp_tile t
    for block in range(b.outer):
        t = share_of(b, block, index)
        at = (index * b.outer + block) * scales
        find(b, &t, b.lo + at, b.hi + at)


cdef void convert_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Blocks *b = <const Blocks *>context
    cdef Py_ssize_t block
    cdef mp_tile t
    for block in range(b.outer):
        t = share_of(b, block, index)
        convert(b, &t, block * (b.cols if b.by_column else 1))


cdef Py_ssize_t bytes_of(const Blocks *b) noexcept nogil:
    return b.outer * b.rows * b.cols * b.size


cdef int split(Blocks *b, int threads) except -1:
    """Read x once for the ranges and once for the codes."""
    cdef Py_ssize_t along = b.rows if b.rows > 1 else b.cols, part, i
    cdef Py_ssize_t scales = b.outer * (b.cols if b.by_column else 1)
    cdef Py_ssize_t quarter = (along + 4 * threads - 1) // (4 * threads)
    if b.rows == 1:
        quarter = (quarter + 63) // 64 * 64
    b.share = quarter if b.rows == 1 else (along + threads - 1) // threads  # every part has a range for all scales
    b.parts = <int>((along + b.share - 1) // b.share)
    b.fetch = FOLLOWING if bytes_of(b) >= FETCHED else NOTHING
    if b.how != GIVEN:
        b.lo = <float *>calloc(2 * b.parts * scales, sizeof(float))
        if b.lo == NULL:
            raise MemoryError
        b.hi = b.lo + b.parts * scales
    with nogil:
        if b.how != GIVEN:
            parallel_for(threads, b.parts, find_share, b)
            for part in range(1, b.parts):
                for i in range(scales):
                    b.lo[i] = min(b.lo[i], b.lo[part * scales + i])
                    b.hi[i] = max(b.hi[i], b.hi[part * scales + i])
            steps(b, b.lo, b.hi, 0, scales)
            free(b.lo)
        b.share = quarter
        parallel_for(threads, (along + quarter - 1) // quarter, convert_share, b)
    return 0


cdef int run(Blocks *b) except -1:
    cdef int threads = threads_for(<double>b.outer * b.rows * b.cols, WORTHWHILE)
    cdef Py_ssize_t tasks, rows
    b.fetch = NOTHING
    if b.cols == 0 and b.rows > 1:
        b.rows = 0  # there may be more rows without elements than a loop can count
    if bytes_of(b) >= FETCHED:
        if b.how == GIVEN:
            b.fetch = FOLLOWING
        elif b.by_column and b.cols > STRIP:
            b.fetch = NEXT_STRIP
        elif b.outer * b.groups > 1:
            b.fetch = HALVES if b.code <= MP_CODE_U8 and not b.by_column else NEXT_TILE
    if b.by_column:
        rows = max(1, min(b.group, b.rows))
        b.strip = <Py_ssize_t>STRIP
        if b.how == GIVEN:
            b.strip = <Py_ssize_t>WIDE if threads == 1 else <Py_ssize_t>CHUNK
        if b.groups == 1 and rows > 1 and rows * b.cols > IN_CACHE:
            return split(b, threads)
        tasks = b.outer * b.groups * ((b.cols + b.strip - 1) // b.strip)
    elif b.rows == 1:
        tasks = b.outer * b.groups
    else:
        tasks = b.outer
    if 1 < threads and tasks < 2 * threads and b.groups == 1 and (b.rows > 1 or not b.by_column):
        return split(b, threads)
    with nogil:
        if b.by_column:
            parallel_for(threads, tasks, run_columns, b)
        elif b.rows == 1:
            b.share = max(1, (tasks + 4 * threads - 1) // (4 * threads)) if threads > 1 else max(tasks, 1)
            parallel_for(threads, (tasks + b.share - 1) // b.share, run_runs, b)
        else:
            parallel_for(threads, tasks, run_slices, b)
    return 0
