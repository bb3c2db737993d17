# Included by convert.pyx: casts, copies and zeros as steps of a recording.

cdef enum:
    MOST_AXES = 64

cdef struct CastStep:
    Cast cast
    Py_ssize_t rows, row        # rows, and elements of each
    int axes                    # 0: both sides are contiguous
    Py_ssize_t shape[MOST_AXES]
    Py_ssize_t src_stride[MOST_AXES]
    Py_ssize_t dst_stride[MOST_AXES]
    bint failed


cdef void run_lines(const CastStep *s, const char *src, char *dst, int axis) noexcept nogil:
    """The elements of an array from `axis` on, line by line."""
    cdef Py_ssize_t i
    if axis == s.axes - 1:
        cast_line(&s.cast, src, s.src_stride[axis], dst, s.dst_stride[axis], s.shape[axis])
        return
    for i in range(s.shape[axis]):
        run_lines(s, src + i * s.src_stride[axis], dst + i * s.dst_stride[axis], axis + 1)


cdef void run_cast_step(void *context, Py_ssize_t index) noexcept nogil:
    """One task: a share of contiguous elements, or one index of the first axis of others."""
    cdef CastStep *s = <CastStep *>context
    if s.axes == 0:
        cast_share(&s.cast, index)
    elif s.axes == 1:
        run_lines(s, s.cast.src, s.cast.dst, 0)
    else:
        run_lines(s, s.cast.src + index * s.src_stride[0], s.cast.dst + index * s.dst_stride[0], 1)


cdef Py_ssize_t prepare_cast(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    cdef CastStep *s = <CastStep *>context
    if rows < 0:
        rows = s.rows
    s.cast.kernels, s.cast.n, s.cast.mode = kernels(), rows * s.row, s.cast.mode & ~MP_STREAM
    if s.axes == 0:
        return share_cast(&s.cast, threads)
    return 1 if s.axes == 1 else rows


cdef int note_cast(const Cast *c, cnp.ndarray src, cnp.ndarray dst, bint is_new=True) except -1:
    """Note a cast, or a copy, on the tape of this thread. If dst is new memory, it is a constant if src is one."""
    cdef CastStep s
    cdef int axis, axes = cnp.PyArray_NDIM(src)
    cdef Py_ssize_t base = <Py_ssize_t>&s
    if not recording().changes(src) and is_new:
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
    if is_new:
        recording().add_buffer(dst)
    recording().note(
        "copy" if c.src_format == COPY else "cast",
        Kind(prepare_cast, run_cast_step, sizeof(s), <Py_ssize_t>&s.failed - base), &s,
        (<Py_ssize_t>&s.cast.src - base, <Py_ssize_t>&s.cast.dst - base),
        Cost(s.rows, 0, NO_ARITHMETIC, c.n * (c.src_size + c.dst_size)))
    return 0


cdef Cast copy_of(cnp.ndarray x, cnp.ndarray out) noexcept:
    """The cast that changes nothing."""
    cdef Cast c
    memset(&c, 0, sizeof(c))
    c.n, c.src, c.dst = cnp.PyArray_SIZE(x), cnp.PyArray_BYTES(x), cnp.PyArray_BYTES(out)
    c.src_size = c.dst_size = cnp.PyArray_ITEMSIZE(x)
    c.src_format = c.dst_format = COPY
    return c


def copied(cnp.ndarray x not None):
    """Return a C-contiguous copy of an array, a step of the recording if there is one."""
    cdef cnp.ndarray result = cnp.PyArray_NewCopy(x, cnp.NPY_CORDER)
    cdef Cast c
    if is_recording() and cnp.PyArray_SIZE(x):
        c = copy_of(x, result)
        note_cast(&c, x, result)
    return result


cdef struct Fill:
    char *to
    Py_ssize_t bytes, size      # all, and of an element; 0: of any, which is zero
    char element[16]
    bint failed


cdef Py_ssize_t prepare_fill(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    return 1


cdef void run_fill(void *context, Py_ssize_t index) noexcept nogil:
    cdef Fill *f = <Fill *>context
    cdef Py_ssize_t done = f.size
    if f.size == 0:
        memset(f.to, 0, f.bytes)
        return
    memcpy(f.to, f.element, f.size)
    while done < f.bytes:       # copy what is there behind it: twice as much each time
        memcpy(f.to + done, f.to, min(done, f.bytes - done))
        done += min(done, f.bytes - done)


def filled(tuple shape not None, object dtype not None, object value):
    """Return an array of equal elements, which a recording sets to this value in every run."""
    cdef cnp.ndarray result = np.zeros(shape, dtype) if value == 0 else np.full(shape, value, dtype)
    cdef Fill f
    cdef Py_ssize_t base = <Py_ssize_t>&f
    if is_recording() and cnp.PyArray_SIZE(result):
        memset(&f, 0, sizeof(f))
        f.to, f.bytes = cnp.PyArray_BYTES(result), cnp.PyArray_NBYTES(result)
        f.size = 0 if value == 0 else cnp.PyArray_ITEMSIZE(result)
        memcpy(f.element, f.to, f.size)
        recording().add_buffer(result)
        recording().note("fill", Kind(prepare_fill, run_fill, sizeof(f), <Py_ssize_t>&f.failed - base), &f,
                         (<Py_ssize_t>&f.to - base,), Cost(0, 0, NO_ARITHMETIC, f.bytes))
    return result


def empty(tuple shape not None, object dtype not None):
    """Return an array for :func:`copy_into`, which writes its parts one by one."""
    cdef cnp.ndarray result = np.empty(shape, dtype)
    if is_recording() and cnp.PyArray_SIZE(result):
        recording().add_buffer(result)
    return result


def copy_into(cnp.ndarray out not None, cnp.ndarray x not None):
    """Copy `x` into an array that nothing else has written, or a part of one that :func:`filled` or :func:`empty` made.

    Both have the same shape and type, and any strides; `out` may be in another byte order.
    """
    cdef Cast c
    out[...] = x
    if is_recording() and cnp.PyArray_SIZE(x):
        if recording().find(<Py_ssize_t>cnp.PyArray_DATA(out)) is None:
            recording().add_buffer(out)
        c = copy_of(x, out)
        note_cast(&c, x, out, False)
