"""Matrix products: packing, blocking, the schedule over threads. The arithmetic is in kernels/gemm.inc.

Every element of a product is computed by the same operations in the same order, whatever the shape around it, the
packing, the strides, the threads or the instruction set: k is cut into blocks whose length depends on the types only.
"""

from math import prod
from operator import index as whole_number

cimport numpy as cnp
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport (
    MP_BF16, MP_BLOCK_PAIRS, MP_BLOCK_WIDE, MP_CODE_I8, MP_F8_E4M3FN, MP_F8_E5M2, MP_F16, MP_F32, MP_FEW_ROWS,
    MP_FLOATS, MP_I4, MP_I8, MP_I32, MP_LANES, MP_PAIRS, MP_PANEL, MP_PANEL_FORMATS, MP_QUADS, MP_SLACK, MP_TURNED_ROWS,
    MP_WIDE, mp_activation, mp_format, mp_gemm, mp_kernels, mp_tile,
)

import numpy as np

cnp.import_array()

FORMATS = {
    "float32": MP_F32, "float16": MP_F16, "bfloat16": MP_BF16, "float8_e4m3fn": MP_F8_E4M3FN,
    "float8_e5m2": MP_F8_E5M2, "int8": MP_I8, "int4": MP_I4,
}
OUT_FORMATS = {name: number for name, number in FORMATS.items() if number < MP_FLOATS} | {"int32": MP_I32}
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3, "relu6": 4, "gelu_tanh": 5, "sigmoid": 6, "tanh": 7}
cdef enum:
    A_U8 = MP_I4  # as the format of a, which is never int4
    PACKED_ROWS = 192       # rows of a that pass a packed panel before the next one: it stays in the second-level cache
    SCRATCH_ROWS = 1020     # rows per panel that is made on the fly: making it costs about 1/1000 of its product
    FEW = 48                # rows for which it is made in small pieces instead, which stay in the first-level cache
    COPY_BYTES = 1 << 19    # rows of a in scratch, where they must be widened or made contiguous
    PANEL_BYTES = 1 << 18   # a panel's range of k, in the second-level cache
    PIECE_BYTES = 1 << 15   # ... in the first
    PIECE_ROWS = 512        # ... of rows that lie far apart, whose neighbours are read next
    IN_PLACE_ROWS = 8       # the same, where they are read in place, by one tile of rows of a
    ACC_BYTES = 1 << 18     # accumulators of the panels that are in work together
    TILE_ROWS = 6

cdef Py_ssize_t ANY = <Py_ssize_t>1 << 40  # a block of integers: all of k
cdef Py_ssize_t MOST = <Py_ssize_t>1 << 50  # k: no size of scratch overflows

# By format: bytes of an element to pack, neighbours along k in a group, bytes of a group in a column.
cdef Py_ssize_t *ELEMENT = [4, 2, 2, 1, 1, 1, 1]
cdef Py_ssize_t *GROUP = [1, 1, 2, 4, 4, 4, 8]
cdef Py_ssize_t *WORD = [4, 2, 4, 4, 4, 4, 4]
# By arithmetic: bytes of an element of a as the kernel reads it, the format that it multiplies, its block of k.
cdef Py_ssize_t *A_SIZE = [4, 2, 1]
cdef int *NATIVE = [MP_F32, MP_BF16, MP_I8]
cdef Py_ssize_t *BLOCK = [MP_BLOCK_WIDE, MP_BLOCK_PAIRS, ANY]

# By arithmetic: rows up to which rows of b are read in place: how little work it is to read them again for each tile.
cdef Py_ssize_t *IN_PLACE = [24, TILE_ROWS, TILE_ROWS]

# Multiplications from which a second thread pays: about 20 microseconds on one.
cdef double WORTHWHILE = 1 << 20


cdef int arithmetic_of(int a_format, int b_format) noexcept nogil:
    """Integers multiply as integers, what bfloat16 holds exactly in pairs of bfloat16, the rest in float32."""
    if a_format >= MP_FLOATS:
        return MP_QUADS
    if a_format >= MP_BF16 and b_format >= MP_BF16:
        return MP_PAIRS
    return MP_WIDE


cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t unit) noexcept nogil:
    return (n + unit - 1) // unit * unit


cdef inline Py_ssize_t column_bytes(int fmt, Py_ssize_t k) noexcept nogil:
    """Bytes of k elements of one column of a panel: panel j starts 64 j times as many into its matrix."""
    return (k + GROUP[fmt] - 1) // GROUP[fmt] * WORD[fmt]


# ---- packing

