"""The plan of a product: which way B takes to the micro-kernel, tasks for the q.threads, ranges of K for the caches.

Every element of a product is computed by the same operations in the same order, whatever the plan: the length of a
K block depends on the types only.
"""

from mp_core.core.header cimport (
    MP_BF16, MP_BLOCK_PAIRS, MP_BLOCK_WIDE, MP_F16, MP_F32, MP_FLOATS, MP_I8, MP_LANES, MP_PAIRS, MP_PANEL, MP_QUADS,
    MP_ROWS, MP_SLACK, MP_TRANSPOSED_ROWS, MP_WIDE, mp_column_bytes, mp_element_bytes, mp_group, mp_group_bytes,
)

cdef enum:
    PACKED_ROWS = 192       # rows of a that pass a packed panel before the next one: it stays in the second-level cache
    SCRATCH_ROWS = 1032     # rows per panel that is made on the fly: making it costs about 1/100 of its product
    FEW = 48                # rows for which it is made in small pieces instead, which stay in the first-level cache
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

# By arithmetic: the format that it multiplies, the length of its K blocks.
cdef int *NATIVE = [MP_F32, MP_BF16, MP_I8]
cdef Py_ssize_t *BLOCK = [MP_BLOCK_WIDE, MP_BLOCK_PAIRS, ANY]

# By arithmetic: rows up to which rows of b are read in place: how little work it is to read them again for each tile.
cdef Py_ssize_t *IN_PLACE_MOST = [24, 3 * MP_ROWS, MP_ROWS]
# ... up to which contiguous columns of it are turned: how little work it is beside their transposition; short ones of
# integers only up to a tile, since their sums end in 16 lanes.
cdef Py_ssize_t *TRANSPOSED_MOST = [MP_TRANSPOSED_ROWS, MP_TRANSPOSED_ROWS, 2 * MP_ROWS]

# Multiplications from which a second thread pays: about 20 microseconds on one.
cdef double WORTHWHILE = 1 << 20


cdef int arithmetic_of(int a_format, int b_format) noexcept nogil:
    """Integers multiply as integers, what bfloat16 holds exactly in pairs of bfloat16, the rest in float32."""
    if a_format >= MP_FLOATS:
        return MP_QUADS
    if a_format >= MP_BF16 and b_format >= MP_BF16:
        return MP_PAIRS
    return MP_WIDE


cdef void choose_kernel(const Problem *q, Plan *p) noexcept nogil:
    """Choose the arithmetic, the format of the panels that are multiplied, and whether AMX tiles multiply them."""
    p.arithmetic = MP_QUADS if q.quantized_here else arithmetic_of(q.a.format, q.b.format)
    if p.arithmetic == MP_QUADS:
        p.amx = (q.kernels.tiles.gemm[<int>MP_QUADS] != NULL and q.k >= TILED_K
                    and q.m >= (TILED_ROWS if q.packed else TILED_MADE_ROWS))
        p.sums_wanted = (q.a.format != A_U8 and not p.amx) or q.row_zero
    elif q.group == 0:  # whatever the shape: their order is another
        p.amx = q.kernels.own_order and q.kernels.tiles.gemm[p.arithmetic] != NULL
    p.k_block = q.group if q.group else ANY if p.amx else BLOCK[p.arithmetic]
    p.decoded = (q.kernels.products[p.arithmetic].decode[q.b.format] != NULL
                    and (p.amx or q.m > q.kernels.products[p.arithmetic].few_rows[q.b.format]))
    p.format = NATIVE[p.arithmetic] if p.decoded else q.b.format
    p.direct = ((q.a.cs == q.a.size or q.k <= 1) and q.a.rs % q.a.size == 0 and not q.quantized_here
                  and (q.a.format == NATIVE[p.arithmetic] or p.arithmetic == MP_QUADS))


cdef bint as_packed(const Problem *q, const Plan *p) noexcept nogil:
    """Whether the kernels multiply panels as they were packed; else they are made, or b is read as it lies."""
    return q.packed and not p.decoded


