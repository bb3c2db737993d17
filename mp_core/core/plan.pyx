"""The plan of a product: the way in which kernels read B, tasks for the threads, ranges of K for the caches.

`make_plan` is a pure function: it reads a Problem (shape, layouts, formats, kernels, caches, threads) and no data, and
fills a Plan. run.pyx executes it. Constants found by measurement are in tuning.h; those that are a share of a cache
are here. Every element of a product is computed by the same operations in the same order, whatever the plan: the
length of a K block depends on the types only.

    for each task                        MC rows of A by some panels of B          (a thread takes one at a time)
        for each NC columns of the task
            for each KC elements of K
                for each panel of the NC columns                                   (64 columns)
                    one call of the kernel: MC rows x KC x 64 columns
"""

from mp_core.core.header cimport (
    MP_BF16, MP_BLOCK_PAIRS, MP_BLOCK_WIDE, MP_F32, MP_FLOATS, MP_I8, MP_LANES, MP_PAIRS, MP_PANEL, MP_QUADS,
    MP_ROWS, MP_SLACK, MP_WIDE, mp_column_bytes, mp_group, mp_group_bytes, mp_tuning, mp_tunings,
)

from mp_core.core.cpu import CPU_FAMILIES, cache_bytes, cpu_family

cdef enum:
    PAGE = 4096         # bytes: what lies between mapped bytes closer together is mapped
    AMX_ROWS = 32       # rows of A that the AMX tiles of one register block hold
    AMX_K = 64          # integers along K that fill an AMX tile: less of K is multiplied by vectors

cdef Py_ssize_t ALL = <Py_ssize_t>1 << 40  # the K block of integers, whose sums have no order: all of K

# By arithmetic: the format that it multiplies, the length of its K blocks.
cdef int *NATIVE = [MP_F32, MP_BF16, MP_I8]
cdef Py_ssize_t *BLOCK = [MP_BLOCK_WIDE, MP_BLOCK_PAIRS, ALL]


# ---- the machine

cdef Py_ssize_t power_of_two(Py_ssize_t n) noexcept nogil:
    """The largest power of two that is at most n: ranges of K that are shares of a cache then divide K blocks."""
    cdef Py_ssize_t power = 1
    while 2 * power <= n:
        power *= 2
    return power


cdef Machine machine_of(family, caches) except *:
    """A machine of a family of CPUs, a key of CPU_FAMILIES, whose first two cache levels have so many bytes."""
    cdef Machine machine
    machine.tuning = &mp_tunings[<int>CPU_FAMILIES[family]]
    machine.l1d, machine.l2 = power_of_two(caches[0]), power_of_two(caches[1])
    return machine


cdef Machine HERE = machine_of(cpu_family(), cache_bytes())


cdef const Machine *this_machine() noexcept nogil:
    return &HERE


# ---- the plan

cdef int arithmetic_of(int a_format, int b_format) noexcept nogil:
    """Integers multiply as integers, what bfloat16 holds exactly in pairs of bfloat16, the rest in float32."""
    if a_format >= MP_FLOATS:
        return MP_QUADS
    if a_format >= MP_BF16 and b_format >= MP_BF16:
        return MP_PAIRS
    return MP_WIDE


cdef inline Py_ssize_t panel_bytes(const Problem *q, int fmt, Py_ssize_t k) noexcept nogil:
    """A panel's range of K in scratch, and what a kernel may read or write behind it."""
    return round_up(mp_column_bytes(fmt, k) * min(q.n, <Py_ssize_t>MP_PANEL) + MP_SLACK, 64)


cdef void make_plan(const Problem *q, Plan *p) noexcept nogil:
    """Fill a Plan that is all zeros."""
    choose_kernel(q, p)
    if p.small:
        p.mc, p.kc, p.nc_panels = q.m, max(q.k, 1), 1
        p.row_tasks, p.panel_tasks, p.task_panels = 1, 1, (q.n + MP_PANEL - 1) // MP_PANEL
        p.scratch.a_copy = 0 if p.direct else round_up(q.m * q.k * a_bytes(p.arithmetic), 64)
        p.scratch.decoded = panel_bytes(q, p.format, p.kc) if p.decoded else 0
        p.scratch.total = p.scratch.a_copy + p.scratch.decoded
        return
    cut(q, p)
    choose_way(q, p)
    choose_prefetching(q, p)
    choose_ranges(q, p)
    size_scratch(q, p)