cdef class PackedMatrix:
    """The right operand of a product, packed once for :func:`mp_core.matmul`. Made by :func:`mp_core.pack`.

    Immutable, picklable, the same on every instruction set.

    Attributes
    ----------
    shape : tuple of int
        The logical shape, ``(..., k, n)``.
    dtype : numpy.dtype
        float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8 or int4.
    scale : numpy.ndarray or None
        For a packed :class:`mp_core.QuantizedArray`: float32, shape (n,), or (groups of k, n).
    zero_point : numpy.ndarray or None
        Of int8, int32, shape (n,): what stands for zero. None: 0.
    group_size : int or None
        Elements along k that share a scale.
    nbytes : int
        Bytes held, scales and column sums included.
    """
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly cnp.ndarray data         # uint8, the panels of all matrices, then slack
    cdef readonly cnp.ndarray column_sums  # int8 only: int32 [matrices][n]
    cdef readonly cnp.ndarray scale
    cdef readonly cnp.ndarray zero_point
    cdef readonly object group_size
    cdef int format
    cdef Py_ssize_t k, n, matrices, matrix_bytes, group

    def __cinit__(self, shape, dtype, data, column_sums=None, scale=None, zero_point=None, group_size=None):
        name = getattr(dtype, "name", None)
        self.shape, self.dtype = tuple([whole_number(length) for length in shape]), dtype
        if len(self.shape) < 2 or min(self.shape) < 0 or name not in FORMATS or not dtype.isnative:
            raise ValueError(f"a PackedMatrix has a shape (..., k, n) and is of native type {', '.join(FORMATS)}; "
                             f"received shape {shape} and dtype {dtype}")
        self.format = FORMATS[name]
        data_bytes = _data_bytes(self.format, self.shape)
        *batch, self.k, self.n = self.shape
        self.matrices, self.matrix_bytes = prod(batch), column_bytes(self.format, self.k) * self.n
        groups = ()
        if group_size is not None:
            self.group_size = group_size = whole_number(group_size)
            if group_size < 1 or group_size % GROUP[self.format]:
                raise ValueError(f"`group_size` must be a positive multiple of {GROUP[self.format]}; "
                                 f"received {group_size}")
            groups = (-(-self.shape[len(batch)] // group_size),)
            self.group = min(group_size, round_up(max(self.k, 1), GROUP[self.format]))
        self.data = _part(data, "data", (data_bytes,), np.uint8)
        self.column_sums = _part(column_sums, "column_sums",
                                 (self.matrices, self.n) if self.format == MP_I8 else None, np.int32)
        scaled = scale is not None or group_size is not None or self.format == MP_I4
        self.scale = _part(scale, "scale", (*groups, self.n) if scaled else None, np.float32)
        shifted = zero_point is not None and scale is not None and self.format == MP_I8 and not groups
        self.zero_point = _part(zero_point, "zero_point", (self.n,) if shifted else None, np.int32)
        if shifted and np.any((zero_point < -128) | (zero_point > 127)):
            raise ValueError(f"`zero_point` must lie in [-128, 127]; received {zero_point}")

    @property
    def nbytes(self):
        parts = (self.data, self.column_sums, self.scale, self.zero_point)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def ndim(self):
        return len(self.shape)

    def unpack(self):
        """Return the matrix as it was packed: an array of `shape` and `dtype`, exactly equal."""
        cdef cnp.ndarray out = np.empty(self.shape, self.dtype)
        cdef Py_ssize_t matrix, column, size = ELEMENT[self.format]
        cdef const mp_kernels *use = kernels()
        for matrix in range(self.matrices if self.k else 0):
            for column in range(0, self.n, MP_PANEL):
                use.unpack[self.format](
                    self.k, min(self.n - column, <Py_ssize_t>MP_PANEL),
                    cnp.PyArray_BYTES(self.data) + matrix * self.matrix_bytes
                    + column * column_bytes(self.format, self.k),
                    cnp.PyArray_BYTES(out) + (matrix * self.k * self.n + column) * size, self.n)
        return out

    def __reduce__(self):
        return _restore, (self.shape, self.dtype.name, self.data, self.column_sums, self.scale, self.zero_point,
                          self.group_size)

    def __repr__(self):
        return f"PackedMatrix(shape={self.shape}, dtype={self.dtype.name})"


def _data_bytes(int fmt, shape):
    """Return the bytes of the panels and the slack; raise where they, or those of lengths 1 for 0, are beyond count."""
    *batch, k, n = shape
    columns = [prod(batch), n, -(-k // GROUP[fmt]) * WORD[fmt]]
    if prod([max(length, 1) for length in columns]) > PY_SSIZE_T_MAX - MP_SLACK:
        raise ValueError(f"a PackedMatrix of shape {shape} is too big for the address space")
    return prod(columns) + MP_SLACK


def _part(array, name, shape, dtype):
    """Return a buffer of a PackedMatrix, read-only, None where there must be none; the kernels trust its size."""
    if array is None and shape is None:
        return None
    if (not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype
            or not array.flags.c_contiguous):
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = "None" if shape is None else f"contiguous {np.dtype(dtype).name} of shape {shape}"
        raise ValueError(f"`{name}` must be {wanted}; received {found}")
    array = array.view(np.ndarray)
    array.flags.writeable = False
    return array


def _restore(shape, name, data, column_sums, scale, zero_point, group_size):
    from mp_core.dtypes import dtype_of
    return PackedMatrix(shape, dtype_of(name), data, column_sums, scale, zero_point, group_size)


def aligned_empty(Py_ssize_t nbytes):
    """Return an uninitialized uint8 array that starts at a multiple of 64 bytes."""
    cdef cnp.ndarray block = np.empty(nbytes + 64, np.uint8)
    cdef Py_ssize_t shift = <Py_ssize_t>(63 - (<size_t>cnp.PyArray_BYTES(block) + 63) % 64)
    return block[shift:shift + nbytes]


cdef struct Packing:
    const mp_kernels *kernels
    int format
    Py_ssize_t k, n
    const char *src
    Py_ssize_t rs, cs
    char *dst
    int32_t *sums


cdef void pack_panel(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Packing *p = <const Packing *>context
    cdef Py_ssize_t column = index * MP_PANEL, n = min(p.n - column, <Py_ssize_t>MP_PANEL)
    cdef char *dst = p.dst + column * column_bytes(p.format, p.k)
    p.kernels.pack[p.format](p.k, n, p.src + column * p.cs, p.rs, p.cs, dst)
    if p.sums != NULL:
        p.kernels.column_sums(p.k, n, dst, p.sums + column)


def pack(cnp.ndarray b not None, dtype, scale=None, zero_point=None, group_size=None):
    """Pack `b` (..., k, n), in native byte order, any strides, as `dtype`: its own, or int4 from int8 codes."""
    cdef Packing p
    cdef int ndim = cnp.PyArray_NDIM(b), threads
    cdef Py_ssize_t matrices = 1, axis
    cdef tuple shape = (<object>b).shape
    cdef cnp.ndarray sums = None, matrix, data
    cdef PackedMatrix packed
    for axis in range(ndim - 2):
        matrices *= cnp.PyArray_DIM(b, <int>axis)
    p.kernels, p.format = kernels(), FORMATS[dtype.name]
    p.k, p.n = shape[ndim - 2], shape[ndim - 1]
    if p.format == MP_I8:
        sums = np.zeros((matrices, p.n), np.int32)
    data = aligned_empty(_data_bytes(p.format, shape))
    memset(cnp.PyArray_BYTES(data) + cnp.PyArray_SIZE(data) - MP_SLACK, 0, MP_SLACK)
    packed = PackedMatrix(shape, dtype, data, sums, scale, zero_point, group_size)
    p.rs, p.cs = cnp.PyArray_STRIDE(b, ndim - 2), cnp.PyArray_STRIDE(b, ndim - 1)
    threads = threads_for(<double>p.k * p.n, WORTHWHILE)
    for index, place in enumerate(np.ndindex(shape[:ndim - 2])):
        matrix = b[place]
        p.src = cnp.PyArray_BYTES(matrix)
        p.dst = cnp.PyArray_BYTES(data) + <Py_ssize_t>index * packed.matrix_bytes
        p.sums = NULL if sums is None else <int32_t *>cnp.PyArray_DATA(sums) + <Py_ssize_t>index * p.n
        with nogil:
            parallel_for(threads, (p.n + MP_PANEL - 1) // MP_PANEL, pack_panel, &p)
    return packed


# ---- one call

cdef struct Axis:      # of the batch; strides in bytes, of a packed b in matrices
    Py_ssize_t length, a, b, out, residual


cdef struct Product:   # what every task reads; strides in bytes
    const mp_kernels *kernels
    int arithmetic, a_format, b_format
    Py_ssize_t m, n, k
    const char *a
    Py_ssize_t a_rs, a_cs, a_size
    bint a_direct               # a is read in place: rows with unit stride, of the type that the kernel reads
    const char *b
    Py_ssize_t b_rs, b_cs
    bint packed, decoded, in_place, turned
    Py_ssize_t matrix_bytes     # packed
    const int32_t *sums         # packed: [matrices][n], or NULL
    bint sums_wanted
    const float *bias
    const float *scale          # by column
    const float *group_scale    # [groups][n], by column and `group` elements of k
    Py_ssize_t group
    const int32_t *col_zero
    const float *row_scale      # [batch][m] if common.row_step, else one value; so is row_zero
    const int32_t *row_zero
    char *out
    Py_ssize_t out_rs, out_size
    bint quantized_here         # a is float and becomes int8: by the steps of its columns, by row_scale or by its own
    const float *steps          # [k], and what stands for 0; or NULL
    const int32_t *zeros
    const char *residual
    Py_ssize_t residual_rs, residual_size
    mp_gemm common              # what all kernel calls share
    int batch_axes
    Axis *batch
    # The schedule.
    Py_ssize_t row_chunk, row_chunks, panel_chunk, panel_chunks
    Py_ssize_t step             # of k in a kernel call: whole blocks, or part of one
    Py_ssize_t together         # panels in work before k advances
    Py_ssize_t tail             # rows at the end of k that are not read in place
    Py_ssize_t copy_bytes, gather_bytes, acc_bytes, chain_bytes, block_bytes, decoded_bytes, sums_bytes, row_sums_bytes
    Py_ssize_t scale_bytes, scratch_bytes
    Py_ssize_t row_scale_bytes
    bint failed


cdef struct Place:     # where the operands and the result of some rows of one matrix are
    const char *a           # as the kernel reads it
    const char *b
    const int32_t *sums
    const char *residual
    char *out


cdef void schedule(Product *p, Py_ssize_t matrices, int threads) noexcept nogil:
    """Choose chunks and steps: enough tasks for the threads, as few as possible for the caches, none across k."""
    cdef Py_ssize_t panels = (p.n + MP_PANEL - 1) // MP_PANEL, block = p.common.block
    cdef Py_ssize_t wanted, chunks, rows, width, tiles
    cdef int fmt = NATIVE[p.arithmetic]
    cdef bint made, gathered = p.a_cs != p.a_size
    cdef Py_ssize_t a_bytes = p.k * A_SIZE[p.arithmetic]
    if not p.decoded:
        fmt = p.b_format
    made = p.decoded or not p.packed

    p.row_chunk = SCRATCH_ROWS if made else PACKED_ROWS
    if not p.a_direct:
        rows = COPY_BYTES // max(a_bytes, 1) // TILE_ROWS * TILE_ROWS
        p.row_chunk = min(p.row_chunk, max(rows, <Py_ssize_t>TILE_ROWS))
    p.panel_chunk = panels
    if threads > 1 and p.quantized_here and p.m >= threads * TILE_ROWS:  # no row is to be quantized twice
        p.row_chunk = min(p.row_chunk, round_up((p.m + threads - 1) // threads, TILE_ROWS))
    elif threads > 1:
        # Equal tasks, some for each thread; more if they are long. The last one is what a thread waits for.
        wanted = threads * <Py_ssize_t>max(2., min(16., <double>matrices * p.m * p.n * p.k / WORTHWHILE))
        chunks = (p.m + p.row_chunk - 1) // p.row_chunk
        if matrices * panels < threads or (not made and matrices * chunks * panels < wanted):
            chunks = max(chunks, min((p.m + 2 * TILE_ROWS - 1) // (2 * TILE_ROWS), threads))  # the rows must give them
        p.row_chunk = round_up((p.m + chunks - 1) // chunks, TILE_ROWS)
        p.panel_chunk = max(1, panels * min(matrices * chunks, wanted) // wanted)
    rows = p.row_chunk = min(p.row_chunk, p.m)
    p.row_chunks = (p.m + p.row_chunk - 1) // p.row_chunk
    p.panel_chunks = (panels + p.panel_chunk - 1) // p.panel_chunk

    p.in_place = (not p.packed and p.b_cs == ELEMENT[p.b_format] and p.n >= MP_LANES and p.k > 0
                  and p.b_rs >= p.n * p.b_cs and rows <= IN_PLACE[p.arithmetic]
                  and p.kernels.gemm_in_place[p.arithmetic][p.b_format] != NULL
                  and (p.arithmetic != MP_QUADS or p.a_format == MP_I8))
    if p.in_place and (p.n % MP_LANES or p.k % GROUP[p.b_format]):
        p.tail = (p.k - 1) % GROUP[p.b_format] + 1
    p.turned = (not p.packed and p.arithmetic == MP_QUADS and p.a_format == MP_I8 and p.b_rs == 1 and p.row_zero == NULL
                and rows <= MP_TURNED_ROWS and not p.in_place)
    p.together, width = 1, min(p.n, <Py_ssize_t>MP_PANEL)
    if p.turned or (not made and rows <= TILE_ROWS):
        p.step = p.k
    elif not made or rows > FEW:
        p.step = PANEL_BYTES // (MP_PANEL * WORD[fmt]) * GROUP[fmt]
    elif not p.packed and p.b_cs == ELEMENT[p.b_format] and (p.in_place or panels > 1):
        p.step = PIECE_ROWS if not p.in_place else IN_PLACE_ROWS if rows <= TILE_ROWS else 8 * IN_PLACE_ROWS
        p.together = max(1, ACC_BYTES // (rows * MP_PANEL * 4 * (2 if p.k > block else 1)))
    else:
        p.step = PIECE_BYTES // (MP_PANEL * WORD[fmt]) * GROUP[fmt]
    if p.step >= p.k:
        p.step = max(p.k, 1)
    elif p.step >= block:
        p.step = p.step // block * block
    elif block != ANY and block % p.step:
        p.step = block
    p.together = min(p.together, p.panel_chunk)

    p.copy_bytes = 0 if p.a_direct else round_up(rows * a_bytes, 64)
    p.gather_bytes = round_up(rows * p.k * p.a_size, 64) if gathered and not p.a_direct else 0
    tiles = rows * MP_PANEL * 4 * p.together
    p.chain_bytes = tiles if (p.k > p.step and p.step % block) or p.tail else 0
    p.acc_bytes = tiles if (p.k > p.step and p.k > block) or (p.in_place and p.chain_bytes == 0) else 0
    if p.tail:
        p.block_bytes = GROUP[p.b_format] * p.together * MP_PANEL * ELEMENT[p.b_format]
    elif not (p.packed or p.turned or p.in_place):
        p.block_bytes = round_up(column_bytes(p.b_format, p.step) * width + MP_SLACK, 64)
    p.decoded_bytes = round_up(column_bytes(fmt, p.step) * width + MP_SLACK, 64) if p.decoded else 0
    p.sums_bytes = MP_PANEL * 4 * p.together if p.sums_wanted and not p.packed and not p.turned else 0
    p.row_sums_bytes = round_up(rows * 4, 64) if (
        p.col_zero != NULL or p.turned or (p.in_place and p.arithmetic == MP_QUADS)) else 0
    p.row_scale_bytes = round_up(rows * 4, 64) if p.quantized_here and p.row_scale == NULL and p.steps == NULL else 0
    if p.quantized_here and p.a_format != MP_F32:
        p.gather_bytes = rows * p.k * 4  # in float32
    p.scale_bytes = (p.k + block - 1) // block * MP_PANEL * 4 if p.group_scale != NULL else 0
    p.scratch_bytes = (p.copy_bytes + p.gather_bytes + p.acc_bytes + p.chain_bytes + p.block_bytes + p.decoded_bytes
                       + p.sums_bytes + p.row_sums_bytes + p.scale_bytes + p.row_scale_bytes)


cdef void quantize_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *wide,
                        mp_gemm *g) noexcept nogil:
    """Rows of a as int8, by the scales of their largest magnitudes or the given one: as mp_core.quantize does."""
    cdef mp_tile t
    cdef float *scales = <float *>g.row_scale
    cdef Py_ssize_t i
    memset(&t, 0, sizeof(t))
    t.rows, t.cols, t.x, t.ldx, t.ahead = rows, p.k, <float *>a, p.a_rs // 4, p.k
    if p.a_format != MP_F32:
        for i in range(rows):
            p.kernels.widen[p.a_format](a + i * p.a_rs, <float *>wide + i * p.k, p.k, 0)
        t.x, t.ldx = <float *>wide, p.k
    t.q, t.ldq, t.row_step, t.scale = <uint8_t *>to, p.k, g.row_step, scales
    t.qmin, t.qmax = -128, 127
    if p.steps != NULL:
        t.scale, t.zero_point, t.row_step, t.col_step = p.steps, p.zeros, 0, 1
    elif p.row_scale == NULL:
        t.qmin = -127
        memset(scales, 0, rows * 4)
        p.kernels.amax(&t, scales)
        p.kernels.symmetric_scales(scales, rows, 127, scales)
    p.kernels.quantize[<int>MP_CODE_I8](&t)


cdef void gather_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *gathered) noexcept nogil:
    """Rows of a, k elements each, as the kernel reads them: unit stride, in its type."""
    cdef Py_ssize_t i, q, count
    cdef Py_ssize_t rs = p.a_rs, k = p.k
    cdef float middle[256]
    if p.a_cs != p.a_size:
        if p.a_size > 1:
            p.kernels.pack[<int>(MP_F32 if p.a_size == 4 else MP_F16)](rows, p.k, a, p.a_rs, p.a_cs, gathered)
        else:
            for q in range(p.k):
                for i in range(rows):
                    gathered[i * p.k + q] = a[i * p.a_rs + q * p.a_cs]
        a, rs = gathered, p.k * p.a_size
    if rs == k * p.a_size:  # one row after the other
        rows, k = 1, rows * k
    for i in range(rows):
        if p.arithmetic == MP_WIDE and p.a_format != MP_F32:
            p.kernels.widen[p.a_format](a, <float *>to, k, 0)
        elif p.arithmetic == MP_PAIRS and p.a_format != MP_BF16:
            q = 0
            while q < k:
                count = min(k - q, <Py_ssize_t>256)
                p.kernels.widen[p.a_format](a + q, middle, count, 0)
                p.kernels.narrow[<int>MP_BF16](middle, to + q * 2, count, 0)
                q += count
        else:
            memcpy(to, a, k * A_SIZE[p.arithmetic])
        a += rs
        to += k * A_SIZE[p.arithmetic]


cdef Py_ssize_t advance(const Product *p, mp_gemm *g, const char *a, Py_ssize_t first) noexcept nogil:
    """Set g to the range of k that starts at first; return its length."""
    cdef Py_ssize_t end = p.k - p.tail if first < p.k - p.tail else p.k, length = min(end - first, p.step)
    g.k, g.a = length, a + first * A_SIZE[p.arithmetic]
    g.first, g.last = first < g.block, first + length == p.k
    g.resume, g.suspend = first % g.block != 0, not g.last and (first + length) % g.block != 0
    return length


cdef void run_in_place(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first_column,
                       Py_ssize_t last_column, char *work) noexcept nogil:
    """Columns in work together, all of k: a few rows of b after the other, so that memory is read in order.

    The kernel reads whole vectors and groups. Where these go beyond the last column, they read the row after it, and the
    last rows, which have none, from a copy.
    """
    cdef Py_ssize_t first = 0, length, column, width = last_column - first_column, row, size = ELEMENT[p.b_format]
    cdef Py_ssize_t row_bytes = round_up(width, MP_LANES) * size
    cdef char *copy = work + p.acc_bytes + p.chain_bytes
    cdef const char *b = at.b + first_column * size
    g.ld_acc, g.step = round_up(width, MP_LANES), GROUP[p.b_format] * p.b_rs
    g.b_zero = 128  # integers of b are read as b ^ 0x80
    if g.m > TILE_ROWS:  # several tiles: they read the same columns again
        width = MP_PANEL
    while True:
        length = advance(p, g, at.a, first)
        if first == p.k - p.tail:
            memset(copy, 0, GROUP[p.b_format] * row_bytes)
            for row in range(p.tail):
                memcpy(copy + row * row_bytes, b + (first + row) * p.b_rs, (last_column - first_column) * size)
            b, g.step = copy - first * p.b_rs, GROUP[p.b_format] * row_bytes
        column = first_column
        while column < last_column:
            g.n = min(width, last_column - column)
            g.chain = work + p.acc_bytes + (column - first_column) * 4
            g.acc = work + (column - first_column) * 4 if p.acc_bytes else g.chain
            g.b = b + first * p.b_rs + (column - first_column) * size
            g.out = at.out + column * p.out_size
            g.residual = at.residual + column * p.residual_size if at.residual != NULL else NULL
            g.bias = p.bias + column if p.bias != NULL else NULL
            p.kernels.gemm_in_place[p.arithmetic][p.b_format](g)
            column += width
        first += length
        if first >= p.k:
            break


cdef void run_panels(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first_column,
                     Py_ssize_t last_column, char *work) noexcept nogil:
    """Panels in work together, all of k: one range of k after the other, each panel made if it is not packed so."""
    cdef Py_ssize_t first = 0, length, column, tile, group, block = g.block
    cdef Py_ssize_t tile_bytes = g.m * MP_PANEL * 4, i
    cdef int32_t init[MP_PANEL]
    cdef int fmt = NATIVE[p.arithmetic] if p.decoded else p.b_format
    cdef char *acc = work
    cdef char *chain = acc + p.acc_bytes
    cdef char *made = chain + p.chain_bytes
    cdef char *decoded = made + p.block_bytes
    cdef int32_t *own_sums = <int32_t *>(decoded + p.decoded_bytes)
    cdef float *scales = <float *>(<char *>own_sums + p.sums_bytes)
    if p.sums_bytes:
        memset(own_sums, 0, p.sums_bytes)
    g.ld_acc = MP_PANEL
    while True:
        length = advance(p, g, at.a, first)
        for tile in range((last_column - first_column + MP_PANEL - 1) // MP_PANEL):
            column = first_column + tile * MP_PANEL
            g.n = min(p.n - column, <Py_ssize_t>MP_PANEL)
            g.acc = acc + tile * tile_bytes if p.acc_bytes else NULL
            g.chain = chain + tile * tile_bytes if p.chain_bytes else NULL
            g.col_scale = p.scale + column if p.scale != NULL else NULL
            g.bias = p.bias + column if p.bias != NULL else NULL
            g.col_zero = p.col_zero + column if p.col_zero != NULL else NULL
            g.out = at.out + column * p.out_size
            g.residual = at.residual + column * p.residual_size if at.residual != NULL else NULL
            g.col_sum = at.sums + column if at.sums != NULL else NULL
            if p.packed:
                g.b = (at.b + column * column_bytes(p.b_format, p.k)
                       + first // GROUP[p.b_format] * WORD[p.b_format] * g.n)
            elif p.turned:
                g.b, g.step, g.b_zero = at.b + column * p.b_cs, p.b_cs, 128
                p.kernels.gemm_turned(g)
                continue
            else:
                g.b = made
                p.kernels.pack[p.b_format](length, g.n, at.b + first * p.b_rs + column * p.b_cs, p.b_rs, p.b_cs, made)
                if p.sums_bytes:
                    g.col_sum = own_sums + tile * MP_PANEL
                    p.kernels.column_sums(length, g.n, made, own_sums + tile * MP_PANEL)
            if p.decoded:
                p.kernels.decode[p.arithmetic][p.b_format](length, g.n, g.b, decoded)
                g.b = decoded
            if p.group_scale != NULL:  # in rows that end at a vector
                for group in range((length + block - 1) // block):
                    memcpy(scales + group * MP_PANEL, p.group_scale + (first // block + group) * p.n + column, g.n * 4)
                g.block_scale, g.block_scale_step = scales, MP_PANEL
            if g.col_sum != NULL and p.row_zero == NULL and (p.packed or p.step >= p.k):
                # Zero points alike in all rows, all of b's sums known: those of the product start at their share.
                for i in range(g.n):
                    init[i] = -g.a_zero * g.col_sum[i]
                g.init, g.col_sum = init, NULL
            g.step = WORD[fmt] * g.n
            p.kernels.gemm[p.arithmetic][fmt](g)
        first += length
        if first >= p.k:
            break


cdef void run_product(void *context, Py_ssize_t index) noexcept nogil:
    """One chunk of rows times one run of panels of one matrix of the batch."""
    cdef Product *p = <Product *>context
    cdef mp_gemm g = p.common
    cdef Py_ssize_t panel_chunk = index % p.panel_chunks, rest = index // p.panel_chunks
    cdef Py_ssize_t row = rest % p.row_chunks * p.row_chunk, matrix = rest // p.row_chunks, place = matrix
    cdef Py_ssize_t axis, position, column, last_column, end, i, b_matrix = 0
    cdef const char *a = p.a + row * p.a_rs
    cdef Place at
    cdef int32_t *row_sums
    cdef char *work = <char *>scratch(p.scratch_bytes)
    if work == NULL:
        p.failed = True
        return
    at.b, at.out, at.sums, at.residual = p.b, p.out + row * p.out_rs, p.sums, p.residual
    if at.residual != NULL:
        at.residual += row * p.residual_rs
    for axis in range(p.batch_axes - 1, -1, -1):
        position = place % p.batch[axis].length
        place //= p.batch[axis].length
        a += position * p.batch[axis].a
        at.out += position * p.batch[axis].out
        b_matrix += position * p.batch[axis].b
        if at.residual != NULL:
            at.residual += position * p.batch[axis].residual
    at.b += b_matrix * p.matrix_bytes if p.packed else b_matrix
    if at.sums != NULL:
        at.sums += b_matrix * p.n
    g.m = min(p.row_chunk, p.m - row)
    at.a, g.lda = a, p.a_rs // A_SIZE[p.arithmetic]
    if p.row_scale != NULL:
        g.row_scale = p.row_scale + (matrix * p.m + row) * g.row_step
    if p.row_scale_bytes:
        g.row_scale, g.row_step = <float *>work, 1
        work += p.row_scale_bytes
    if not p.a_direct:
        if p.quantized_here:
            quantize_rows(p, a, g.m, work, work + p.copy_bytes, &g)
        else:
            gather_rows(p, a, g.m, work, work + p.copy_bytes)
        at.a, g.lda = work, p.k
    work += p.copy_bytes + p.gather_bytes
    if p.row_zero != NULL:
        g.row_zero = p.row_zero + (matrix * p.m + row) * g.row_step
    if p.row_sums_bytes:
        row_sums = <int32_t *>work
        work += p.row_sums_bytes
        p.kernels.row_sums(g.m, p.k, at.a, g.lda, g.a_flip, row_sums)
        for i in range(g.m):
            row_sums[i] -= <int32_t>p.k * (g.a_zero + (g.row_zero[i * g.row_step] if g.row_zero != NULL else 0))
        g.row_sum = row_sums

    column = panel_chunk * p.panel_chunk * MP_PANEL
    last_column = min(p.n, (panel_chunk + 1) * p.panel_chunk * MP_PANEL)
    while column < last_column:
        end = min(column + p.together * MP_PANEL, last_column)
        if p.in_place:
            run_in_place(p, &g, &at, column, end, work)
        else:
            run_panels(p, &g, &at, column, end, work)
        column = end


cdef void run_small(Product *p) noexcept nogil:
    """A product that needs no schedule: its call costs more than its arithmetic."""
    cdef Place at
    cdef char *work = NULL
    at.a, at.b, at.sums, at.residual, at.out = p.a, p.b, p.sums, p.residual, p.out
    p.step = max(p.k, 1)
    p.common.m, p.common.row_scale, p.common.row_zero = p.m, p.row_scale, p.row_zero
    p.common.lda = p.a_rs // A_SIZE[p.arithmetic]
    if p.decoded:
        p.decoded_bytes = round_up(column_bytes(NATIVE[p.arithmetic], p.k) * min(p.n, <Py_ssize_t>MP_PANEL) + MP_SLACK, 64)
    if p.decoded or not p.a_direct:
        work = <char *>scratch(p.decoded_bytes + p.m * p.k * A_SIZE[p.arithmetic])
        if work == NULL:
            p.failed = True
            return
    if not p.a_direct:
        at.a, p.common.lda = work + p.decoded_bytes, p.k
        gather_rows(p, p.a, p.m, work + p.decoded_bytes, NULL)
    run_panels(p, &p.common, &at, 0, p.n, work)


cdef int multiply(Product *p, Py_ssize_t matrices) except -1:
    """Run a product whose operands, result and epilogue are set."""
    cdef double work = <double>matrices * p.m * p.n * max(p.k, 1)
    cdef Py_ssize_t index, axis, tasks
    cdef int threads
    if matrices == 0 or p.m == 0 or p.n == 0:
        return 0
    if p.k > MOST:
        raise MemoryError(f"no memory for the scratch of a matrix product with k = {p.k}")
    if (p.n == 1 and p.m > 1 and not p.packed and p.out_rs == p.out_size and p.bias == NULL
            and p.residual == NULL and (max(p.a_format, p.b_format) < MP_FLOATS or p.a_format == p.b_format)):
        # One column: the row that is its transpose. Products commute, and the order along k stays.
        p.m, p.n = 1, p.m
        p.a, p.b = p.b, p.a
        p.a_rs, p.a_cs, p.b_rs, p.b_cs = p.b_cs, p.b_rs, p.a_cs, p.a_rs
        p.a_format, p.b_format = p.b_format, p.a_format
        p.a_size = ELEMENT[p.a_format]
        for axis in range(p.batch_axes):
            p.batch[axis].a, p.batch[axis].b = p.batch[axis].b, p.batch[axis].a
    p.kernels = kernels()
    p.arithmetic = MP_QUADS if p.quantized_here else arithmetic_of(p.a_format, p.b_format)
    if p.arithmetic == MP_QUADS:
        p.common.a_flip = 0 if p.a_format == A_U8 else 0x80808080u
        p.common.a_zero = 0 if p.a_format == A_U8 else 128
        p.sums_wanted = p.common.a_zero != 0 or p.row_zero != NULL
    p.common.block = BLOCK[p.arithmetic] if p.group_scale == NULL else p.group
    p.a_direct = ((p.a_cs == p.a_size or p.k <= 1) and p.a_rs % p.a_size == 0
                  and (p.a_format == NATIVE[p.arithmetic] or p.arithmetic == MP_QUADS) and not p.quantized_here)
    if not p.sums_wanted:
        p.sums = NULL
    p.common.ldo = p.out_rs // p.out_size
    p.decoded = p.m > MP_FEW_ROWS and p.kernels.decode[p.arithmetic][p.b_format] != NULL
    if p.residual != NULL:
        p.common.ldr = p.residual_rs // p.residual_size
    if (work < WORTHWHILE and matrices == 1 and p.packed and p.group_scale == NULL and p.col_zero == NULL
            and (p.a_direct or (p.a_cs == p.a_size and not p.quantized_here))):
        run_small(p)
    else:
        threads = threads_for(work, WORTHWHILE)
        schedule(p, matrices, threads)
        tasks = matrices * p.row_chunks * p.panel_chunks
        with nogil:
            parallel_for(threads, tasks, run_product, p)
    if p.failed:
        raise MemoryError("no memory for the scratch of a matrix product")
    return 0


cdef void set_packed(Product *p, PackedMatrix packed) noexcept:
    p.packed, p.b_format, p.k, p.n = True, packed.format, packed.k, packed.n
    p.b, p.matrix_bytes = cnp.PyArray_BYTES(packed.data), packed.matrix_bytes
    p.sums = <const int32_t *>pointer(packed.column_sums)
    p.col_zero = <const int32_t *>pointer(packed.zero_point)
    p.group = packed.group
    if not packed.group:
        p.scale = <const float *>pointer(packed.scale)
    elif packed.k:
        p.group_scale = <const float *>pointer(packed.scale)


cdef const void *pointer(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


def product(cnp.ndarray a not None, b, cnp.ndarray out not None, cnp.ndarray bias, str activation,
            cnp.ndarray residual, cnp.ndarray row_scale, cnp.ndarray row_zero):
    """out = narrow(activation((a @ b) * scales + bias) + residual); the arguments are checked by mp_core.ops.

    `a` (..., m, k), `b` (..., k, n), `out` and `residual` (..., m, n) have equal batch axes (zero strides where
    broadcast; a PackedMatrix has its own batch shape, broadcast here). `out` has unit stride along n, is of a type of
    :data:`OUT_FORMATS` and overlaps nothing that is read; `residual` has unit stride too. `row_scale` float32 and
    `row_zero` int32 have one element, or one for each row of each matrix, contiguous; `bias` is float32 (n,).
    """
    cdef Product p
    cdef Axis batch[64]
    cdef int ndim = cnp.PyArray_NDIM(a), axis, lead
    cdef Py_ssize_t matrices = 1, step = 1
    cdef PackedMatrix packed = None
    cdef cnp.ndarray b_array
    memset(&p, 0, sizeof(p))
    if isinstance(b, PackedMatrix):
        packed = b
        set_packed(&p, packed)
    else:
        b_array = b
        p.b, p.b_format = cnp.PyArray_BYTES(b_array), FORMATS[b_array.dtype.name]
        p.k, p.n = cnp.PyArray_DIM(b_array, ndim - 2), cnp.PyArray_DIM(b_array, ndim - 1)
        p.b_rs, p.b_cs = cnp.PyArray_STRIDE(b_array, ndim - 2), cnp.PyArray_STRIDE(b_array, ndim - 1)
    p.a_format = A_U8 if a.dtype.name == "uint8" else FORMATS[a.dtype.name]
    p.m, p.a, p.a_size = cnp.PyArray_DIM(a, ndim - 2), cnp.PyArray_BYTES(a), cnp.PyArray_ITEMSIZE(a)
    p.a_rs, p.a_cs = cnp.PyArray_STRIDE(a, ndim - 2), cnp.PyArray_STRIDE(a, ndim - 1)
    p.out, p.out_size, p.out_rs = cnp.PyArray_BYTES(out), cnp.PyArray_ITEMSIZE(out), cnp.PyArray_STRIDE(out, ndim - 2)
    p.common.out_format = <mp_format>OUT_FORMATS[out.dtype.name]
    p.common.activation = <mp_activation>ACTIVATIONS[activation]
    p.bias = <const float *>pointer(bias)
    if residual is not None:
        p.residual, p.residual_size = cnp.PyArray_BYTES(residual), cnp.PyArray_ITEMSIZE(residual)
        p.residual_rs = cnp.PyArray_STRIDE(residual, ndim - 2)
        p.common.residual_format = <mp_format>OUT_FORMATS[residual.dtype.name]
    p.row_scale, p.row_zero = <const float *>pointer(row_scale), <const int32_t *>pointer(row_zero)
    if row_scale is not None:
        p.common.row_step = cnp.PyArray_SIZE(row_scale) != 1
    p.batch_axes, p.batch = ndim - 2, batch
    for axis in range(ndim - 3, -1, -1):
        batch[axis].length = cnp.PyArray_DIM(out, axis)
        batch[axis].a, batch[axis].out = cnp.PyArray_STRIDE(a, axis), cnp.PyArray_STRIDE(out, axis)
        batch[axis].residual = 0 if residual is None else cnp.PyArray_STRIDE(residual, axis)
        matrices *= batch[axis].length
        batch[axis].b = 0
        if packed is None:
            batch[axis].b = cnp.PyArray_STRIDE(b_array, axis)
        else:
            lead = axis - (ndim - <int>len(packed.shape))
            if lead >= 0 and packed.shape[lead] != 1:
                batch[axis].b = step
                step *= <Py_ssize_t>packed.shape[lead]
    multiply(&p, matrices)


# ---- the short way of mp_core.matmul: what it knows of types, and the long way for everything that it does not serve

cdef int _types[MP_PANEL_FORMATS]                    # format -> NumPy's type number; A_U8 stands for uint8
cdef int _results[MP_PANEL_FORMATS][MP_FLOATS + 1]   # formats of a and b (int8 last) -> format of the result, or -1
cdef dict _out_formats = {}                          # dtype or its name -> format
cdef dict _activations = ACTIVATIONS
cdef int _int32
cdef object _long_way, _long_dynamic


def install(dict dtypes not None, results, long_way, long_dynamic):
    """Tell the dtypes by name, the default result types by names of a and b, the functions for all other cases."""
    global _long_way, _long_dynamic, _int32
    _long_way, _long_dynamic, _int32 = long_way, long_dynamic, dtypes["int32"].num
    formats = {name: number for name, number in FORMATS.items() if number != MP_I4} | {"uint8": A_U8}
    for name, number in formats.items():
        _types[<int>number] = dtypes[name].num
        for other in range(MP_FLOATS + 1):
            _results[<int>number][<int>other] = -1
    for (a, b), result in results.items():
        _results[<int>formats[a]][<int>formats[b]] = OUT_FORMATS[result]
    for name, number in OUT_FORMATS.items():
        _out_formats[name] = _out_formats[dtypes[name]] = number


cdef inline int format_of(cnp.ndarray x) noexcept:
    """The format of a plain array's elements, -1 if it has none."""
    cdef int fmt, number = cnp.PyArray_TYPE(x)
    for fmt in range(MP_PANEL_FORMATS):
        if _types[fmt] == number:
            return fmt if cnp.PyArray_ISBEHAVED_RO(x) else -1
    return -1


cdef inline bint apart(cnp.ndarray out, cnp.ndarray x) noexcept:
    """Whether contiguous `out` shares no byte with the range that x spans."""
    cdef char *low = cnp.PyArray_BYTES(x)
    cdef char *high = low
    cdef Py_ssize_t reach
    cdef int axis
    for axis in range(cnp.PyArray_NDIM(x)):
        reach = (cnp.PyArray_DIM(x, axis) - 1) * cnp.PyArray_STRIDE(x, axis)
        if reach < 0:
            low += reach
        else:
            high += reach
    return (high + cnp.PyArray_ITEMSIZE(x) <= cnp.PyArray_BYTES(out)
            or cnp.PyArray_BYTES(out) + cnp.PyArray_NBYTES(out) <= low)


cdef bint set_result(Product *p, object out_dtype, int default) except -1:
    """Set the type of the result; False if the short way does not know it."""
    if out_dtype is None:
        p.common.out_format = <mp_format>default
        return True
    number = _out_formats.get(out_dtype) if isinstance(out_dtype, (str, cnp.dtype)) else None
    if number is None or (number == MP_I32 and p.a_format < MP_FLOATS):
        return False
    p.common.out_format = <mp_format>number
    return True


cdef bint set_epilogue(Product *p, object bias, object activation, object residual, cnp.ndarray result,
                       bint given) except -1:
    """Set what is done to the sums; False if the short way does not serve it. `given`: the result is the caller's."""
    cdef cnp.ndarray array
    if activation is not None:
        number = _activations.get(activation) if type(activation) is str else None
        if number is None:
            return False
        p.common.activation = <mp_activation>number
    if bias is not None:
        if type(bias) is not cnp.ndarray:
            return False
        array = bias
        if (format_of(array) != MP_F32 or not cnp.PyArray_ISCARRAY_RO(array) or cnp.PyArray_NDIM(array) != 1
                or cnp.PyArray_DIM(array, 0) != p.n or (given and not apart(result, array))):
            return False
        p.bias = <const float *>cnp.PyArray_DATA(array)
    if residual is not None:
        if type(residual) is not cnp.ndarray:
            return False
        array = residual
        if (not 0 <= format_of(array) < MP_FLOATS or not cnp.PyArray_ISCARRAY_RO(array)
                or not cnp.PyArray_SAMESHAPE(array, result) or (given and not apart(result, array))):
            return False
        p.residual, p.residual_size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
        p.residual_rs, p.common.residual_format = p.n * p.residual_size, <mp_format>format_of(array)
    return True


cdef object short_way(a, b, out_dtype, out, bias, activation, residual, bint quantize, scale, zeros):
    """A contiguous array by a matrix, or arrays of as many matrices, of types that need no cast. None for all other
    products."""
    cdef Product p
    cdef Axis batch[64]
    cdef cnp.npy_intp shape[64]
    cdef cnp.npy_intp *dims
    cdef cnp.ndarray left, right = None, result
    cdef PackedMatrix packed = None
    cdef Py_ssize_t matrices = 1
    cdef float given
    cdef int ndim, axis, fmt, batch_axes = 0
    if type(a) is not cnp.ndarray:
        return None
    left = a
    ndim, dims = cnp.PyArray_NDIM(left), cnp.PyArray_DIMS(left)
    memset(&p, 0, sizeof(p))
    p.a_format, p.quantized_here = format_of(left), quantize
    if p.a_format < 0 or (quantize and p.a_format >= MP_FLOATS) or ndim == 0:
        return None
    if zeros is not None:
        p.steps, p.zeros = <const float *>pointer(scale), <const int32_t *>pointer(zeros)
    elif scale is not None:
        given = scale
        p.row_scale = &given

    # The right operand, and what the pair of types gives.
    if type(b) is PackedMatrix:
        packed = b
        batch_axes = <int>len(packed.shape) - 2
        if (packed.zero_point is not None and not quantize) or (packed.scale is not None and p.a_format > MP_BF16):
            return None
        for axis in range(batch_axes):
            if batch_axes != ndim - 2 or packed.shape[axis] != dims[axis]:
                return None
        set_packed(&p, packed)
        fmt = p.b_format if p.b_format != MP_I4 else MP_I8
    elif type(b) is cnp.ndarray:
        right = b
        batch_axes = cnp.PyArray_NDIM(right) - 2
        if batch_axes != 0 and (batch_axes < 0 or batch_axes != ndim - 2
                                or not cnp.PyArray_CompareLists(dims, cnp.PyArray_DIMS(right), batch_axes)):
            return None
        p.b, fmt = cnp.PyArray_BYTES(right), format_of(right)
        p.b_format, p.k, p.n = fmt, cnp.PyArray_DIM(right, batch_axes), cnp.PyArray_DIM(right, batch_axes + 1)
        p.b_rs, p.b_cs = cnp.PyArray_STRIDE(right, batch_axes), cnp.PyArray_STRIDE(right, batch_axes + 1)
    else:
        return None
    if (fmt < 0 or fmt > MP_I8 or _results[p.a_format][fmt] < 0 or dims[ndim - 1] != p.k
            or (batch_axes == 0 and not cnp.PyArray_IS_C_CONTIGUOUS(left))
            or not set_result(&p, out_dtype, _results[p.a_format][fmt])):
        return None
    if quantize or p.a_format >= MP_FLOATS:  # integers: the other way knows how deep a product may be
        if p.k > 65793 or (not quantize and not (bias is None and activation is None and residual is None)):
            return None

    # The result.
    memcpy(shape, dims, (ndim - 1) * sizeof(cnp.npy_intp))
    shape[ndim - 1] = p.n
    fmt = _int32 if <int>p.common.out_format == MP_I32 else _types[<int>p.common.out_format]
    if out is None:
        result = cnp.PyArray_EMPTY(ndim, shape, fmt, 0)
    elif type(out) is cnp.ndarray:
        result = out
        if (cnp.PyArray_TYPE(result) != fmt or not cnp.PyArray_ISCARRAY(result) or cnp.PyArray_NDIM(result) != ndim
                or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(result), shape, ndim) or not apart(result, left)
                or (right is not None and not apart(result, right))
                or (packed is not None and packed.scale is not None and not apart(result, packed.scale))):
            return None
    else:
        return None
    if not set_epilogue(&p, bias, activation, residual, result, out is not None):
        return None

    p.a, p.a_size = cnp.PyArray_BYTES(left), cnp.PyArray_ITEMSIZE(left)
    p.out, p.out_size = cnp.PyArray_BYTES(result), cnp.PyArray_ITEMSIZE(result)
    p.out_rs = p.n * p.out_size
    if batch_axes == 0:  # all rows are one matrix
        p.m, p.a_cs, p.a_rs = 1, p.a_size, p.k * p.a_size
        for axis in range(ndim - 1):
            p.m *= shape[axis]
    else:
        p.m = shape[ndim - 2]
        p.a_rs, p.a_cs = cnp.PyArray_STRIDE(left, ndim - 2), cnp.PyArray_STRIDE(left, ndim - 1)
        p.batch, p.batch_axes = batch, batch_axes
        for axis in range(batch_axes - 1, -1, -1):
            batch[axis].length = shape[axis]
            batch[axis].a = cnp.PyArray_STRIDE(left, axis)
            batch[axis].b = matrices if right is None else cnp.PyArray_STRIDE(right, axis)
            matrices *= shape[axis]
            batch[axis].out = cnp.PyArray_STRIDE(result, axis)
            batch[axis].residual = 0 if residual is None else cnp.PyArray_STRIDE(<cnp.ndarray>residual, axis)
    multiply(&p, matrices)
    return result


def matmul(a, b, *, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(a @ b + bias) + residual``, accumulated in float32 (integers: exactly) and rounded once.

    Parameters
    ----------
    a : array-like or QuantizedArray
        Shape (..., m, k) or (k,).
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,). Leading axes broadcast as in :func:`numpy.matmul`.
    out_dtype : dtype, optional
        Type of the result: a float type, or int32 for int8 products. Default: the promoted type of the operands
        (bfloat16 @ bfloat16 gives bfloat16; beside float8 and int8 on the right, that of `a`), int32 for int8, float32
        for two quantized operands.
    out : ndarray, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.
    bias : array-like, optional
        Shape (n,), float; added in float32.
    activation : str, optional
        "relu", "relu6", "gelu" (the exact one, by erf), "gelu_tanh", "silu", "sigmoid" or "tanh", applied in float32.
    residual : array-like, optional
        The result's shape, float; added in float32 after the activation.

    Returns
    -------
    ndarray
        The same bits for every instruction set, thread count, batch size, packing and stride.

    Raises
    ------
    TypeError
        The operands' types have no product: floats have, with int8 on the right too, int8 @ int8 and uint8 @ int8.
    ValueError
        The shapes do not fit, or an integer product is too deep to be exact (int8: k > 131071, uint8: k > 65793).

    Notes
    -----
    Operands of different float types meet in their common type (float16 with bfloat16: float32) and are widened where
    they are multiplied; float8 and int8 on the right of a wider float are too. Two quantized operands, `a` with one
    scale or one per row, `b` with one or one per column, multiply as integers, zero points included, and are rescaled:
    ``float(sum) * row_scale * col_scale``. A quantized `b` without zero points beside a float `a` is multiplied as it
    is, ``(a @ values) * scale``. Any other quantized operand is dequantized first.
    The numerics page states the order of operations and proves an error bound, at most ``gamma_k |A| |B|``.

    Examples
    --------
    >>> a = np.array([[1, 2], [3, 4]], np.float16)
    >>> matmul(a, a)
    array([[ 7., 10.],
           [15., 22.]], dtype=float16)
    """
    result = short_way(a, b, out_dtype, out, bias, activation, residual, False, None, None)
    return _long_way(a, b, out_dtype, out, bias, activation, residual) if result is None else result


def dynamic_matmul(a, b, *, scale=None, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(q(a) @ b + bias) + residual`` for quantized weights, `a` quantized to int8 on the way.

    What ``matmul(quantize(a, axis=every axis but the last), b)`` gives, bit for bit, without an array in between.

    Parameters
    ----------
    a : array-like
        Shape (..., m, k) or (k,), float.
    b : PackedMatrix
        Shape (k, n), int8, packed from a :class:`QuantizedArray`.
    scale : float, optional
        What one step of `a` stands for. None: each row has its own, ``max|a| / 127``.
    out_dtype, out, bias, activation, residual
        As in :func:`matmul`; `out_dtype` is by default the type of `a`.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `a` is not of a float type, or `b` no packed int8 matrix with scales.
    ValueError
        The shapes do not fit, or `scale` is not positive and finite.

    Examples
    --------
    >>> from mp_core import pack, quantize
    >>> w = pack(quantize(np.array([[1.0, 0.5], [0.25, 1.0]]), axis=1))
    >>> dynamic_matmul(np.array([[1.0, 2.0]], np.float32), w).round(1)
    array([[1.5, 2.5]], dtype=float32)
    """
    if (not isinstance(b, PackedMatrix) or (<PackedMatrix>b).format != MP_I8 or (<PackedMatrix>b).scale is None
            or (<PackedMatrix>b).group or len((<PackedMatrix>b).shape) != 2):
        raise TypeError(f"`b` must be a PackedMatrix of int8 with scales by column; received {b!r}")
    if scale is not None:
        step = <float>scale
        if not 0 < step < float("inf"):
            raise ValueError(f"`scale` must be positive and finite in float32; received {scale}")
    result = short_way(a, b, out_dtype, out, bias, activation, residual, True, scale, None)
    if result is None:
        result = _long_dynamic(a, b, scale, None, out_dtype, out, bias, activation, residual)
    return result


def fixed_matmul(a, PackedMatrix b not None, cnp.ndarray steps not None, cnp.ndarray zeros not None, *, bias=None,
                 activation=None):
    """Return ``activation(codes @ b + bias)``, ``codes = quantize(a, axis=-1, scale=steps, zero_point=zeros).values``.

    `b` is packed int8 with scales by column that has taken in the `steps`, contiguous float32 (k,), and `bias` the
    share of `zeros`, contiguous int32 (k,): what a calibrated layer keeps, and has checked. The result has a's type.
    """
    if (b.format != MP_I8 or b.scale is None or len(b.shape) != 2 or cnp.PyArray_TYPE(steps) != _types[<int>MP_F32]
            or cnp.PyArray_TYPE(zeros) != _int32 or cnp.PyArray_SIZE(steps) != b.k or cnp.PyArray_SIZE(zeros) != b.k
            or not cnp.PyArray_ISCARRAY_RO(steps) or not cnp.PyArray_ISCARRAY_RO(zeros)):
        raise ValueError(f"`steps` and `zeros` must be contiguous float32 and int32 of length {b.k}; received "
                         f"{steps.dtype} {np.shape(steps)} and {zeros.dtype} {np.shape(zeros)}")
    result = short_way(a, b, None, None, bias, activation, None, True, steps, zeros)
    return _long_dynamic(a, b, steps, zeros, None, None, bias, activation, None) if result is None else result
