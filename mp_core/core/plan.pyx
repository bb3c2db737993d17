"""The plan of a product: the way in which kernels read B, tasks for the threads, ranges of K for the caches.

`make_plan` is a pure function: it reads a Problem (shape, layouts, formats, kernels, caches, threads) and no elements,
and fills a Plan, which run.pyx executes. Constants found by measurement are in tuning.h; shares of a cache are here.
Every element of a product is computed by the same operations in the same order, whatever the plan: the K blocks depend
only on the types, on scale groups and, for bfloat16, on whether the instruction set has an order of its own.

    for each task                        MC rows of A by some panels of B          (a thread takes one at a time)
        for each NC columns of the task
            for each KC elements of K
                for each panel of the NC columns                                   (64 columns)
                    one call of a kernel: MC rows x KC x 64 columns

In place, if MC <= MR, one call takes all NC columns instead. A transposed B has one call for each panel, over all of K.
"""

from mp_core.core.header cimport (
    MP_BF16, MP_BLOCK_PAIRS, MP_BLOCK_WIDE, MP_F32, MP_FLOATS, MP_I8, MP_LANES, MP_PAIRS, MP_PANEL, MP_QUADS,
    MP_ROWS, MP_SLACK, MP_WIDE, mp_column_bytes, mp_group, mp_group_bytes, mp_tuning, mp_tunings,
)

from mp_core.core.cpu import CPU_FAMILIES, cache_bytes, cpu_family

cdef enum:
    PAGE = 4096         # bytes: between two mapped bytes that are less than a page apart, all bytes are mapped
    AMX_ROWS = 32       # rows of A that the AMX tiles of one register block hold
    AMX_K = 64          # integers along K that fill an AMX tile; if K is less, vectors multiply them

cdef Py_ssize_t ALL = <Py_ssize_t>1 << 40  # the K block that is all of K: of integers and of AMX tiles

# By arithmetic: the format of B that it multiplies, the elements of its K blocks.
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
    """A machine of a family of CPUs, a key of CPU_FAMILIES, with caches (bytes of L1d, bytes of L2)."""
    cdef Machine machine
    machine.tuning = &mp_tunings[<int>CPU_FAMILIES[family]]
    machine.l1d, machine.l2 = power_of_two(caches[0]), power_of_two(caches[1])
    return machine


cdef Machine HERE = machine_of(cpu_family(), cache_bytes())


cdef const Machine *this_machine() noexcept nogil:
    return &HERE


# ---- the plan

cdef int arithmetic_of(int a_format, int b_format) noexcept nogil:
    """Integers beside integers: quads. Two formats that bfloat16 holds exactly: pairs. All others: wide, in float32."""
    if a_format >= MP_FLOATS:
        return MP_QUADS
    if a_format >= MP_BF16 and b_format >= MP_BF16:
        return MP_PAIRS
    return MP_WIDE


cdef inline Py_ssize_t panel_bytes(const Problem *q, int fmt, Py_ssize_t k) noexcept nogil:
    """Bytes of a panel's range of K in scratch, and of what a kernel may read or write after it."""
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
    """Whether B is a PackedMatrix whose panels kernels read as they are: not decoded into scratch."""
    return q.packed and not p.decoded


cdef inline double multiplications(const Problem *q) noexcept nogil:
    return <double>q.matrices * q.m * q.n * max(q.k, <Py_ssize_t>1)


cdef void choose_kernel(const Problem *q, Plan *p) noexcept nogil:
    """Choose the arithmetic, the format of the panels that are multiplied, AMX tiles or not, a small plan or not."""
    cdef const mp_tuning *t = q.machine.tuning
    p.arithmetic = MP_QUADS if q.quantized_here else arithmetic_of(q.a.format, q.b.format)
    if p.arithmetic == MP_QUADS:
        p.amx = (q.kernels.tiles.gemm[<int>MP_QUADS] != NULL and q.k >= AMX_K
                 and q.m >= (t.amx.packed_m if q.packed else t.amx.made_m))
        p.sums_wanted = (q.a.format != A_U8 and not p.amx) or q.row_zero
    elif q.group == 0:  # AMX tiles add floats in another order, so the shape must not decide
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
    """The largest MC that the caches and `copy_bytes` allow; `cut` takes less if the threads need more tasks."""
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t mc = t.packed_mc if as_packed(q, p) else t.made_mc
    if not as_packed(q, p) and p.arithmetic == MP_QUADS and q.k * MP_PANEL <= q.machine.l2 // 4:
        mc *= 2  # all of K is one range, so that no accumulators in scratch take a share of L2
    if not p.direct:
        mc = min(mc, max(t.copy_bytes // max(q.k * a_bytes(p.arithmetic), 1) // MP_ROWS * MP_ROWS,
                         <Py_ssize_t>MP_ROWS))
    return mc


