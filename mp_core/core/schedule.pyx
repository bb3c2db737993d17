"""The schedule of a product: blocks for the caches, tasks for the threads. The arithmetic is in kernels/products/.

Every element of a product is computed by the same operations in the same order, whatever the shape around it, the
packing, the strides, the threads or the instruction set: k is cut into blocks whose length depends on the types only.
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport (
    MP_BF16, MP_BLOCK_PAIRS, MP_BLOCK_WIDE, MP_CODE_I8, MP_F16, MP_F32, MP_FLOATS, MP_I8, MP_LANES,
    MP_PAIRS, MP_PANEL, MP_QUADS, MP_ROWS, MP_SLACK, MP_TURNED_ROWS, MP_WIDE, MP_WITHIN, mp_column_bytes,
    mp_element_bytes, mp_gemm, mp_group, mp_group_bytes, mp_tile,
)

cdef enum:
    PACKED_ROWS = 192       # rows of a that pass a packed panel before the next one: it stays in the second-level cache
    SCRATCH_ROWS = 1032     # rows per panel that is made on the fly: making it costs about 1/100 of its product
    FEW = 48                # rows for which it is made in small pieces instead, which stay in the first-level cache
    QUANTIZED = 4096        # elements of a that stay in the first-level cache between their scales and their codes
    COPY_BYTES = 1 << 23    # rows of a in scratch, where they must be widened or made contiguous
    PANEL_BYTES = 1 << 18   # a panel's range of k, in the second-level cache
    TILED_BYTES = 1 << 16   # ... of one that is multiplied by tiles
    PIECE_BYTES = 1 << 15   # ... in the first
    FETCHED_BYTES = 1 << 14  # ... and the next range beside it, fetched from memory for few rows of a
    TILE_ROWS = 32          # of a, that tiles hold
    TILED_ROWS = 6          # ... of integers, from which they are multiplied,
    TILED_MADE_ROWS = 12    # ... if panels are made for it,
    TILED_K = 64            # ... k, as much as fills one
    FETCHING = 10           # rows from which that pays: fewer are multiplied in less time than fetching takes
    FETCHING_DECODED = 8    # ... of panels that are widened or decoded: more work for a byte
    PIECE_ROWS = 512        # of b, that lie far apart, whose neighbours are read next; of those of one row of a
    IN_PLACE_ROWS = 32      # the same, where they are read in place by a tile; for more tiles twice as many
    FAR_ROWS = 128          # the same, of panels that are made from memory for more than one tile
    FAR_BYTES = 1 << 10     # of a row of b in memory: of the panels in work together, at most
    NEAR_BYTES = 1 << 18    # from end to end of b, which stays in the second-level cache: float32 reads it in place
    NEAR_ROWS = 192         # ... for more rows of a, until a panel's making costs no more than its rows far apart
    CACHED_BYTES = 1 << 19  # of b: a larger one is taken to come from memory, as one of many layers does
    TILED_CACHED_BYTES = 1 << 20  # ... of what tiles multiply: their processors have 2 MB for each core
    ACC_BYTES = 1 << 18     # accumulators of the panels that are in work together
    PAGE = 4096             # bytes: what lies between mapped bytes closer together is mapped

cdef Py_ssize_t ANY = <Py_ssize_t>1 << 40  # a block of integers: all of k
cdef Py_ssize_t MOST = <Py_ssize_t>1 << 50  # k: no size of scratch overflows

# By arithmetic: bytes of an element of a as the kernel reads it, the format that it multiplies, its block of k.
cdef Py_ssize_t *A_SIZE = [4, 2, 1]
cdef int *NATIVE = [MP_F32, MP_BF16, MP_I8]
cdef Py_ssize_t *BLOCK = [MP_BLOCK_WIDE, MP_BLOCK_PAIRS, ANY]

# By arithmetic: rows up to which rows of b are read in place: how little work it is to read them again for each tile.
cdef Py_ssize_t *IN_PLACE = [24, 3 * MP_ROWS, MP_ROWS]
# ... up to which contiguous columns of it are turned: how little work it is beside their transposition; short ones of
# integers only up to a tile, since their sums end in 16 lanes.
cdef Py_ssize_t *TURNED = [MP_TURNED_ROWS, MP_TURNED_ROWS, 2 * MP_ROWS]

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


cdef struct Place:     # where the operands and the result of some rows of one matrix are
    const char *a           # as the kernel reads it
    const char *b
    const int32_t *sums
    const char *residual
    char *out


cdef bint as_packed(const Product *p) noexcept nogil:
    """Whether the kernels multiply panels as they were packed; else they are made, or b is read as it lies."""
    return p.packed and not p.decoded


cdef void cut(Product *p, Py_ssize_t matrices, int threads) noexcept nogil:
    """Choose the tasks, chunks of rows by chunks of panels: enough for the threads, as few as the caches allow."""
    cdef Py_ssize_t panels = (p.n + MP_PANEL - 1) // MP_PANEL, wanted, chunks, rows
    p.row_chunk = PACKED_ROWS if as_packed(p) else SCRATCH_ROWS
    if not as_packed(p) and p.arithmetic == MP_QUADS and p.k <= PANEL_BYTES // MP_PANEL:  # one range: no accumulators
        p.row_chunk *= 2
    if not p.a_direct:
        rows = COPY_BYTES // max(p.k * A_SIZE[p.arithmetic], 1) // MP_ROWS * MP_ROWS
        p.row_chunk = min(p.row_chunk, max(rows, <Py_ssize_t>MP_ROWS))
    chunks = (p.m + p.row_chunk - 1) // p.row_chunk
    p.panel_chunk = panels
    if threads > 1 and p.quantized_here and p.m >= threads * MP_ROWS:  # no row is to be quantized twice
        chunks = round_up(chunks, threads)
    elif threads > 1:
        # Equal tasks, some for each thread; more if they are long. The last one is what a thread waits for.
        # But each copies its rows of a if they are not read in place, and memory is read well in whole rows of b.
        wanted = threads * <Py_ssize_t>max(2., min(16., <double>matrices * p.m * p.n * p.k / WORTHWHILE))
        if not p.packed and p.b_cs == mp_element_bytes[p.b_format] and p.m <= IN_PLACE[p.arithmetic]:
            wanted = threads
        if not p.a_direct:
            wanted = threads
            chunks = round_up(chunks, threads) if chunks > 1 else 1
        if matrices * panels < threads or (as_packed(p) and matrices * chunks * panels < wanted):
            chunks = max(chunks, min((p.m + 2 * MP_ROWS - 1) // (2 * MP_ROWS), threads))  # the rows must give them
        p.panel_chunk = max(1, panels * min(matrices * chunks, wanted) // wanted)
    rows = (p.m + chunks - 1) // chunks
    p.row_chunk = min(round_up(rows, TILE_ROWS if p.tiled and rows > 2 * TILE_ROWS else MP_ROWS), p.m)
    p.row_chunks = (p.m + p.row_chunk - 1) // p.row_chunk
    p.panel_chunks = (panels + p.panel_chunk - 1) // p.panel_chunk


cdef void choose_way(Product *p) noexcept nogil:
    """Whether b is read as it lies: by rows, or by columns of few rows of a."""
    cdef Py_ssize_t size = mp_element_bytes[p.b_format]
    cdef bint plain
    cdef bint lies = (not p.packed and not p.tiled and p.k > 0 and p.row_zero == NULL
                      and (p.arithmetic != MP_QUADS or p.a_format == MP_I8))
    cdef bint near = p.arithmetic == MP_WIDE and p.n % MP_LANES == 0 and p.k * p.b_rs <= NEAR_BYTES
    # Whole vectors reach up to 63 bytes beyond a row: into the next one, or a gap before it that is less than a page.
    p.in_place = (lies and p.b_cs == size and p.n >= MP_LANES and p.b_rs >= p.n * size
                  and (p.n % MP_LANES == 0 or p.b_rs - p.n * size < PAGE)
                  and p.row_chunk <= (NEAR_ROWS if near else IN_PLACE[p.arithmetic])
                  and p.kernels.products[p.arithmetic].in_place[p.b_format] != NULL)
    if p.in_place and (p.n % MP_LANES or p.k % mp_group[p.b_format]):
        p.tail = (p.k - 1) % mp_group[p.b_format] + 1
    p.turned = (lies and not p.in_place and p.b_rs == size
                and p.row_chunk <= (TURNED[p.arithmetic] if p.arithmetic != MP_QUADS or p.k >= 512 else MP_ROWS)
                and p.kernels.products[p.arithmetic].columns[p.b_format] != NULL)
    p.common.far = (p.n * (mp_column_bytes(p.b_format, p.k) if p.packed else p.k * size)
                    > (TILED_CACHED_BYTES if p.tiled else CACHED_BYTES))
    if not p.packed and p.b_cs == size:
        p.fetched = True
    elif p.tiled and as_packed(p):
        # What is multiplied in little more time than it takes to come is fetched just before, else a panel earlier.
        p.common.ahead = p.common.far and p.row_chunk <= 2 * FEW
        p.fetched = p.common.far and not p.common.ahead
    elif p.row_chunk > FEW:  # float16 loses 2 % by it, the others gain up to 6 (one Zen 5 core)
        p.fetched = (p.packed or p.b_rs == size) and p.b_format != MP_F16
    elif p.packed and p.common.far:
        plain = p.b_format == NATIVE[p.arithmetic]
        p.fetched = p.row_chunk >= (FETCHING if plain else FETCHING_DECODED)
        # One row and a panel that is multiplied as it is: the processor keeps up with memory by itself.
        p.common.ahead = as_packed(p) and not p.fetched and (p.row_chunk > 1 or not plain)


cdef void choose_step(Product *p, int fmt) noexcept nogil:
    """The range of k at a time, of panels in `fmt`, for the caches, and how many panels are in work together."""
    cdef Py_ssize_t rows = p.row_chunk, block = p.common.block
    cdef Py_ssize_t panel_bytes
    cdef bint one_panel = p.n <= MP_PANEL
    p.together = 1
    if p.turned or (rows <= (FEW if p.tiled else MP_ROWS) and (as_packed(p) or (p.in_place and one_panel))):
        p.step = block if p.tail else p.k  # what precedes the tail is no range of whole blocks
    elif rows <= FEW and not p.packed and p.fetched and (p.in_place or not one_panel):
        p.together = max(1, ACC_BYTES // (rows * MP_PANEL * 4 * (2 if p.k > block else 1)))
        if rows > MP_ROWS and p.common.far:
            p.together = min(p.together, max(1, FAR_BYTES // (MP_PANEL * mp_element_bytes[p.b_format])))
        if not p.in_place or rows == 1:
            p.step = FAR_ROWS if rows > MP_ROWS and p.common.far and not p.tiled else PIECE_ROWS
        elif rows > MP_ROWS:
            p.step = 2 * IN_PLACE_ROWS
        else:
            p.step = IN_PLACE_ROWS // 2 if p.common.far and p.arithmetic != MP_QUADS else IN_PLACE_ROWS
    else:
        if rows > FEW or (as_packed(p) and not p.fetched):
            panel_bytes = TILED_BYTES if p.tiled else PANEL_BYTES
        else:
            panel_bytes = FETCHED_BYTES if p.packed and p.fetched else PIECE_BYTES
        p.step = panel_bytes // (MP_PANEL * mp_group_bytes[fmt]) * mp_group[fmt]
    if p.step >= p.k:
        p.step = max(p.k, 1)
    elif p.step >= block:
        p.step = p.step // block * block
    elif block != ANY and block % p.step:
        p.step = block
    p.together = min(p.together, p.panel_chunk)


cdef void size_scratch(Product *p, int fmt) noexcept nogil:
    """What a task of the schedule needs, part by part."""
    cdef Py_ssize_t rows = p.row_chunk, block = p.common.block, width = min(p.n, <Py_ssize_t>MP_PANEL)
    cdef Py_ssize_t tiles = rows * MP_PANEL * 4 * p.together
    p.copy_bytes = 0 if p.a_direct else round_up(rows * p.k * A_SIZE[p.arithmetic], 64)
    p.gather_bytes = round_up(rows * p.k * p.a_size, 64) if p.a_cs != p.a_size and not p.a_direct else 0
    p.chain_bytes = tiles if (p.k > p.step and p.step % block) or p.tail else 0
    p.acc_bytes = tiles if (p.k > p.step and p.k > block) or (p.in_place and p.chain_bytes == 0) else 0
    if p.tail:
        p.block_bytes = mp_group[p.b_format] * p.together * MP_PANEL * mp_element_bytes[p.b_format]
    elif not (p.packed or p.turned or p.in_place):
        p.block_bytes = round_up(mp_column_bytes(p.b_format, p.step) * width + MP_SLACK, 64)
    p.decoded_bytes = round_up(mp_column_bytes(fmt, p.step) * width + MP_SLACK, 64) if p.decoded else 0
    p.sums_bytes = MP_PANEL * 4 * p.together if p.sums_wanted and not p.packed and not p.turned else 0
    p.row_sums_bytes = round_up(rows * 4, 64) if (
        p.col_zero != NULL or (p.arithmetic == MP_QUADS and (p.turned or p.in_place))) else 0
    p.row_scale_bytes = round_up(rows * 4, 64) if p.quantized_here and p.row_scale == NULL and p.steps == NULL else 0
    if p.quantized_here and p.a_format != MP_F32:
        p.gather_bytes = rows * p.k * 4  # in float32
    p.scale_bytes = (p.k + block - 1) // block * MP_PANEL * 4 if p.group_scale != NULL else 0
    p.scratch_bytes = (p.copy_bytes + p.gather_bytes + p.acc_bytes + p.chain_bytes + p.block_bytes + p.decoded_bytes
                       + p.sums_bytes + p.row_sums_bytes + p.scale_bytes + p.row_scale_bytes)


cdef void schedule(Product *p, Py_ssize_t matrices, int threads) noexcept nogil:
    """Tasks for the threads, ranges of k for the caches; no task shares an element with another."""
    cdef int fmt = NATIVE[p.arithmetic] if p.decoded else p.b_format
    cut(p, matrices, threads)
    choose_way(p)
    choose_step(p, fmt)
    size_scratch(p, fmt)


cdef void quantize_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *wide,
                        mp_gemm *g) noexcept nogil:
    """Rows of a as int8, by the scales of their largest magnitudes or the given one: as mp_core.quantize does."""
    cdef mp_tile t
    cdef float *scales = <float *>g.row_scale
    cdef Py_ssize_t i, first = 0, half, together = max(1, QUANTIZED // max(p.k, 1))
    memset(&t, 0, sizeof(t))
    t.rows, t.cols, t.x, t.ldx, t.ahead = rows, p.k, <float *>a, p.a_rs // 4, p.k
    if p.a_format != MP_F32:
        for i in range(rows):
            p.kernels.casts.widen[p.a_format](a + i * p.a_rs, <float *>wide + i * p.k, p.k, 0)
        t.x, t.ldx = <float *>wide, p.k
    t.q, t.ldq, t.row_step, t.scale = <uint8_t *>to, p.k, g.row_step, scales
    t.qmin, t.qmax = -128, 127
    if p.steps != NULL:
        t.scale, t.zero_point, t.row_step, t.col_step = p.steps, p.zeros, 0, 1
    elif p.row_scale == NULL:
        t.qmin, t.mode, t.ahead = -127, MP_WITHIN, 0
        memset(scales, 0, rows * 4)
        while first < rows:
            t.rows = min(together, rows - first)
            half = t.rows * t.ldx // 2
            t.next = t.x + 2 * half if first + together < rows else NULL
            p.kernels.quantizers.amax(&t, scales + first)
            p.kernels.quantizers.symmetric_scales(scales + first, t.rows, 127, scales + first)
            t.scale = scales + first
            if t.next != NULL:
                t.next += half
            p.kernels.quantizers.quantize[<int>MP_CODE_I8](&t)
            t.x += t.rows * t.ldx
            t.q += t.rows * t.ldq
            first += t.rows
        return
    p.kernels.quantizers.quantize[<int>MP_CODE_I8](&t)


cdef void gather_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *gathered) noexcept nogil:
    """Rows of a, k elements each, as the kernel reads them: unit stride, in its type."""
    cdef Py_ssize_t i, q
    cdef Py_ssize_t rs = p.a_rs, k = p.k
    if p.a_cs != p.a_size:
        if p.a_size > 1:
            p.kernels.packing.pack[<int>(MP_F32 if p.a_size == 4 else MP_F16)](rows, p.k, a, p.a_rs, p.a_cs, gathered)
        else:
            for q in range(p.k):
                for i in range(rows):
                    gathered[i * p.k + q] = a[i * p.a_rs + q * p.a_cs]
        a, rs = gathered, p.k * p.a_size
    if rs == k * p.a_size:  # one row after the other
        rows, k = 1, rows * k
    for _ in range(rows):
        if p.arithmetic == MP_WIDE and p.a_format != MP_F32:
            p.kernels.casts.widen[p.a_format](a, <float *>to, k, 0)
        elif p.arithmetic == MP_PAIRS and p.a_format != MP_BF16:
            p.kernels.casts.to_bf16[p.a_format](a, to, k)
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


cdef const char *packed_range(const Product *p, const Place *at, Py_ssize_t first, Py_ssize_t column,
                              Py_ssize_t n) noexcept nogil:
    """Where the range of k that starts at first is, in the packed panel of n columns that starts at column."""
    return (at.b + column * mp_column_bytes(p.b_format, p.k)
            + first // mp_group[p.b_format] * mp_group_bytes[p.b_format] * n)


cdef void fetch_next(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first, Py_ssize_t column,
                     Py_ssize_t first_column, Py_ssize_t last_column) noexcept nogil:
    """Let g fetch what follows: of a packed b or of columns the next range of the panel, or of the next panel; of rows
    its share of those that the panels in work together take next."""
    cdef Py_ssize_t panels = (last_column - first_column + MP_PANEL - 1) // MP_PANEL, rows, begin
    cdef Py_ssize_t panel = (column - first_column) // MP_PANEL, width
    first += g.k
    if first >= p.k:
        first, column, first_column, last_column = 0, last_column, last_column, 2 * last_column - first_column
    g.fetch = NULL
    if column >= p.n:
        return
    rows = min(p.k - first, p.step)
    width = min(last_column, p.n) - first_column
    if p.packed:
        width = min(p.n - column, <Py_ssize_t>MP_PANEL)
        g.fetch = packed_range(p, at, first, column, width)
        g.fetch_rows, g.fetch_width = 1, mp_column_bytes(p.b_format, rows) * width
        g.fetch_step = g.fetch_width
    elif p.turned or p.b_cs != mp_element_bytes[p.b_format]:
        g.fetch = at.b + first * p.b_rs + column * p.b_cs
        g.fetch_rows, g.fetch_width, g.fetch_step = min(p.n - column, <Py_ssize_t>MP_PANEL), rows * p.b_rs, p.b_cs
    else:
        begin = panel * rows // panels
        g.fetch_rows = (panel + 1) * rows // panels - begin
        if g.fetch_rows > 0:
            g.fetch = at.b + (first + begin) * p.b_rs + first_column * p.b_cs
            g.fetch_width, g.fetch_step = width * p.b_cs, p.b_rs


cdef void run_in_place(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first_column,
                       Py_ssize_t last_column, char *work) noexcept nogil:
    """Columns in work together, all of k: a few rows of b after the other, so that memory is read in order.

    The kernel reads whole vectors and groups. Where these go beyond the last column, they read the row after it; the
    last rows, which have none, are read from a copy.
    """
    cdef Py_ssize_t first = 0, length, column, row, width = last_column - first_column
    cdef Py_ssize_t size = mp_element_bytes[p.b_format]
    cdef Py_ssize_t row_bytes = round_up(width, MP_LANES) * size
    cdef char *copy = work + p.acc_bytes + p.chain_bytes
    cdef const char *b = at.b + first_column * size
    g.ld_acc, g.step = round_up(width, MP_LANES), mp_group[p.b_format] * p.b_rs
    g.b_zero = 128  # integers of b are read as b ^ 0x80
    if g.m > MP_ROWS:  # several tiles: they read the same columns again
        width = MP_PANEL
    while True:
        length = advance(p, g, at.a, first)
        if first == p.k - p.tail:
            memset(copy, 0, mp_group[p.b_format] * row_bytes)
            for row in range(p.tail):
                memcpy(copy + row * row_bytes, b + (first + row) * p.b_rs, (last_column - first_column) * size)
            b, g.step = copy - first * p.b_rs, mp_group[p.b_format] * row_bytes
        column = first_column
        while column < last_column:
            g.n = min(width, last_column - column)
            g.chain = work + (p.acc_bytes if p.chain_bytes else 0) + (column - first_column) * 4
            g.acc = work + (column - first_column) * 4 if p.acc_bytes else g.chain
            g.b = b + first * p.b_rs + (column - first_column) * size
            g.out = at.out + column * p.out_size
            g.residual = at.residual + column * p.residual_size if at.residual != NULL else NULL
            g.bias = p.bias + column if p.bias != NULL else NULL
            if g.m > MP_ROWS:
                fetch_next(p, g, at, first, column, first_column, last_column)
            p.kernels.products[p.arithmetic].in_place[p.b_format](g)
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
                g.b = packed_range(p, at, first, column, g.n)
            elif p.turned:
                g.b, g.step, g.b_zero = at.b + column * p.b_cs, p.b_cs, 128
                fetch_next(p, g, at, first, column, first_column, last_column)
                p.kernels.products[p.arithmetic].columns[p.b_format](g)
                continue
            else:
                g.b = made
                p.kernels.packing.pack[p.b_format](length, g.n, at.b + first * p.b_rs + column * p.b_cs, p.b_rs,
                                                   p.b_cs, made)
                if p.sums_bytes:
                    g.col_sum = own_sums + tile * MP_PANEL
                    p.kernels.products[<int>MP_QUADS].column_sums(length, g.n, made, own_sums + tile * MP_PANEL)
            if p.fetched:
                fetch_next(p, g, at, first, column, first_column, last_column)
            if p.decoded:
                p.kernels.products[p.arithmetic].decode[p.b_format](length, g.n, g.b, decoded)
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
            g.step = mp_group_bytes[fmt] * g.n
            if p.tiled:
                p.kernels.tiles.gemm[p.arithmetic](g)
            else:
                p.kernels.products[p.arithmetic].gemm[fmt](g)
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
        p.kernels.products[<int>MP_QUADS].row_sums(g.m, p.k, at.a, g.lda, g.a_flip, row_sums)
        for i in range(g.m):
            row_sums[i] -= <int32_t>p.k * (
                <int32_t>(g.a_flip & 255) + (g.row_zero[i * g.row_step] if g.row_zero != NULL else 0))
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
    cdef Py_ssize_t width
    at.a, at.b, at.sums, at.residual, at.out = p.a, p.b, p.sums, p.residual, p.out
    p.step = max(p.k, 1)
    p.common.m, p.common.row_scale, p.common.row_zero = p.m, p.row_scale, p.row_zero
    p.common.lda = p.a_rs // A_SIZE[p.arithmetic]
    if p.decoded:
        width = min(p.n, <Py_ssize_t>MP_PANEL)
        p.decoded_bytes = round_up(mp_column_bytes(NATIVE[p.arithmetic], p.k) * width + MP_SLACK, 64)
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
    cdef Py_ssize_t axis, tasks
    cdef int threads
    if matrices == 0 or p.m == 0 or p.n == 0:
        return 0
    if p.k > MOST:
        raise MemoryError(f"no memory for the scratch of a matrix product with k = {p.k}")
    if (p.n == 1 and p.m > 1 and not p.packed and p.out_rs == p.out_size and p.bias == NULL and p.residual == NULL
            and p.row_scale == NULL and p.row_zero == NULL
            and (max(p.a_format, p.b_format) < MP_FLOATS or p.a_format == p.b_format)):
        # One column: the row that is its transpose. Products commute, and the order along k stays.
        p.m, p.n = 1, p.m
        p.a, p.b = p.b, p.a
        p.a_rs, p.a_cs, p.b_rs, p.b_cs = p.b_cs, p.b_rs, p.a_cs, p.a_rs
        p.a_format, p.b_format = p.b_format, p.a_format
        p.a_size = mp_element_bytes[p.a_format]
        for axis in range(p.batch_axes):
            p.batch[axis].a, p.batch[axis].b = p.batch[axis].b, p.batch[axis].a
    p.kernels = kernels()
    p.arithmetic = MP_QUADS if p.quantized_here else arithmetic_of(p.a_format, p.b_format)
    if p.arithmetic == MP_QUADS:
        p.common.a_flip = 0 if p.a_format == A_U8 else 0x80808080u
        p.tiled = (p.kernels.tiles.gemm[<int>MP_QUADS] != NULL and p.k >= TILED_K
                   and p.m >= (TILED_ROWS if p.packed else TILED_MADE_ROWS))
        p.common.a_zero = 0 if p.a_format == A_U8 or p.tiled else 128
        p.sums_wanted = p.common.a_zero != 0 or p.row_zero != NULL
    elif p.group_scale == NULL:  # whatever the shape: their order is another
        p.tiled = p.kernels.own_order and p.kernels.tiles.gemm[p.arithmetic] != NULL
    p.common.block = p.group if p.group_scale != NULL else ANY if p.tiled else BLOCK[p.arithmetic]
    p.a_direct = ((p.a_cs == p.a_size or p.k <= 1) and p.a_rs % p.a_size == 0
                  and (p.a_format == NATIVE[p.arithmetic] or p.arithmetic == MP_QUADS) and not p.quantized_here)
    if not p.sums_wanted:
        p.sums = NULL
    p.common.ldo = p.out_rs // p.out_size
    p.decoded = (p.kernels.products[p.arithmetic].decode[p.b_format] != NULL
                 and (p.tiled or p.m > p.kernels.products[p.arithmetic].few_rows[p.b_format]))
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
