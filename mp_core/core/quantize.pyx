"""Quantization: which slices share a scale, and the way through them that reads memory least."""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from mp_core.core.cpu cimport kernels, parallel_for, threads_for
from mp_core.core.header cimport MP_CODE_U8, MP_F32, MP_FLOATS, MP_STREAM, MP_WITHIN, mp_kernels, mp_tile

cnp.import_array()

cdef double WORTHWHILE = 1 << 17

# Bytes that no cache holds from one call to the next: such results are streamed, such numbers fetched ahead.
cdef Py_ssize_t STREAMED = 1 << 24

cdef enum:
    CHUNK = 4096      # elements that pass through buffers in the first-level cache at a time
    STRIP = 1024      # columns whose scales are found and used at a time: those of 128 rows fit a second-level cache
    PAGES = 128       # rows, far apart, that are read side by side
    IN_CACHE = 1 << 17  # elements that stay in a second-level cache from their range to their codes

# How scales come about: given, by max |x|, by max(x, 0), by the range of x.
cdef enum:
    GIVEN, SYMMETRIC, POSITIVE, ASYMMETRIC

# What to fetch while there is something to compute: the next tile, or strip, while one whose range was just found is in
# a cache; the next rows of columns. Runs that are read once the processor fetches better by itself.
cdef enum:
    NOTHING, NEXT_TILE, NEXT_STRIP, NEXT_ROWS

# A C-contiguous array of `outer` blocks. by_column: each block is `rows` rows of `cols` columns with a scale for every
# column of every `group` rows. Else, with one row, a block has a scale for every `group` elements; with more rows,
# which lie row_stride apart, one scale.
cdef struct Blocks:
    const mp_kernels *kernels
    Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups, strip, share
    bint by_column, back
    int how, format, size, code, packed, mode, parts, fetch
    int32_t qmin, qmax
    float largest
    char *x
    uint8_t *q
    float *scale
    int32_t *zero_point
    float *lo
    float *hi


cdef mp_tile tile_of(const Blocks *b, Py_ssize_t at, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t cols,
                     Py_ssize_t row_step, Py_ssize_t col_step) noexcept nogil:
    """`rows` rows, ld elements apart, from element `at` on, as they lie in memory; without their scales."""
    cdef mp_tile t
    t.rows, t.cols, t.ldx, t.ldq, t.row_step, t.col_step = rows, cols, ld, ld, row_step, col_step
    t.x, t.q, t.scale, t.zero_point = <float *>(b.x + at * b.size), b.q + (at >> b.packed), NULL, NULL
    t.qmin, t.qmax, t.mode = b.qmin, b.qmax, b.mode
    t.ahead = rows * ld if b.fetch == NEXT_TILE else STRIP if b.fetch == NEXT_STRIP else 4 * ld if b.fetch else 0
    return t


cdef mp_tile part_of(const mp_tile *t, Py_ssize_t i, Py_ssize_t j, Py_ssize_t rows, Py_ssize_t cols) noexcept nogil:
    """The scales of a part of a tile; its elements are elsewhere, close together."""
    cdef mp_tile part = t[0]
    cdef Py_ssize_t at = i * t.row_step + j * t.col_step
    part.rows, part.cols, part.ldx, part.ldq, part.mode = rows, cols, cols, cols, t.mode & ~MP_STREAM
    if t.scale != NULL:
        part.scale = t.scale + at
    if t.zero_point != NULL:
        part.zero_point = t.zero_point + at
    return part


cdef void widen(const Blocks *b, const mp_tile *t, Py_ssize_t i, Py_ssize_t j, const mp_tile *part) noexcept nogil:
    cdef Py_ssize_t r
    for r in range(part.rows):
        b.kernels.widen[b.format](<char *>t.x + ((i + r) * t.ldx + j) * b.size, part.x + r * part.ldx, part.cols, 0)