cdef void cut(const Problem *q, Plan *p) noexcept nogil:
    """Cut the product into tasks: each is MC rows of A by `task_panels` panels of B, of one matrix.

        tasks = matrices * row_tasks * panel_tasks
        row_tasks = ceil(M / MC), panel_tasks = ceil(panels / task_panels), panels = ceil(N / 64)

    One thread: the fewest tasks, that is row_tasks = ceil(M / largest_mc) of equal MC, each with all panels.

    T threads: about `wanted` tasks. They are several for each thread, because a product ends when the thread with the
    last task does:
        wanted = T * clamp(matrices M N K / thread_work, least_tasks, most_tasks)
    But wanted = T if more tasks would move more memory: if each task copies its rows of A into scratch, so that cutting
    N copies them again, or if row-major B may be read in place, whose rows are read best at full length.
    N is cut first, since a task that has all rows of A reads its part of B once:
        task_panels = panels * (matrices row_tasks) / wanted, rounded down, at least 1
    M is cut too, into at most T parts of at least about 2 MR rows, if cutting N alone gives too few tasks.
    If rows of A are quantized during the product, and each thread gets at least MR of them, only M is cut, so that no
    row is quantized twice.
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
    """Whether row-major B is multiplied where it lies: a task has so few rows of A that packing B would cost more.

    Kernels read whole vectors, up to 63 bytes beyond the columns of B: these bytes must be of the next row, or lie in a
    gap before it that is less than a page, so that they are mapped.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef bint near = p.arithmetic == MP_WIDE and q.n % MP_LANES == 0 and q.k * q.b.rs <= q.machine.l2 // 4
    return (q.b.cs == q.b.size and q.n >= MP_LANES and q.b.rs >= q.n * q.b.size
            and (q.n % MP_LANES == 0 or q.b.rs - q.n * q.b.size < PAGE)
            and p.mc <= (t.in_place_l2_mc if near else t.in_place_mc[p.arithmetic])
            and q.kernels.products[p.arithmetic].in_place[q.b.format] != NULL)


cdef bint fits_transposed(const Problem *q, const Plan *p) noexcept nogil:
    """Whether transposed B is multiplied where it lies: in transposed pieces or, of int8, by dot products along K."""
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t most = t.transposed_mc[p.arithmetic]
    if p.arithmetic == MP_QUADS and q.k < t.transposed_quads_k:
        most = MP_ROWS
    return q.b.rs == q.b.size and p.mc <= most and q.kernels.products[p.arithmetic].transposed[q.b.format] != NULL


cdef void choose_way(const Problem *q, Plan *p) noexcept nogil:
    """Choose what kernels read of B. AMX tiles, a uint8 A, and zero points of A by row need packed panels."""
    if q.packed or p.amx or q.k == 0 or q.row_zero or (p.arithmetic == MP_QUADS and q.a.format != MP_I8):
        return
    if fits_in_place(q, p):
        p.way = IN_PLACE
        if q.n % MP_LANES or q.k % mp_group[q.b.format]:
            p.tail = (q.k - 1) % mp_group[q.b.format] + 1
    elif fits_transposed(q, p):
        p.way = TRANSPOSED


cdef void choose_prefetching(const Problem *q, Plan *p) noexcept nogil:
    """Choose whether B is taken to come from memory, and how it is prefetched.

    A B that is larger than L2 / 2 is taken to come from memory: it is probably the weights of one of many layers, or
    shares L2 with other data.
    """
    cdef const mp_tuning *t = q.machine.tuning
    cdef Py_ssize_t column_bytes = mp_column_bytes(q.b.format, q.k) if q.packed else q.k * q.b.size
    cdef bint plain = q.b.format == NATIVE[p.arithmetic]
    p.from_memory = q.n * column_bytes > q.machine.l2 // 2
    if not q.packed and q.b.cs == q.b.size:
        p.prefetch_next = True
    elif p.amx and as_packed(q, p):
        # At most 2 small_mc rows are multiplied in little more time than B takes to come from memory. So what follows
        # in the own panel is prefetched, just before its use, and not a whole range.
        p.prefetch_within = p.from_memory and p.mc <= 2 * t.small_mc
        p.prefetch_next = p.from_memory and not p.prefetch_within
    elif p.mc > t.small_mc:
        p.prefetch_next = q.packed or q.b.rs == q.b.size
    elif q.packed and p.from_memory:
        p.prefetch_next = p.mc >= (t.prefetch_mc if plain else t.prefetch_decoded_mc)
        # Beside one row, and if nothing is decoded, the hardware prefetchers keep up.
        p.prefetch_within = as_packed(q, p) and not p.prefetch_next and (p.mc > 1 or not plain)


cdef void interleave_panels(const Problem *q, Plan *p) noexcept nogil:
    """KC and NC of row-major B beside at most small_mc rows of A: a short range of K over many panels, then the next.

    So the rows of B are read in long pieces. The accumulators of the NC columns, and their partial sums if K has
    several K blocks, take at most L2 / 4.
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
    """Bytes of a panel's range of K.

    It stays in L2 if more than small_mc rows of A read it again and again, or if panels are read as they are and the
    next range is not prefetched. Else it stays in L1, beside the next range if packed panels are prefetched.
    """
    if p.mc > q.machine.tuning.small_mc or (as_packed(q, p) and not p.prefetch_next):
        return q.machine.tuning.amx.range_bytes if p.amx else q.machine.l2 // 4
    return q.machine.l1d // 2 if q.packed and p.prefetch_next else q.machine.l1d


cdef void choose_ranges(const Problem *q, Plan *p) noexcept nogil:
    """Choose KC and NC. KC is whole K blocks, or divides one, or is all of K.

    If B has a tail, the range before the tail may end within a K block. So KC is then at most one K block.
    """
    cdef Py_ssize_t block = p.k_block
    p.nc_panels = 1
    if p.way == TRANSPOSED or (p.mc <= (q.machine.tuning.small_mc if p.amx else MP_ROWS)
                               and (as_packed(q, p) or (p.way == IN_PLACE and q.n <= MP_PANEL))):
        p.kc = block if p.tail else q.k  # every range of B is read once, so that none must stay in a cache
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


include "plan_scratch.pxi"