cdef bint as_packed(const Problem *q, const Plan *p) noexcept nogil:
    """Whether the panels of a PackedMatrix are multiplied as they are, without being decoded."""
    return q.packed and not p.decoded


cdef inline double multiplications(const Problem *q) noexcept nogil:
    return <double>q.matrices * q.m * q.n * max(q.k, <Py_ssize_t>1)


cdef void choose_kernel(const Problem *q, Plan *p) noexcept nogil:
    """Choose the arithmetic, the format of the panels that are multiplied, AMX tiles or vectors, and the small plan."""
    cdef const mp_tuning *t = q.machine.tuning
    p.arithmetic = MP_QUADS if q.quantized_here else arithmetic_of(q.a.format, q.b.format)
    if p.arithmetic == MP_QUADS:
        p.amx = (q.kernels.tiles.gemm[<int>MP_QUADS] != NULL and q.k >= AMX_K
                 and q.m >= (t.amx.packed_m if q.packed else t.amx.made_m))
        p.sums_wanted = (q.a.format != A_U8 and not p.amx) or q.row_zero
    elif q.group == 0:  # AMX tiles add floats in another order, so the shape may not decide
        p.amx = q.kernels.own_order and q.kernels.tiles.gemm[p.arithmetic] != NULL
    p.k_block = q.group if q.group else ALL if p.amx else BLOCK[p.arithmetic]
    p.decoded = (q.kernels.products[p.arithmetic].decode[q.b.format] != NULL
                 and (p.amx or q.m > q.kernels.products[p.arithmetic].few_rows[q.b.format]))
    p.format = NATIVE[p.arithmetic] if p.decoded else q.b.format
    p.direct = ((q.a.cs == q.a.size or q.k <= 1) and q.a.rs % q.a.size == 0 and not q.quantized_here
                and (q.a.format == NATIVE[p.arithmetic] or p.arithmetic == MP_QUADS))
    p.small = (multiplications(q) < t.thread_work and q.matrices == 1 and q.packed and not q.group and not q.zero_point
               and (p.direct or (q.a.cs == q.a.size and not q.quantized_here)))


cdef Py_ssize_t largest_mc(const Problem *q, const Plan *p) noexcept nogil:
    """MC where the threads want no less: what the caches and the scratch allow."""
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t mc = t.packed_mc if as_packed(q, p) else t.made_mc
    if not as_packed(q, p) and p.arithmetic == MP_QUADS and q.k * MP_PANEL <= q.machine.l2 // 4:
        mc *= 2  # all of K is one range: no accumulators take their share of L2
    if not p.direct:
        mc = min(mc, max(t.copy_bytes // max(q.k * a_bytes(p.arithmetic), 1) // MP_ROWS * MP_ROWS,
                         <Py_ssize_t>MP_ROWS))
    return mc


