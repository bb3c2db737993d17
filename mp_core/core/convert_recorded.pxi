# Included by convert.pyx: casts, copies and rows of tables as steps of a recording, and the look-up of rows.

cdef enum:
    MOST_AXES = 64
    COPY = -1                   # as src_format: elements are copied as they are

cdef struct CastStep:
    Cast cast
    Py_ssize_t rows, row        # elements of a row are `row`
    int axes                    # 0: both sides are contiguous
    Py_ssize_t shape[MOST_AXES]
    Py_ssize_t src_stride[MOST_AXES]
    Py_ssize_t dst_stride[MOST_AXES]
    bint failed


cdef void run_line(const Cast *c, const char *src, Py_ssize_t src_step, char *dst, Py_ssize_t dst_step,
                   Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if c.src_format != COPY:
        run_strided(c, src, src_step, dst, dst_step, n)
    elif src_step == c.src_size and dst_step == c.dst_size:
        memcpy(dst, src, n * c.src_size)
    else:
        for i in range(n):
            memcpy(dst + i * dst_step, src + i * src_step, c.src_size)


cdef void run_lines(const CastStep *s, const char *src, char *dst, int axis) noexcept nogil:
    """The elements of an array from `axis` on, line by line."""
    cdef Py_ssize_t i
    if axis == s.axes - 1:
        run_line(&s.cast, src, s.src_stride[axis], dst, s.dst_stride[axis], s.shape[axis])
        return
    for i in range(s.shape[axis]):
        run_lines(s, src + i * s.src_stride[axis], dst + i * s.dst_stride[axis], axis + 1)


cdef void run_cast(void *context, Py_ssize_t index) noexcept nogil:
    """One task: a share of contiguous elements, or one index of the first axis of others."""
    cdef CastStep *s = <CastStep *>context
    if s.axes == 0:
        run_share(&s.cast, index)
    elif s.axes == 1:
        run_lines(s, s.cast.src, s.cast.dst, 0)
    else:
        run_lines(s, s.cast.src + index * s.src_stride[0], s.cast.dst + index * s.dst_stride[0], 1)


cdef Py_ssize_t prepare_cast(void *context, Py_ssize_t rows, int threads) noexcept nogil:
    cdef CastStep *s = <CastStep *>context
    if rows < 0:
        rows = s.rows
    s.cast.kernels, s.cast.n, s.cast.mode = kernels(), rows * s.row, s.cast.mode & ~MP_STREAM
    if s.axes == 0:
        return share_out(&s.cast, threads)
    return 1 if s.axes == 1 else rows


cdef int note_cast(const Cast *c, cnp.ndarray src, cnp.ndarray dst) except -1:
    """Note a cast, or a copy, on the tape of this thread; dst is new memory, a constant if src is one."""
    cdef CastStep s
    cdef int axis, axes = cnp.PyArray_NDIM(src)
    cdef Py_ssize_t base = <Py_ssize_t>&s
    if not recording().changes(src):
        recording().add_constant(dst)
        return 0
    memset(&s, 0, sizeof(s))
    s.cast, s.rows = c[0], cnp.PyArray_DIM(src, 0) if axes else 1
    s.row = c.n // s.rows
    if axes and not (cnp.PyArray_IS_C_CONTIGUOUS(src) and cnp.PyArray_IS_C_CONTIGUOUS(dst) and c.src_format != COPY):
        s.axes = axes
        for axis in range(axes):
            s.shape[axis], s.src_stride[axis] = cnp.PyArray_DIM(src, axis), cnp.PyArray_STRIDE(src, axis)
            s.dst_stride[axis] = cnp.PyArray_STRIDE(dst, axis)
    recording().add_buffer(dst)
    recording().note(
        "copy" if c.src_format == COPY else "cast", prepare_cast, run_cast, &s, sizeof(s), <Py_ssize_t>&s.failed - base,
        (<Py_ssize_t>&s.cast.src - base, <Py_ssize_t>&s.cast.dst - base), s.rows, 0, c.n * (c.src_size + c.dst_size))
    return 0


def copied(cnp.ndarray x not None):
    """Return a C-contiguous copy of an array, a step of the recording if there is one."""
    cdef cnp.ndarray result = cnp.PyArray_NewCopy(x, cnp.NPY_CORDER)
    cdef Cast c
    if not is_recording() or cnp.PyArray_SIZE(x) == 0:
        return result
    memset(&c, 0, sizeof(c))
    c.n, c.src, c.dst = cnp.PyArray_SIZE(x), cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(result)
    c.src_size = c.dst_size = cnp.PyArray_ITEMSIZE(x)
    c.src_format = c.dst_format = COPY
    note_cast(&c, x, result)
    return result


# ---- rows of a table

cdef struct Gather:
    Cast cast                   # of one row
    const char *table
    const float *scale          # of int8 codes, one for each row of the table, or NULL
    const int32_t *indices
    char *out
    Py_ssize_t rows, limit, row_bytes, share  # indices; rows of the table; bytes from one to the next
    int failed                  # NO_ROW, or 0


cdef void gather_codes(const Gather *g, const int8_t *codes, float scale, char *out) noexcept nogil:
    """A row of numbers ``scale * code``, rounded once to the type of the result."""
    cdef mp_chunk_floats buffer
    cdef Py_ssize_t first = 0, j, count
    while first < g.cast.n:
        count = min(g.cast.n - first, <Py_ssize_t>CHUNK)
        for j in range(count):
            buffer.at[j] = scale * <float>codes[first + j]
        g.cast.kernels.casts.narrow[g.cast.dst_format](buffer.at, out + first * g.cast.dst_size, count, 0)
        first += count


cdef void gather_share(void *context, Py_ssize_t index) noexcept nogil:
    cdef Gather *g = <Gather *>context
    cdef Py_ssize_t i, row
    cdef char *to
    for i in range(index * g.share, min((index + 1) * g.share, g.rows)):
        row = g.indices[i]
        if not 0 <= row < g.limit:
            g.failed = NO_ROW
            row = 0
        to = g.out + i * g.cast.n * g.cast.dst_size
        if g.scale != NULL:
            gather_codes(g, <const int8_t *>(g.table + row * g.row_bytes), g.scale[row], to)
        else:
            run_line(&g.cast, g.table + row * g.row_bytes, g.cast.src_size, to, g.cast.dst_size, g.cast.n)


cdef Py_ssize_t prepare_gather(void *context, Py_ssize_t rows, int threads) noexcept nogil:
    cdef Gather *g = <Gather *>context
    g.cast.kernels = kernels()
    if rows >= 0:
        g.rows = rows
    g.share = max(1, (g.rows + threads - 1) // threads)
    return (g.rows + g.share - 1) // g.share


def gather(cnp.ndarray table not None, cnp.ndarray indices not None, cnp.ndarray out not None, int src_format,
           int dst_format, cnp.ndarray scale=None):
    """out[i] = table[indices[i]] (* scale[indices[i]]), cast to `dst_format`, for every int32 index.

    `table` has two axes and rows of unit stride; `out`, C-contiguous, is as wide. Formats are those of :func:`convert`.
    With `scale`, contiguous float32, one for each row, the table is int8. Raises IndexError for an index outside of it.
    """
    cdef Gather g
    cdef Py_ssize_t base = <Py_ssize_t>&g
    memset(&g, 0, sizeof(g))
    g.cast.src_format, g.cast.dst_format, g.cast.n = src_format, dst_format, cnp.PyArray_DIM(table, 1)
    g.cast.src_size, g.cast.dst_size = cnp.PyArray_ITEMSIZE(table), cnp.PyArray_ITEMSIZE(out)
    g.table, g.row_bytes, g.limit = cnp.PyArray_BYTES(table), cnp.PyArray_STRIDE(table, 0), cnp.PyArray_DIM(table, 0)
    g.indices, g.out = <const int32_t *>cnp.PyArray_DATA(indices), cnp.PyArray_BYTES(out)
    g.rows = cnp.PyArray_SIZE(indices)
    if scale is not None:
        g.scale = <const float *>cnp.PyArray_DATA(scale)
    if g.rows == 0 or g.cast.n == 0:
        return
    if is_recording():
        recording().add_buffer(out)
        recording().note(
            "look-up", prepare_gather, gather_share, &g, sizeof(g), <Py_ssize_t>&g.failed - base,
            (<Py_ssize_t>&g.table - base, <Py_ssize_t>&g.scale - base, <Py_ssize_t>&g.indices - base,
             <Py_ssize_t>&g.out - base), g.rows, 0,
            g.rows * g.cast.n * (g.cast.src_size + g.cast.dst_size))
    prepare_gather(&g, -1, 1)
    with nogil:
        gather_share(&g, 0)
    if g.failed:
        raise IndexError(f"an index is outside of the table, which has {g.limit} rows")
