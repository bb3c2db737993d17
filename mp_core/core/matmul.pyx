"""Matrix products: packing, blocking, the schedule over threads. The arithmetic is in kernels/gemm.inc.

Every element of a product is computed by the same operations in the same order, whatever the shape around it, the
packing, the strides, the threads or the instruction set: k is cut into blocks whose length depends on the type only.
"""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport (
    MP_BLOCK_BF16, MP_BLOCK_F16, MP_BLOCK_F32, MP_BLOCK_I8, MP_GEMM_BF16, MP_GEMM_F16, MP_GEMM_F32, MP_GEMM_I8,
    MP_LANES, MP_PANEL, mp_activation, mp_format, mp_gemm, mp_kernels,
)

import numpy as np

cnp.import_array()

KINDS = {
    "float32": MP_GEMM_F32, "float16": MP_GEMM_F16, "bfloat16": MP_GEMM_BF16, "int8": MP_GEMM_I8, "uint8": MP_GEMM_I8,
}
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3, "relu6": 4, "gelu_tanh": 5, "sigmoid": 6, "tanh": 7}
OUT_FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2, "float8_e4m3fn": 3, "float8_e5m2": 4, "int32": 5}

# By kind: bytes of an element of b, neighbours along k in a group, length of a block of k.
cdef Py_ssize_t *SIZE = [4, 2, 2, 1]
cdef Py_ssize_t *GROUP = [1, 1, 2, 4]
cdef Py_ssize_t *BLOCK = [MP_BLOCK_F32, MP_BLOCK_F16, MP_BLOCK_BF16, MP_BLOCK_I8]

cdef enum:
    PACKED_ROWS = 192     # rows of a that pass one packed panel before the next, which stays in the second-level cache
    SCRATCH_ROWS = 1020   # rows per panel that is packed on the fly: packing it costs about 1/1000 of its product
    COPY_BYTES = 1 << 19  # a in scratch, where it must be widened or made contiguous
    TILE_ROWS = 6

# Multiplications from which a second thread pays: about 20 microseconds on one.
cdef double WORTHWHILE = 1 << 20


cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t unit) noexcept nogil:
    return (n + unit - 1) // unit * unit


cdef class PackedMatrix:
    """The right operand of a product, packed once for :func:`mp_core.matmul`. Made by :func:`mp_core.pack`.

    Immutable, picklable, the same on every instruction set.

    Attributes
    ----------
    shape : tuple of int
        The logical shape, ``(..., k, n)``.
    dtype : numpy.dtype
        float32, float16, bfloat16 or int8.
    scale : numpy.ndarray or None
        For a packed :class:`mp_core.QuantizedArray`: float32, shape (n,), the column scales.
    nbytes : int
        Bytes held, padding and column sums included.
    """
    cdef readonly tuple shape
    cdef readonly object dtype
    cdef readonly cnp.ndarray data         # uint8, the panels of all matrices
    cdef readonly cnp.ndarray column_sums  # int8 only: int32 [matrices][n rounded up to 16], -128 * column sums
    cdef readonly cnp.ndarray scale
    cdef int kind
    cdef Py_ssize_t matrix_bytes           # from one matrix of the batch to the next

    def __init__(self, shape, dtype, data, column_sums=None, scale=None):
        cdef Py_ssize_t k, n, matrices = 1
        self.shape, self.dtype = tuple([int(length) for length in shape]), dtype
        if len(self.shape) < 2 or min(self.shape) < 0 or dtype.name not in KINDS or dtype.name == "uint8":
            raise ValueError("a PackedMatrix has a shape (..., k, n) and is float32, float16, bfloat16 or int8; "
                             f"received shape {shape} and dtype {dtype}")
        self.kind = KINDS[dtype.name]
        k, n = self.shape[len(self.shape) - 2], self.shape[len(self.shape) - 1]
        for length in self.shape[:len(self.shape) - 2]:
            matrices *= <Py_ssize_t>length
        self.matrix_bytes = round_up(k, GROUP[self.kind]) * round_up(n, MP_LANES) * SIZE[self.kind]
        sums = (matrices, round_up(n, MP_LANES)) if self.kind == MP_GEMM_I8 else None
        self.data = _part(data, "data", (matrices * self.matrix_bytes,), np.uint8)
        self.column_sums = _part(column_sums, "column_sums", sums, np.int32)
        self.scale = _part(scale, "scale", None if scale is None else (n,), np.float32)

    @property
    def nbytes(self):
        return sum(part.nbytes for part in (self.data, self.column_sums, self.scale) if part is not None)

    @property
    def ndim(self):
        return len(self.shape)

    def unpack(self):
        """Return the matrix as it was packed: an array of `shape` and `dtype`, exactly equal."""
        cdef cnp.ndarray out = np.empty(self.shape, self.dtype)
        cdef Py_ssize_t k = self.shape[len(self.shape) - 2], n = self.shape[len(self.shape) - 1]
        cdef Py_ssize_t width, matrix, column, matrices = out.size // (k * n) if k * n else 0
        cdef const mp_kernels *use = kernels()
        cdef const char *src
        cdef char *dst
        for matrix in range(matrices):
            for column in range(0, n, MP_PANEL):
                width = min(n - column, <Py_ssize_t>MP_PANEL)
                src = cnp.PyArray_BYTES(self.data) + matrix * self.matrix_bytes + column * panel_row(self.kind, k)
                dst = cnp.PyArray_BYTES(out) + (matrix * k * n + column) * SIZE[self.kind]
                use.unpack[self.kind](k, width, src, dst, n)
        return out

    def __reduce__(self):
        return _restore, (self.shape, self.dtype.name, self.data, self.column_sums, self.scale)

    def __repr__(self):
        return f"PackedMatrix(shape={self.shape}, dtype={self.dtype.name})"