cdef void cut(const Problem *q, Plan *p) noexcept nogil:
    """Cut the product into tasks: each is MC rows of A by `task_panels` panels of B, of one matrix.

        tasks = matrices * row_tasks * panel_tasks
        row_tasks = ceil(M / MC), panel_tasks = ceil(panels / task_panels), panels = ceil(N / 64)

    One thread: the fewest tasks, that is row_tasks = ceil(M / largest_mc) of equal MC, each with all panels.

    T threads: at least `wanted` tasks, because the end of a product waits for the thread that got the last one.
        wanted = T * clamp(matrices M N K / thread_work, least_tasks, most_tasks)
    But wanted = T where more tasks mean more work for memory: where a task copies its rows of A, once for each of its
    shares of N, and where row-major B is read in place, whose rows are read best at full length.
    N is cut first, for a task that has all rows reads its part of B once:
        task_panels = panels * (matrices row_tasks) / wanted, rounded down, at least 1
    M is cut too, down to 2 MR rows, where N alone gives no thread enough.
    If rows of A are quantized on the way, only M is cut, so that no row is quantized twice.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t panels = (q.n + MP_PANEL - 1) // MP_PANEL, mc = largest_mc(q, p), wanted, rows
    cdef Py_ssize_t row_tasks = (q.m + mc - 1) // mc
    p.task_panels = panels
    if q.threads > 1 and q.quantized_here and q.m >= q.threads * MP_ROWS:
        row_tasks = round_up(row_tasks, q.threads)
    elif q.threads > 1:
        wanted = q.threads * <Py_ssize_t>max(<double>t.least_tasks,
                                             min(<double>t.most_tasks, multiplications(q) / t.thread_work))
        if not q.packed and q.b.cs == q.b.size and q.m <= t.in_place_mc[p.arithmetic]:
            wanted = q.threads
        if not p.direct:
            wanted = q.threads
            row_tasks = round_up(row_tasks, q.threads) if row_tasks > 1 else 1
        if q.matrices * panels < q.threads or (as_packed(q, p) and q.matrices * row_tasks * panels < wanted):
            row_tasks = max(row_tasks, min((q.m + 2 * MP_ROWS - 1) // (2 * MP_ROWS), q.threads))
        p.task_panels = max(1, panels * min(q.matrices * row_tasks, wanted) // wanted)
    rows = (q.m + row_tasks - 1) // row_tasks
    p.mc = min(round_up(rows, AMX_ROWS if p.amx and rows > 2 * AMX_ROWS else MP_ROWS), q.m)
    p.row_tasks = (q.m + p.mc - 1) // p.mc
    p.panel_tasks = (panels + p.task_panels - 1) // p.task_panels


cdef bint fits_in_place(const Problem *q, const Plan *p) noexcept nogil:
    """Whether row-major B is multiplied where it lies: beside so few rows of A that packing it costs more.

    The kernel reads whole vectors, up to 63 bytes beyond a row of B: these must be in the next row, or in a gap
    before it that is less than a page.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef bint near = p.arithmetic == MP_WIDE and q.n % MP_LANES == 0 and q.k * q.b.rs <= q.machine.l2 // 4
    return (q.b.cs == q.b.size and q.n >= MP_LANES and q.b.rs >= q.n * q.b.size
            and (q.n % MP_LANES == 0 or q.b.rs - q.n * q.b.size < PAGE)
            and p.mc <= (t.in_place_l2_mc if near else t.in_place_mc[p.arithmetic])
            and q.kernels.products[p.arithmetic].in_place[q.b.format] != NULL)


cdef bint fits_transposed(const Problem *q, const Plan *p) noexcept nogil:
    """Whether transposed B is multiplied where it lies, its columns transposed in registers a few at a time."""
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t most = t.transposed_mc[p.arithmetic]
    if p.arithmetic == MP_QUADS and q.k < t.transposed_quads_k:
        most = MP_ROWS
    return q.b.rs == q.b.size and p.mc <= most and q.kernels.products[p.arithmetic].transposed[q.b.format] != NULL


cdef void choose_way(const Problem *q, Plan *p) noexcept nogil:
    """Choose what the kernel reads of B. Zero points of rows of A, AMX tiles and uint8 need packed panels."""
    if q.packed or p.amx or q.k == 0 or q.row_zero or (p.arithmetic == MP_QUADS and q.a.format != MP_I8):
        return
    if fits_in_place(q, p):
        p.way = IN_PLACE
        if q.n % MP_LANES or q.k % mp_group[q.b.format]:
            p.tail = (q.k - 1) % mp_group[q.b.format] + 1
    elif fits_transposed(q, p):
        p.way = TRANSPOSED