cdef void find(const Blocks *b, const mp_tile *t, float *lo, float *hi) noexcept nogil:
    """Widen the ranges of the tile's scales by its elements."""
    cdef float middle[CHUNK]
    cdef mp_tile part
    cdef Py_ssize_t i, j, at, rows, cols
    if b.format != MP_F32:
        j = 0
        while j < t.cols:
            cols = min(t.cols - j, <Py_ssize_t>CHUNK)
            i = 0
            while i < t.rows:
                rows = min(t.rows - i, CHUNK // cols)
                part = part_of(t, i, j, rows, cols)
                part.x = middle
                widen(b, t, i, j, &part)
                at = i * t.row_step + j * t.col_step
                if b.how == SYMMETRIC:
                    b.kernels.amax(&part, hi + at)
                else:
                    b.kernels.range(&part, lo + at, hi + at)
                i += rows
            j += cols
    elif b.how == SYMMETRIC:
        b.kernels.amax(t, hi)
    else:
        b.kernels.range(t, lo, hi)


cdef void steps(const Blocks *b, const float *lo, const float *hi, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """The n scales from the `first` on, by their ranges."""
    if b.how == ASYMMETRIC:
        b.kernels.asymmetric_scales(lo, hi, n, b.qmin, b.qmax, b.scale + first, b.zero_point + first)
    else:
        b.kernels.symmetric_scales(hi, n, b.largest, b.scale + first)


cdef void convert(const Blocks *b, mp_tile *t, Py_ssize_t first) noexcept nogil:
    """Numbers of a tile to codes, or back, by the scales from the `first` on."""
    cdef float middle[CHUNK]
    cdef uint8_t codes[CHUNK]
    cdef mp_tile part
    cdef Py_ssize_t i, j, r, rows, cols
    t.scale = b.scale + first
    if b.zero_point != NULL:
        t.zero_point = b.zero_point + first
    if b.format == MP_F32 and not b.packed:
        if b.back:
            b.kernels.dequantize[b.code](t)
        else:
            b.kernels.quantize[b.code](t)
        return
    j = 0
    while j < t.cols:
        cols = min(t.cols - j, <Py_ssize_t>CHUNK)
        i = 0
        while i < t.rows:
            rows = min(t.rows - i, CHUNK // cols)
            part = part_of(t, i, j, rows, cols)
            if b.format != MP_F32:
                part.x = middle
            else:
                part.x, part.ldx = t.x + i * t.ldx + j, t.ldx
            if b.packed:
                part.q = codes
            else:
                part.q, part.ldq = t.q + i * t.ldq + j, t.ldq
            if b.back:
                for r in range(rows if b.packed else 0):
                    b.kernels.unpack_nibbles(t.q + (((i + r) * t.ldq + j) >> 1), cols, b.qmin < 0, codes + r * cols)
                b.kernels.dequantize[b.code](&part)
                for r in range(rows if b.format != MP_F32 else 0):
                    b.kernels.narrow[b.format](middle + r * cols, <char *>t.x + ((i + r) * t.ldx + j) * b.size, cols, 0)
            else:
                if b.format != MP_F32:
                    widen(b, t, i, j, &part)
                b.kernels.quantize[b.code](&part)
                for r in range(rows if b.packed else 0):
                    b.kernels.pack_nibbles(codes + r * cols, cols, t.q + (((i + r) * t.ldq + j) >> 1))
            i += rows
        j += cols


cdef void tile(const Blocks *b, Py_ssize_t at, Py_ssize_t ld, Py_ssize_t rows, Py_ssize_t cols, Py_ssize_t row_step,
               Py_ssize_t col_step, Py_ssize_t first) noexcept nogil:
    """All there is to do for at most CHUNK scales: their ranges, themselves, and the codes of their elements."""
    cdef float lo[CHUNK]
    cdef float hi[CHUNK]
    cdef Py_ssize_t n = rows if row_step else cols if col_step else 1
    cdef mp_tile t = tile_of(b, at, ld, rows, cols, row_step, col_step)
    if b.how != GIVEN:
        memset(lo, 0, n * sizeof(float))
        memset(hi, 0, n * sizeof(float))
        find(b, &t, lo, hi)
        steps(b, lo, hi, first, n)
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
        batch = min(n, max(1, <Py_ssize_t>CHUNK // max(length, 1)))
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


cdef int split(Blocks *b, int threads) except -1:
    """Read x once for the ranges and once for the codes."""
    cdef Py_ssize_t along = b.rows if b.rows > 1 else b.cols, part, i
    cdef Py_ssize_t scales = b.outer * (b.cols if b.by_column else 1)
    b.share = ((along + 4 * threads - 1) // (4 * threads) + 63) // 64 * 64 if b.rows == 1 else (
        (along + threads - 1) // threads)
    b.parts = <int>((along + b.share - 1) // b.share)
    if b.fetch:
        b.fetch = NEXT_ROWS if b.by_column else NOTHING
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
        if b.rows > 1:  # as many as have their pages at hand
            b.share = min(b.share, <Py_ssize_t>PAGES)
        parallel_for(threads, (along + b.share - 1) // b.share, convert_share, b)
    return 0


cdef int run(Blocks *b) except -1:
    cdef int threads = threads_for(<double>b.outer * b.rows * b.cols, WORTHWHILE)
    cdef Py_ssize_t tasks, rows
    b.fetch = NOTHING
    if b.outer * b.rows * b.cols * b.size >= STREAMED:
        if b.how == GIVEN:
            b.fetch = NEXT_ROWS if b.by_column else NOTHING
        else:
            b.fetch = NEXT_STRIP if b.by_column else NEXT_TILE
    if b.by_column:
        rows = max(1, min(b.group, b.rows))
        b.strip = <Py_ssize_t>CHUNK if b.how == GIVEN else <Py_ssize_t>STRIP
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


cdef void place(Blocks *b, int fmt, cnp.ndarray x, cnp.ndarray q, cnp.ndarray scale, cnp.ndarray zero_point):
    """Tell b where numbers, codes and scales are."""
    b.kernels, b.format, b.size, b.x = kernels(), fmt, <int>cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
    b.q, b.scale = <uint8_t *>cnp.PyArray_BYTES(q), <float *>cnp.PyArray_DATA(scale)
    b.zero_point = NULL if zero_point is None else <int32_t *>cnp.PyArray_DATA(zero_point)
    b.mode = MP_WITHIN if b.how == SYMMETRIC else 0
    if (cnp.PyArray_NBYTES(x) if b.back else cnp.PyArray_NBYTES(q)) >= STREAMED:
        b.mode |= MP_STREAM


cdef class Recipe:
    """What follows from a type of codes, a shape and which of its elements share a scale."""
    cdef Blocks blocks
    cdef readonly tuple shape, axes, scale_shape
    cdef readonly object group_size, dtype
    cdef cnp.npy_intp lengths[64]      # of the shape
    cdef cnp.npy_intp sizes[64]        # ... of the stored codes
    cdef cnp.npy_intp scale_sizes[64]
    cdef int type, how, qmin           # NumPy's number of the stored type; how scales are found; the lowest code then
    cdef bint as_they_are              # the arrays need no copy in another order or without pairs
    cdef bint with_zeros

    def __cinit__(self, tuple shape, tuple stored, cnp.dtype storage, dtype, int code, bint packed, int qmin, int qmax,
                  tuple axes, group_size, tuple scale_shape, blocks, bint as_they_are, bint symmetric):
        cdef Blocks *b = &self.blocks
        cdef int i
        self.shape, self.axes, self.scale_shape = shape, axes, scale_shape
        self.group_size, self.dtype = group_size, dtype
        for i in range(len(shape)):
            self.lengths[i], self.sizes[i], self.scale_sizes[i] = shape[i], stored[i], scale_shape[i]
        self.type, self.as_they_are, self.with_zeros = storage.num, as_they_are, not symmetric
        self.how = ASYMMETRIC if not symmetric else SYMMETRIC if qmin else POSITIVE
        self.qmin = qmin if not symmetric else -qmax if qmin else 0
        b.outer, b.outer_stride, b.rows, b.row_stride, b.cols, b.group, b.groups, b.by_column = blocks
        b.code, b.packed, b.qmin, b.qmax, b.largest = code, packed, qmin, qmax, <float>qmax

    def convert(self, cnp.ndarray x not None, int fmt, cnp.ndarray q not None, cnp.ndarray scale not None,
                cnp.ndarray zero_point, bint given, bint back, bint packed):
        """Write codes `q` (and their scales, unless they are `given`) from `x`, or with `back` `x` from `q`."""
        cdef Blocks b = self.blocks
        b.packed, b.back = packed, back
        if not given:
            b.how, b.qmin = self.how, self.qmin
        place(&b, fmt, x, q, scale, zero_point)
        run(&b)


# The short way: what it knows of types, how to make a recipe and a result, and the long ways for all it does not serve.
cdef int _types[MP_FLOATS]
cdef dict _numbers = {}
cdef object _new = object.__new__
cdef object _result, _recipe, _long_quantize, _long_dequantize


def install(dict formats not None, result, recipe, long_quantize, long_dequantize):
    """Tell the format by dtype, the class of results and the functions behind :func:`quantize`, :func:`dequantize`."""
    global _result, _recipe, _long_quantize, _long_dequantize
    for dtype, number in formats.items():
        if number < MP_FLOATS:
            _numbers[dtype] = _numbers[dtype.name] = number
            _types[<int>number] = dtype.num
    _result, _recipe, _long_quantize, _long_dequantize = result, recipe, long_quantize, long_dequantize


cdef int format_of(cnp.ndarray x) noexcept:
    """The number of the float type of an array that the kernels can read as it lies, else MP_FLOATS."""
    cdef int fmt = 0, number = cnp.PyArray_TYPE(x)
    while fmt < MP_FLOATS and _types[fmt] != number:
        fmt += 1
    return fmt if cnp.PyArray_ISCARRAY_RO(x) else MP_FLOATS


cdef bint fits(object a, int type_number, int ndim, const cnp.npy_intp *sizes, bint to_write) noexcept:
    """Whether it is a C-contiguous ndarray of that type and shape."""
    cdef cnp.ndarray array
    cdef int i
    if type(a) is not cnp.ndarray:
        return False
    array = a
    if (cnp.PyArray_TYPE(array) != type_number or cnp.PyArray_NDIM(array) != ndim
            or not (cnp.PyArray_ISCARRAY(array) if to_write else cnp.PyArray_ISCARRAY_RO(array))):
        return False
    for i in range(ndim):
        if cnp.PyArray_DIM(array, i) != sizes[i]:
            return False
    return True


cdef bint apart(cnp.ndarray a, cnp.ndarray b) noexcept:
    return b is None or (cnp.PyArray_BYTES(a) + cnp.PyArray_NBYTES(a) <= cnp.PyArray_BYTES(b)
                         or cnp.PyArray_BYTES(b) + cnp.PyArray_NBYTES(b) <= cnp.PyArray_BYTES(a))


cdef bint has_parts(dict q, Recipe r, cnp.ndarray x, bint to_write) except -1:
    """Whether the fields of a result are as the recipe says, and no memory of x."""
    values, scale, zeros = q["values"], q["scale"], q["zero_point"]
    cdef int ndim = <int>len(r.shape)
    return (fits(values, r.type, ndim, r.sizes, to_write)
            and fits(scale, cnp.NPY_FLOAT32, ndim, r.scale_sizes, to_write)
            and (zeros is None or fits(zeros, cnp.NPY_INT32, ndim, r.scale_sizes, to_write))
            and (x is None or (apart(x, values) and apart(x, scale) and apart(x, zeros))))


cdef bint is_scale(object scale, Recipe r) except -1:
    """Whether a given scale needs neither broadcasting nor complaint."""
    if type(scale) is float:
        return 1e-30 < <double>scale < 1e30
    return fits(scale, cnp.NPY_FLOAT32, <int>len(r.shape), r.scale_sizes, False) and positive_and_finite(scale)


cdef bint is_zero_point(object zero_point, Recipe r) except -1:
    cdef Py_ssize_t i
    cdef int32_t value
    cdef bint good = r.blocks.code <= MP_CODE_U8
    if type(zero_point) is int:
        return good and r.blocks.qmin <= zero_point <= r.blocks.qmax
    if not fits(zero_point, cnp.NPY_INT32, <int>len(r.shape), r.scale_sizes, False):
        return False
    for i in range(cnp.PyArray_SIZE(zero_point)):
        value = (<const int32_t *>cnp.PyArray_DATA(zero_point))[i]
        good &= r.blocks.qmin <= value <= r.blocks.qmax
    return good


cdef void fill(cnp.ndarray to, object given):
    """Copy what is_scale or is_zero_point accepted."""
    cdef Py_ssize_t i
    cdef float number
    cdef int32_t whole
    if type(given) is cnp.ndarray:
        memmove(cnp.PyArray_DATA(to), cnp.PyArray_DATA(<cnp.ndarray>given), cnp.PyArray_NBYTES(to))
    elif type(given) is float:
        number = given
        for i in range(cnp.PyArray_SIZE(to)):
            (<float *>cnp.PyArray_DATA(to))[i] = number
    else:
        whole = given
        for i in range(cnp.PyArray_SIZE(to)):
            (<int32_t *>cnp.PyArray_DATA(to))[i] = whole


def quantize(x, *, axis=None, dtype="int8", symmetric=True, group_size=None, scale=None, zero_point=None, out=None):
    """Return `x` as codes of 8 or 4 bits: ``q = clamp(round(x / scale) + zero_point)``.

    A true division, rounded to nearest even, clamped before it becomes an integer: the ONNX QuantizeLinear formula.

    Parameters
    ----------
    x : array-like
        Any shape; float types (float64 is rounded to float32 first) or integers.
    axis : int or sequence of int, optional
        The axes that keep scales of their own: 1 for one scale per column of a matrix, 0 for one per row. None: one.
    dtype : {"int8", "uint8", "int4", "float8_e4m3fn", "float8_e5m2"}
        int4 codes are packed in pairs; see :class:`QuantizedArray`.
    symmetric : bool
        Zero point 0 and a range as wide below 0 as above, so that ``scale = max|x| / largest``: 127 for int8, 7 for
        int4, 448 or 57344 for the 8-bit floats. uint8: the range [0, max x] on 0..255. False, for integers only: the
        range of `x`, widened to hold 0, on all codes: ``scale = (hi - lo) / (qmax - qmin)``,
        ``zero_point = round(qmin - lo / scale)``, the ONNX DynamicQuantizeLinear formula.
    group_size : int, optional
        How many neighbours share a scale along the one axis that `axis` leaves out; the last group may be shorter. For
        a weight (k, n), ``axis=1, group_size=64`` gives scales of shape (ceil(k / 64), n): ONNX' blocked quantization.
    scale, zero_point : array-like, optional
        Given instead of computed; broadcastable against the shape of the scales (length 1 off `axis`) or, with one
        `axis` and no groups, of shape (length,). With a given scale, codes use the full range (int8: -128..127), as
        ONNX says.
    out : QuantizedArray, optional
        Where to put the result: what a call with the same arguments returned. Its arrays are overwritten.

    Returns
    -------
    QuantizedArray
        A new one, or `out`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `dtype` is none of these.
    ValueError
        `axis` is out of range or repeated; `group_size` is not positive, or `axis` does not leave out one axis; `scale`
        is not positive and finite; `zero_point` without `scale`, or outside the codes; a zero point, or
        ``symmetric=False``, for an 8-bit float; shapes that do not broadcast; an `out` of another kind.

    Notes
    -----
    Infinities go to the end of the range and do not count when a scale is computed; NaN becomes the zero point, in an
    8-bit float +0; a slice without anything to scale (empty, all zero, not finite) gets scale 1. An 8-bit float is
    ``x / scale``, clamped to its finite numbers and rounded once more, to nearest even, by :func:`mp_core.cast`.

    Examples
    --------
    >>> quantize([-1.0, 0.0, 1.55], symmetric=False, dtype="uint8").values
    array([  0, 100, 255], dtype=uint8)
    >>> import numpy as np
    >>> quantize(np.ones((100, 3)), axis=1, group_size=64, dtype="int4").scale.shape
    (2, 3)
    """
    cdef Blocks b
    cdef Recipe r
    cdef cnp.ndarray source, values, scales, zeros = None
    cdef dict fields
    cdef int ndim, fmt = MP_FLOATS
    cdef bint with_zeros
    # Arguments of the usual types, whose recipe is known, and a contiguous array apart from `out`: then the kernels.
    if (type(x) is cnp.ndarray and type(dtype) is str and type(symmetric) is bool
            and (axis is None or type(axis) is int) and (group_size is None or type(group_size) is int)):
        source = x
        fmt = format_of(source)
    if fmt == MP_FLOATS:
        return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
    r = _recipe(x.shape, axis, dtype, symmetric, group_size)
    ndim, with_zeros = cnp.PyArray_NDIM(source), r.with_zeros if scale is None else zero_point is not None
    if (not r.as_they_are or (scale is not None and not is_scale(scale, r))
            or (zero_point is not None and (scale is None or not is_zero_point(zero_point, r)))):
        return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
    if out is None:
        values = cnp.PyArray_EMPTY(ndim, r.sizes, r.type, 0)
        scales = cnp.PyArray_EMPTY(ndim, r.scale_sizes, cnp.NPY_FLOAT32, 0)
        if with_zeros:
            zeros = cnp.PyArray_EMPTY(ndim, r.scale_sizes, cnp.NPY_INT32, 0)
        out = _new(_result)
        fields = out.__dict__
        fields["values"], fields["scale"], fields["zero_point"] = values, scales, zeros
        fields["axis"], fields["group_size"], fields["dtype"], fields["shape"] = r.axes, r.group_size, r.dtype, r.shape
    else:
        fields = out.__dict__ if type(out) is _result else None
        if (fields is None or fields["shape"] != r.shape or fields["dtype"] is not r.dtype or fields["axis"] != r.axes
                or fields["group_size"] != r.group_size or (fields["zero_point"] is not None) != with_zeros
                or not has_parts(fields, r, source, True)):
            return _long_quantize(x, axis, dtype, symmetric, group_size, scale, zero_point, out)
        values, scales, zeros = fields["values"], fields["scale"], fields["zero_point"]
    b = r.blocks
    if scale is None:
        b.how, b.qmin = r.how, r.qmin
    else:
        fill(scales, scale)
        if with_zeros:
            fill(zeros, zero_point)
    place(&b, fmt, source, values, scales, zeros)
    run(&b)
    return out


def dequantize(q, dtype="float32", *, out=None):
    """Return ``scale * (q - zero_point)``, computed in float32, rounded once to `dtype`.

    Parameters
    ----------
    q : QuantizedArray
    dtype : dtype or str
        A float type.
    out : ndarray, optional
        Where to put the result: of the shape of `q` and type `dtype`.

    Returns
    -------
    ndarray
        A new array, or `out`.

    Raises
    ------
    TypeError
        `q` is no :class:`QuantizedArray`, `dtype` no float type, or `out` not of that type.
    ValueError
        `out` has another shape than `q`, or is read-only.

    Examples
    --------
    >>> dequantize(quantize([-1.27, 0.5]))
    array([-1.27,  0.5 ], dtype=float32)
    """
    cdef Blocks b
    cdef Recipe r
    cdef cnp.ndarray x
    cdef dict fields
    number = _numbers.get(dtype) if type(dtype) is str or isinstance(dtype, cnp.dtype) else None
    if number is None or type(q) is not _result:
        return _long_dequantize(q, dtype, out)
    fields = q.__dict__
    r = _recipe(fields["shape"], fields["axis"], fields["dtype"], True, fields["group_size"])
    if out is None:
        x = cnp.PyArray_EMPTY(<int>len(r.shape), r.lengths, _types[<int>number], 0)
    elif fits(out, _types[<int>number], <int>len(r.shape), r.lengths, True):
        x = out
    else:
        return _long_dequantize(q, dtype, out)
    if not r.as_they_are or not has_parts(fields, r, x, False):
        return _long_dequantize(q, dtype, out)
    b = r.blocks
    b.back = True
    place(&b, number, x, fields["values"], fields["scale"], fields["zero_point"])
    run(&b)
    return x


cpdef bint positive_and_finite(cnp.ndarray scale) except -1:
    """Whether all of a C-contiguous float32 array is."""
    cdef const float *s = <const float *>cnp.PyArray_DATA(scale)
    cdef Py_ssize_t i
    cdef bint good = True
    for i in range(cnp.PyArray_SIZE(scale)):
        good &= 0 < s[i] < INFINITY
    return good


def pack_nibbles(cnp.ndarray codes not None, cnp.ndarray packed not None):
    """Put the low halves of 8-bit codes (rows, n) into bytes (rows, (n + 1) // 2), the even ones low; C-contiguous."""
    cdef Py_ssize_t n = codes.shape[1], row
    cdef const mp_kernels *k = kernels()
    for row in range(codes.shape[0] if n else 0):
        k.pack_nibbles(<uint8_t *>cnp.PyArray_BYTES(codes) + row * n, n,
                       <uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2))


def unpack_nibbles(cnp.ndarray packed not None, cnp.ndarray codes not None, bint signed):
    """The inverse of :func:`pack_nibbles`; `signed` gives -8 to 7, else 0 to 15."""
    cdef Py_ssize_t n = codes.shape[1], row
    cdef const mp_kernels *k = kernels()
    for row in range(codes.shape[0] if n else 0):
        k.unpack_nibbles(<uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2), n, signed,
                         <uint8_t *>cnp.PyArray_BYTES(codes) + row * n)