def _part(array, name, shape, dtype):
    """Return a buffer of a PackedMatrix, None where there must be none; the kernels trust its size."""
    if array is None and shape is None:
        return None
    if (not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype
            or not array.flags.c_contiguous):
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"`{name}` must be contiguous {np.dtype(dtype).name} of shape {shape}; received {found}")
    return array


def _restore(shape, name, data, column_sums, scale):
    from mp_core.dtypes import ALLOWED
    return PackedMatrix(shape, ALLOWED[name], data, column_sums, scale)


cdef inline Py_ssize_t panel_row(int kind, Py_ssize_t k) noexcept nogil:
    """Bytes of one column of a panel: panel j starts 64 j times as many bytes into its matrix."""
    return round_up(k, GROUP[kind]) * SIZE[kind]


def aligned_empty(Py_ssize_t nbytes):
    """Return an uninitialized uint8 array that starts at a multiple of 64 bytes."""
    cdef cnp.ndarray block = np.empty(nbytes + 64, np.uint8)
    cdef Py_ssize_t shift = <Py_ssize_t>(63 - (<size_t>cnp.PyArray_BYTES(block) + 63) % 64)
    return block[shift:shift + nbytes]


cdef struct Packing:
    const mp_kernels *kernels
    int kind
    Py_ssize_t k, n, panels
    const char *src
    Py_ssize_t rs, cs
    char *dst
    int32_t *sums


cdef void pack_panel(void *context, Py_ssize_t index) noexcept nogil:
    cdef const Packing *p = <const Packing *>context
    cdef Py_ssize_t column = index * MP_PANEL, n = min(p.n - column, <Py_ssize_t>MP_PANEL)
    cdef char *dst = p.dst + column * panel_row(p.kind, p.k)
    p.kernels.pack[p.kind](p.k, n, p.src + column * p.cs, p.rs, p.cs, dst)
    if p.sums != NULL:
        p.kernels.column_sums(p.k, n, dst, -128, p.sums + column)