cdef void choose_prefetching(const Problem *q, Plan *p) noexcept nogil:
    """Choose whether B is taken to come from memory, and who prefetches it.

    B comes from memory if it is larger than L2 / 2: it is then one of many layers, or does not have L2 to itself.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t column_bytes = mp_column_bytes(q.b.format, q.k) if q.packed else q.k * q.b.size
    cdef bint plain = q.b.format == NATIVE[p.arithmetic]
    p.from_memory = q.n * column_bytes > q.machine.l2 // 2
    if not q.packed and q.b.cs == q.b.size:
        p.prefetch_next = True
    elif p.amx and as_packed(q, p):
        # Few rows are multiplied in little more time than B takes to come: it is prefetched just before its use.
        p.prefetch_within = p.from_memory and p.mc <= 2 * t.small_mc
        p.prefetch_next = p.from_memory and not p.prefetch_within
    elif p.mc > t.small_mc:
        p.prefetch_next = q.packed or q.b.rs == q.b.size
    elif q.packed and p.from_memory:
        p.prefetch_next = p.mc >= (t.prefetch_mc if plain else t.prefetch_decoded_mc)
        # Beside one row, a panel that is multiplied as it is comes by the hardware prefetcher.
        p.prefetch_within = as_packed(q, p) and not p.prefetch_next and (p.mc > 1 or not plain)


cdef void interleave_panels(const Problem *q, Plan *p) noexcept nogil:
    """KC and NC of row-major B beside few rows of A: short ranges of K over many panels, to read rows of B at length.

    The accumulators of the NC columns, and the partial sums where K has several K blocks, take at most L2 / 4.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef bint many = p.mc > MP_ROWS
    p.nc_panels = max(1, q.machine.l2 // 4 // (p.mc * MP_PANEL * 4 * (2 if q.k > p.k_block else 1)))
    if many and p.from_memory:
        p.nc_panels = min(p.nc_panels, max(1, t.memory_row_bytes // (MP_PANEL * q.b.size)))
    if p.way != IN_PLACE or p.mc == 1:
        p.kc = t.packing_memory_k if many and p.from_memory and not p.amx else t.packing_k
    elif many:
        p.kc = t.in_place_again_k
    else:
        p.kc = t.in_place_memory_k if p.from_memory and p.arithmetic != MP_QUADS else t.in_place_k


cdef Py_ssize_t range_bytes(const Problem *q, const Plan *p) noexcept nogil:
    """Bytes of a panel's range of K: of L2 beside many rows of A, which read it again and again, else of L1."""
    if p.mc > q.machine.tuning.small_mc or (as_packed(q, p) and not p.prefetch_next):
        return q.machine.tuning.amx.range_bytes if p.amx else q.machine.l2 // 4
    return q.machine.l1d // 2 if q.packed and p.prefetch_next else q.machine.l1d  # the next range is beside it


cdef void choose_ranges(const Problem *q, Plan *p) noexcept nogil:
    """Choose KC and NC. KC is whole K blocks, or divides one; what precedes the tail of B is no whole K blocks."""
    cdef Py_ssize_t block = p.k_block
    p.nc_panels = 1
    if p.way == TRANSPOSED or (p.mc <= (q.machine.tuning.small_mc if p.amx else MP_ROWS)
                               and (as_packed(q, p) or (p.way == IN_PLACE and q.n <= MP_PANEL))):
        p.kc = block if p.tail else q.k  # B is read once: nothing of it must stay in a cache
    elif (p.mc <= q.machine.tuning.small_mc and not q.packed and p.prefetch_next
          and (p.way == IN_PLACE or q.n > MP_PANEL)):
        interleave_panels(q, p)
    else:
        p.kc = range_bytes(q, p) // (MP_PANEL * mp_group_bytes[p.format]) * mp_group[p.format]
    if p.kc >= q.k:
        p.kc = max(q.k, 1)
    elif p.kc >= block:
        p.kc = p.kc // block * block
    elif block != ALL and block % p.kc:
        p.kc = block
    p.nc_panels = min(p.nc_panels, p.task_panels)


cdef void size_scratch(const Problem *q, Plan *p) noexcept nogil:
    """What a task needs, part by part."""
    cdef Scratch *s = &p.scratch
    cdef Py_ssize_t block = p.k_block
    cdef Py_ssize_t sums = p.mc * MP_PANEL * 4 * p.nc_panels
    s.row_scales = round_up(p.mc * 4, 64) if q.own_scales else 0
    s.a_copy = 0 if p.direct else round_up(p.mc * q.k * a_bytes(p.arithmetic), 64)
    if q.quantized_here and q.a.format != MP_F32:
        s.a_gathered = p.mc * q.k * 4
    elif q.a.cs != q.a.size and not p.direct:
        s.a_gathered = round_up(p.mc * q.k * q.a.size, 64)
    if q.zero_point or (p.arithmetic == MP_QUADS and p.way != PANELS):
        s.row_sums = round_up(p.mc * 4, 64)
    s.partial_sums = sums if (q.k > p.kc and p.kc % block) or p.tail else 0
    s.accumulators = sums if (q.k > p.kc and q.k > block) or (p.way == IN_PLACE and s.partial_sums == 0) else 0
    if p.tail:
        s.made = mp_group[q.b.format] * p.nc_panels * MP_PANEL * q.b.size
    elif p.way == PANELS and not q.packed:
        s.made = panel_bytes(q, q.b.format, p.kc)
    s.decoded = panel_bytes(q, p.format, p.kc) if p.decoded else 0
    s.column_sums = MP_PANEL * 4 * p.nc_panels if p.sums_wanted and not q.packed and p.way != TRANSPOSED else 0
    s.group_scales = (q.k + block - 1) // block * MP_PANEL * 4 if q.group else 0
    s.total = (s.row_scales + s.a_copy + s.a_gathered + s.row_sums + s.accumulators + s.partial_sums + s.made
               + s.decoded + s.column_sums + s.group_scales)