cdef void cut(const Problem *q, Plan *p) noexcept nogil:
    """Choose the tasks, chunks of rows by chunks of panels: enough for the threads, as few as the caches allow."""
    cdef Py_ssize_t panels = (q.n + MP_PANEL - 1) // MP_PANEL, wanted, chunks, rows
    p.mc = PACKED_ROWS if as_packed(q, p) else SCRATCH_ROWS
    if not as_packed(q, p) and p.arithmetic == MP_QUADS and q.k <= PANEL_BYTES // MP_PANEL:
        # One range of K: no accumulators.
        p.mc *= 2
    if not p.direct:
        rows = COPY_BYTES // max(q.k * a_bytes(p.arithmetic), 1) // MP_ROWS * MP_ROWS
        p.mc = min(p.mc, max(rows, <Py_ssize_t>MP_ROWS))
    chunks = (q.m + p.mc - 1) // p.mc
    p.task_panels = panels
    if q.threads > 1 and q.quantized_here and q.m >= q.threads * MP_ROWS:  # no row is to be quantized twice
        chunks = round_up(chunks, q.threads)
    elif q.threads > 1:
        # Equal tasks, some for each thread; more if they are long. The last one is what a thread waits for.
        # But each copies its rows of a if they are not read in place, and memory is read well in whole rows of b.
        wanted = q.threads * <Py_ssize_t>max(2., min(16., <double>q.matrices * q.m * q.n * q.k / WORTHWHILE))
        if not q.packed and q.b.cs == mp_element_bytes[q.b.format] and q.m <= IN_PLACE_MOST[p.arithmetic]:
            wanted = q.threads
        if not p.direct:
            wanted = q.threads
            chunks = round_up(chunks, q.threads) if chunks > 1 else 1
        if q.matrices * panels < q.threads or (as_packed(q, p) and q.matrices * chunks * panels < wanted):
            chunks = max(chunks, min((q.m + 2 * MP_ROWS - 1) // (2 * MP_ROWS), q.threads))  # the rows must give them
        p.task_panels = max(1, panels * min(q.matrices * chunks, wanted) // wanted)
    rows = (q.m + chunks - 1) // chunks
    p.mc = min(round_up(rows, TILE_ROWS if p.amx and rows > 2 * TILE_ROWS else MP_ROWS), q.m)
    p.row_tasks = (q.m + p.mc - 1) // p.mc
    p.panel_tasks = (panels + p.task_panels - 1) // p.task_panels


cdef void choose_way(const Problem *q, Plan *p) noexcept nogil:
    """Whether b is read as it lies: by rows, or by columns of few rows of a."""
    cdef Py_ssize_t size = mp_element_bytes[q.b.format]
    cdef bint plain
    cdef bint lies = (not q.packed and not p.amx and q.k > 0 and not q.row_zero
                      and (p.arithmetic != MP_QUADS or q.a.format == MP_I8))
    cdef bint near = p.arithmetic == MP_WIDE and q.n % MP_LANES == 0 and q.k * q.b.rs <= NEAR_BYTES
    # Whole vectors reach up to 63 bytes beyond a row: into the next one, or a gap before it that is less than a page.
    if (lies and q.b.cs == size and q.n >= MP_LANES and q.b.rs >= q.n * size
            and (q.n % MP_LANES == 0 or q.b.rs - q.n * size < PAGE)
            and p.mc <= (NEAR_ROWS if near else IN_PLACE_MOST[p.arithmetic])
            and q.kernels.products[p.arithmetic].in_place[q.b.format] != NULL):
        p.way = IN_PLACE
        if q.n % MP_LANES or q.k % mp_group[q.b.format]:
            p.tail = (q.k - 1) % mp_group[q.b.format] + 1
    elif (lies and q.b.rs == size
            and p.mc <= (TRANSPOSED_MOST[p.arithmetic] if p.arithmetic != MP_QUADS or q.k >= 512
                              else MP_ROWS)
            and q.kernels.products[p.arithmetic].transposed[q.b.format] != NULL):
        p.way = TRANSPOSED
    p.from_memory = (q.n * (mp_column_bytes(q.b.format, q.k) if q.packed else q.k * size)
                    > (TILED_CACHED_BYTES if p.amx else CACHED_BYTES))
    if not q.packed and q.b.cs == size:
        p.prefetch_next = True
    elif p.amx and as_packed(q, p):
        # What is multiplied in little more time than it takes to come is fetched just before, else a panel earlier.
        p.prefetch_within = p.from_memory and p.mc <= 2 * FEW
        p.prefetch_next = p.from_memory and not p.prefetch_within
    elif p.mc > FEW:  # float16 loses 2 % by it, the others gain up to 6 (one Zen 5 core)
        p.prefetch_next = (q.packed or q.b.rs == size) and q.b.format != MP_F16
    elif q.packed and p.from_memory:
        plain = q.b.format == NATIVE[p.arithmetic]
        p.prefetch_next = p.mc >= (FETCHING if plain else FETCHING_DECODED)
        # One row and a panel that is multiplied as it is: the processor keeps up with memory by itself.
        p.prefetch_within = as_packed(q, p) and not p.prefetch_next and (p.mc > 1 or not plain)


cdef void choose_step(const Problem *q, Plan *p) noexcept nogil:
    """The range of k at a time, for the caches, and how many panels are in work together."""
    cdef Py_ssize_t rows = p.mc, block = p.k_block
    cdef Py_ssize_t panel_bytes
    cdef bint one_panel = q.n <= MP_PANEL
    p.nc_panels = 1
    if p.way == TRANSPOSED or (rows <= (FEW if p.amx else MP_ROWS)
                               and (as_packed(q, p) or (p.way == IN_PLACE and one_panel))):
        p.kc = block if p.tail else q.k  # what precedes the tail is no range of whole blocks
    elif rows <= FEW and not q.packed and p.prefetch_next and (p.way == IN_PLACE or not one_panel):
        p.nc_panels = max(1, ACC_BYTES // (rows * MP_PANEL * 4 * (2 if q.k > block else 1)))
        if rows > MP_ROWS and p.from_memory:
            p.nc_panels = min(p.nc_panels, max(1, FAR_BYTES // (MP_PANEL * mp_element_bytes[q.b.format])))
        if p.way != IN_PLACE or rows == 1:
            p.kc = FAR_ROWS if rows > MP_ROWS and p.from_memory and not p.amx else PIECE_ROWS
        elif rows > MP_ROWS:
            p.kc = 2 * IN_PLACE_ROWS
        else:
            p.kc = IN_PLACE_ROWS // 2 if p.from_memory and p.arithmetic != MP_QUADS else IN_PLACE_ROWS
    else:
        if rows > FEW or (as_packed(q, p) and not p.prefetch_next):
            panel_bytes = TILED_BYTES if p.amx else PANEL_BYTES
        else:
            panel_bytes = FETCHED_BYTES if q.packed and p.prefetch_next else PIECE_BYTES
        p.kc = panel_bytes // (MP_PANEL * mp_group_bytes[p.format]) * mp_group[p.format]
    if p.kc >= q.k:
        p.kc = max(q.k, 1)
    elif p.kc >= block:
        p.kc = p.kc // block * block
    elif block != ANY and block % p.kc:
        p.kc = block
    p.nc_panels = min(p.nc_panels, p.task_panels)


cdef void size_scratch(const Problem *q, Plan *p) noexcept nogil:
    """What a task of the schedule needs, part by part."""
    cdef Py_ssize_t rows = p.mc, block = p.k_block, width = min(q.n, <Py_ssize_t>MP_PANEL)
    cdef Py_ssize_t tiles = rows * MP_PANEL * 4 * p.nc_panels
    p.scratch.a_copy = 0 if p.direct else round_up(rows * q.k * a_bytes(p.arithmetic), 64)
    p.scratch.a_gathered = round_up(rows * q.k * q.a.size, 64) if q.a.cs != q.a.size and not p.direct else 0
    p.scratch.partial_sums = tiles if (q.k > p.kc and p.kc % block) or p.tail else 0
    p.scratch.accumulators = tiles if (
        (q.k > p.kc and q.k > block) or (p.way == IN_PLACE and p.scratch.partial_sums == 0)) else 0
    if p.tail:
        p.scratch.made = mp_group[q.b.format] * p.nc_panels * MP_PANEL * mp_element_bytes[q.b.format]
    elif not (q.packed or p.way == TRANSPOSED or p.way == IN_PLACE):
        p.scratch.made = round_up(mp_column_bytes(q.b.format, p.kc) * width + MP_SLACK, 64)
    p.scratch.decoded = round_up(mp_column_bytes(p.format, p.kc) * width + MP_SLACK, 64) if p.decoded else 0
    p.scratch.column_sums = MP_PANEL * 4 * p.nc_panels if (
        p.sums_wanted and not q.packed and p.way != TRANSPOSED) else 0
    p.scratch.row_sums = round_up(rows * 4, 64) if (
        q.zero_point or (p.arithmetic == MP_QUADS and (p.way == TRANSPOSED or p.way == IN_PLACE))) else 0
    p.scratch.row_scales = round_up(rows * 4, 64) if q.own_scales else 0
    if q.quantized_here and q.a.format != MP_F32:
        p.scratch.a_gathered = rows * q.k * 4  # in float32
    p.scratch.group_scales = (q.k + block - 1) // block * MP_PANEL * 4 if q.group else 0
    p.scratch.total = (
        p.scratch.row_scales + p.scratch.a_copy + p.scratch.a_gathered + p.scratch.row_sums + p.scratch.accumulators
        + p.scratch.partial_sums + p.scratch.made + p.scratch.decoded + p.scratch.column_sums + p.scratch.group_scales)


cdef void choose_tasks(const Problem *q, Plan *p) noexcept nogil:
    """Tasks for the threads, ranges of K for the caches; no task shares an element with another."""
    cut(q, p)
    choose_way(q, p)
    choose_step(q, p)
    size_scratch(q, p)