def pack(cnp.ndarray b not None, scale=None):
    """Pack `b` (..., k, n), of a dtype in :data:`KINDS` but uint8, native byte order, any strides."""
    cdef Packing p
    cdef int ndim = cnp.PyArray_NDIM(b), threads
    cdef tuple shape = (<object>b).shape
    cdef object matrices = int(np.prod(shape[:ndim - 2], dtype=np.int64))
    cdef cnp.ndarray sums = None, matrix
    cdef PackedMatrix packed
    p.kernels, p.kind = kernels(), KINDS[b.dtype.name]
    p.k, p.n = shape[ndim - 2], shape[ndim - 1]
    p.panels = (p.n + MP_PANEL - 1) // MP_PANEL
    if p.kind == MP_GEMM_I8:
        sums = np.zeros((matrices, round_up(p.n, MP_LANES)), np.int32)
    packed = PackedMatrix(shape, b.dtype, aligned_empty(
        matrices * round_up(p.k, GROUP[p.kind]) * round_up(p.n, MP_LANES) * SIZE[p.kind]), sums, scale)
    p.rs, p.cs = cnp.PyArray_STRIDE(b, ndim - 2), cnp.PyArray_STRIDE(b, ndim - 1)
    threads = threads_for(<double>p.k * p.n, WORTHWHILE)
    for index, place in enumerate(np.ndindex(shape[:ndim - 2])):
        matrix = b[place]
        p.src = cnp.PyArray_BYTES(matrix)
        p.dst = cnp.PyArray_BYTES(packed.data) + <Py_ssize_t>index * packed.matrix_bytes
        p.sums = NULL
        if sums is not None:
            p.sums = <int32_t *>cnp.PyArray_DATA(sums) + <Py_ssize_t>index * cnp.PyArray_DIM(sums, 1)
        with nogil:
            parallel_for(threads, p.panels, pack_panel, &p)
    return packed


# One call of matmul: what every task reads. Strides of a and out in bytes, batch strides per batch axis.
cdef struct Product:
    const mp_kernels *kernels
    int kind, a_size, out_size
    Py_ssize_t m, n, k
    const char *a
    Py_ssize_t a_rs, a_cs
    bint a_direct                     # a is read in place: rows with unit stride, of the width the kernel reads
    const char *b
    Py_ssize_t b_rs, b_cs             # b as an array; b_rs == 0 and b_cs == 0 with packed set
    bint packed
    const int32_t *sums
    Py_ssize_t sums_step
    char *out
    Py_ssize_t out_rs
    const float *row_scale            # [batch][m]
    mp_gemm common                    # what all kernel calls share
    int batch_axes
    Py_ssize_t batch_shape[64]
    Py_ssize_t a_batch[64]
    Py_ssize_t b_batch[64]            # bytes; packed: matrices
    Py_ssize_t out_batch[64]
    Py_ssize_t matrix_bytes
    Py_ssize_t row_chunk, row_chunks, panel_chunk, panel_chunks
    bint failed


cdef const char *contiguous_rows(const Product *p, const char *a, Py_ssize_t rows, char *to) noexcept nogil:
    """Rows of a in scratch, k elements each, as the kernel reads them: unit stride, float16 widened to float32."""
    cdef Py_ssize_t i, q
    cdef const char *row
    cdef char *gathered
    cdef bint widen = p.kind == MP_GEMM_F16
    cdef Py_ssize_t out_bytes = p.k * (4 if widen else p.a_size)
    gathered = to + rows * out_bytes
    for i in range(rows):
        row = a + i * p.a_rs
        if p.a_cs != p.a_size:
            if not widen:
                gathered = to + i * out_bytes
            for q in range(p.k):
                memcpy(gathered + q * p.a_size, row + q * p.a_cs, p.a_size)
            row = gathered
        if widen:
            p.kernels.widen[1](row, <float *>(to + i * out_bytes), p.k, 0)
        elif row != gathered:
            memcpy(to + i * out_bytes, row, out_bytes)
    return to


cdef void run_product(void *context, Py_ssize_t index) noexcept nogil:
    """One chunk of rows times one run of panels of one matrix of the batch."""
    cdef Product *p = <Product *>context
    cdef mp_gemm g = p.common
    cdef Py_ssize_t panel_chunk = index % p.panel_chunks, rest = index // p.panel_chunks
    cdef Py_ssize_t row = rest % p.row_chunks * p.row_chunk, matrix = rest // p.row_chunks, place = matrix
    cdef Py_ssize_t rows = min(p.row_chunk, p.m - row)
    cdef const char *a = p.a
    cdef const char *b = p.b
    cdef char *out = p.out
    cdef Py_ssize_t b_matrix = 0, block = BLOCK[p.kind], size = SIZE[p.kind]
    cdef Py_ssize_t column, last_column, first, length, axis, position, acc_bytes, block_bytes, copy_bytes
    cdef Py_ssize_t kernel_size = 4 if p.kind == MP_GEMM_F16 else p.a_size
    cdef char *work
    cdef int32_t *init
    for axis in range(p.batch_axes - 1, -1, -1):
        position = place % p.batch_shape[axis]
        place //= p.batch_shape[axis]
        a += position * p.a_batch[axis]
        out += position * p.out_batch[axis]
        if p.packed:
            b_matrix += position * p.b_batch[axis]
        else:
            b += position * p.b_batch[axis]

    a += row * p.a_rs
    copy_bytes = 0 if p.a_direct else round_up((rows + 1) * p.k * kernel_size + 64, 64)
    acc_bytes = rows * MP_PANEL * 4 if p.k > block else 0
    block_bytes = 0 if p.packed else round_up(min(p.k, block), 4) * MP_PANEL * size
    work = <char *>scratch(copy_bytes + acc_bytes + block_bytes + MP_PANEL * 4)
    if work == NULL:
        p.failed = True
        return
    init = <int32_t *>(work + copy_bytes + acc_bytes + block_bytes)
    if not p.a_direct:
        a = contiguous_rows(p, a, rows, work)
    g.m = rows
    g.lda = p.k if not p.a_direct else p.a_rs // kernel_size
    g.acc = <void *>(work + copy_bytes) if acc_bytes else NULL
    if p.row_scale != NULL:
        g.row_scale = p.row_scale + matrix * p.m + row

    column = panel_chunk * p.panel_chunk * MP_PANEL
    last_column = min(p.n, (panel_chunk + 1) * p.panel_chunk * MP_PANEL)
    while column < last_column:
        g.n = min(p.n - column, <Py_ssize_t>MP_PANEL)
        g.out = out + row * p.out_rs + column * p.out_size
        g.col_scale = p.common.col_scale + column if p.common.col_scale != NULL else NULL
        g.bias = p.common.bias + column if p.common.bias != NULL else NULL
        first = 0
        while True:
            length = min(p.k - first, block)
            g.k, g.a = length, a + first * kernel_size
            g.first, g.last = first == 0, first + length == p.k
            g.init = NULL
            if p.packed:
                g.b = (b + b_matrix * p.matrix_bytes + column * panel_row(p.kind, p.k)
                       + first * round_up(g.n, MP_LANES) * size)
                if p.sums != NULL and g.first:
                    g.init = p.sums + b_matrix * p.sums_step + column
            else:
                g.b = work + copy_bytes + acc_bytes
                p.kernels.pack[p.kind](length, g.n, b + first * p.b_rs + column * p.b_cs, p.b_rs, p.b_cs, <void *>g.b)
                if g.a_flip:
                    memset(init, 0, MP_PANEL * 4)
                    p.kernels.column_sums(length, g.n, g.b, -128, init)
                    g.init = init
            p.kernels.gemm[p.kind](&g)
            first += length
            if first >= p.k:
                break
        column += MP_PANEL


cdef void split(Product *p, Py_ssize_t matrices, int threads) noexcept nogil:
    """Choose the chunks: enough tasks for the threads, as few as possible for the caches, none across k."""
    cdef Py_ssize_t panels = (p.n + MP_PANEL - 1) // MP_PANEL, wanted, kernel_size
    p.row_chunk = PACKED_ROWS if p.packed else SCRATCH_ROWS
    if not p.a_direct:
        kernel_size = 4 if p.kind == MP_GEMM_F16 else p.a_size
        p.row_chunk = min(p.row_chunk, max(COPY_BYTES // max(p.k * kernel_size, 1) // TILE_ROWS * TILE_ROWS, TILE_ROWS))
    p.panel_chunk = panels
    if threads > 1:
        wanted = 4 * threads
        if matrices * ((p.m + p.row_chunk - 1) // p.row_chunk) < wanted:
            p.panel_chunk = max(1, panels * matrices * ((p.m + p.row_chunk - 1) // p.row_chunk) // wanted)
        if matrices * panels < threads:  # few columns: the rows must give the parallelism
            p.row_chunk = min(p.row_chunk, round_up((p.m + threads - 1) // threads, TILE_ROWS))
    p.row_chunk = min(p.row_chunk, p.m)
    p.row_chunks = (p.m + p.row_chunk - 1) // p.row_chunk
    p.panel_chunks = (panels + p.panel_chunk - 1) // p.panel_chunk


cdef const float *floats(object array) except? NULL:
    if array is None:
        return NULL
    return <const float *>cnp.PyArray_DATA(<cnp.ndarray>array)


def product(cnp.ndarray a not None, b, cnp.ndarray out not None, int kind, bint signed, int out_format, int activation,
            row_scale, bias):
    """out = narrow(activation((a @ b) * row_scale * col_scale + bias)); the arguments are checked by mp_core.ops.

    `a` (..., m, k), `b` (..., k, n) and `out` (..., m, n) have equal batch axes (zero strides where broadcast; a
    PackedMatrix has its own batch shape, broadcast here) and share a `kind`; `signed`: `a` is int8, not uint8. `out`
    has unit stride along n, a type of :data:`OUT_FORMATS` and overlaps neither. `row_scale` float32 (matrices * m,)
    and `bias` float32 (n,) are contiguous or None.
    """
    cdef Product p
    cdef int ndim = cnp.PyArray_NDIM(a), axis, threads, lead
    cdef Py_ssize_t matrices = 1, step = 1, tasks
    cdef PackedMatrix packed = None
    cdef cnp.ndarray b_array = None
    memset(&p, 0, sizeof(p))
    p.kernels, p.kind = kernels(), kind
    p.m, p.k = cnp.PyArray_DIM(a, ndim - 2), cnp.PyArray_DIM(a, ndim - 1)
    p.n = cnp.PyArray_DIM(out, ndim - 1)
    p.a, p.a_size = cnp.PyArray_BYTES(a), cnp.PyArray_ITEMSIZE(a)
    p.a_rs, p.a_cs = cnp.PyArray_STRIDE(a, ndim - 2), cnp.PyArray_STRIDE(a, ndim - 1)
    p.a_direct = p.kind != MP_GEMM_F16 and (p.a_cs == p.a_size or p.k <= 1) and p.a_rs % p.a_size == 0
    p.out, p.out_size = cnp.PyArray_BYTES(out), cnp.PyArray_ITEMSIZE(out)
    p.out_rs = cnp.PyArray_STRIDE(out, ndim - 2)
    p.batch_axes = ndim - 2
    if isinstance(b, PackedMatrix):
        packed = b
        p.packed, p.b, p.matrix_bytes = True, cnp.PyArray_BYTES(packed.data), packed.matrix_bytes
        if signed:
            p.sums, p.sums_step = <const int32_t *>cnp.PyArray_DATA(packed.column_sums), packed.column_sums.shape[1]
        p.common.col_scale = floats(packed.scale)
    else:
        b_array = b
        p.b = cnp.PyArray_BYTES(b_array)
        p.b_rs, p.b_cs = cnp.PyArray_STRIDE(b_array, ndim - 2), cnp.PyArray_STRIDE(b_array, ndim - 1)
    for axis in range(ndim - 3, -1, -1):
        p.batch_shape[axis] = cnp.PyArray_DIM(out, axis)
        p.a_batch[axis], p.out_batch[axis] = cnp.PyArray_STRIDE(a, axis), cnp.PyArray_STRIDE(out, axis)
        matrices *= p.batch_shape[axis]
        if packed is None:
            p.b_batch[axis] = cnp.PyArray_STRIDE(b_array, axis)
        else:
            lead = axis - (ndim - len(packed.shape))
            if lead >= 0 and packed.shape[lead] != 1:
                p.b_batch[axis] = step
                step *= <Py_ssize_t>packed.shape[lead]
    if matrices == 0 or p.m == 0 or p.n == 0:
        return
    p.row_scale = floats(row_scale)
    p.common.bias = floats(bias)
    p.common.a_flip = 0x80808080u if signed else 0
    p.common.activation, p.common.out_format = <mp_activation>activation, <mp_format>out_format
    p.common.ldo = p.out_rs // p.out_size
    threads = threads_for(<double>matrices * p.m * p.n * max(p.k, 1), WORTHWHILE)
    split(&p, matrices, threads)
    tasks = matrices * p.row_chunks * p.panel_chunks
    with nogil:
        parallel_for(threads, tasks, run_product, &p)
    if p.failed:
        raise MemoryError("no memory for the scratch of a matrix product")
