# Included by run.pyx: the loops of a task over columns and ranges of K, down to the calls of a kernel.

cdef Py_ssize_t advance(const Product *p, mp_gemm *g, const char *a, Py_ssize_t first) noexcept nogil:
    """Set g to the range of K that starts at `first`; return its length: KC, or what is left."""
    cdef Py_ssize_t end = p.k - p.plan.tail if first < p.k - p.plan.tail else p.k, length = min(end - first, p.plan.kc)
    g.shape.k, g.operands.a = length, a + first * a_bytes(p.plan.arithmetic)
    g.accumulators.first, g.accumulators.last = first < g.shape.k_block, first + length == p.k
    g.accumulators.resume = first % g.shape.k_block != 0
    g.accumulators.suspend = not g.accumulators.last and (first + length) % g.shape.k_block != 0
    return length


cdef const char *packed_range(const Product *p, const Place *at, Py_ssize_t first, Py_ssize_t column,
                              Py_ssize_t n) noexcept nogil:
    """Return where the range of K from `first` on begins in the packed panel of the n columns from `column` on."""
    return (at.b + column * mp_column_bytes(p.b.format, p.k)
            + first // mp_group[p.b.format] * mp_group_bytes[p.b.format] * n)


cdef void prefetch_next(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first, Py_ssize_t column,
                        Py_ssize_t first_column, Py_ssize_t last_column) noexcept nogil:
    """Let g prefetch what follows.

    If B is packed or transposed, that is the panel's next range of K, or the next panel; if it is row-major, the rows
    that the panels of the NC columns read next, of which each panel has its share.
    """
    cdef Py_ssize_t panels = (last_column - first_column + MP_PANEL - 1) // MP_PANEL, rows, begin
    cdef Py_ssize_t panel = (column - first_column) // MP_PANEL, width
    first += g.shape.k
    if first >= p.k:
        first, column, first_column, last_column = 0, last_column, last_column, 2 * last_column - first_column
    g.prefetch.next = NULL
    if column >= p.n:
        return
    rows = min(p.k - first, p.plan.kc)
    width = min(last_column, p.n) - first_column
    if p.b.packed:
        width = min(p.n - column, <Py_ssize_t>MP_PANEL)
        g.prefetch.next = packed_range(p, at, first, column, width)
        g.prefetch.rows, g.prefetch.row_bytes = 1, mp_column_bytes(p.b.format, rows) * width
        g.prefetch.row_stride = g.prefetch.row_bytes
    elif p.plan.way == TRANSPOSED or p.b.cs != mp_element_bytes[p.b.format]:
        g.prefetch.next = at.b + first * p.b.rs + column * p.b.cs
        g.prefetch.rows, g.prefetch.row_bytes = min(p.n - column, <Py_ssize_t>MP_PANEL), rows * p.b.rs
        g.prefetch.row_stride = p.b.cs
    else:
        begin = panel * rows // panels
        g.prefetch.rows = (panel + 1) * rows // panels - begin
        if g.prefetch.rows > 0:
            g.prefetch.next = at.b + (first + begin) * p.b.rs + first_column * p.b.cs
            g.prefetch.row_bytes, g.prefetch.row_stride = width * p.b.cs, p.b.rs


cdef void run_in_place(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first_column,
                       Py_ssize_t last_column, char *work) noexcept nogil:
    """Multiply NC columns of a row-major B in place: KC rows of B at a time, so that memory is read in order.

    The kernel reads whole vectors and groups, which may reach beyond the last column, into the next row. The last rows
    (`tail`) have no row after them, so they are copied into scratch first.
    """
    cdef Py_ssize_t first = 0, length, column, row, width = last_column - first_column
    cdef Py_ssize_t size = mp_element_bytes[p.b.format]
    cdef Py_ssize_t row_bytes = round_up(width, MP_LANES) * size
    cdef const Scratch *parts = &p.plan.scratch
    cdef char *copy = work + parts.accumulators + parts.partial_sums
    cdef const char *b = at.b + first_column * size
    g.accumulators.ld, g.operands.b_stride = round_up(width, MP_LANES), mp_group[p.b.format] * p.b.rs
    g.epilogue.b_zero = 128  # integers of b are read as b ^ 0x80
    if g.shape.m > MP_ROWS:  # several register blocks read the same columns: one panel of them stays in L1
        width = MP_PANEL
    while True:
        length = advance(p, g, at.a, first)
        if first == p.k - p.plan.tail:
            memset(copy, 0, mp_group[p.b.format] * row_bytes)
            for row in range(p.plan.tail):
                memcpy(copy + row * row_bytes, b + (first + row) * p.b.rs, (last_column - first_column) * size)
            b, g.operands.b_stride = copy - first * p.b.rs, mp_group[p.b.format] * row_bytes
        column = first_column
        while column < last_column:
            g.shape.n = min(width, last_column - column)
            g.accumulators.partial = (work + (parts.accumulators if parts.partial_sums else 0)
                                      + (column - first_column) * 4)
            g.accumulators.sums = work + (column - first_column) * 4 if parts.accumulators else g.accumulators.partial
            g.operands.b = b + first * p.b.rs + (column - first_column) * size
            set_columns(p, g, at, column)
            if g.shape.m > MP_ROWS:
                prefetch_next(p, g, at, first, column, first_column, last_column)
            p.kernels.products[p.plan.arithmetic].in_place[p.b.format](g)
            column += width
        first += length
        if first >= p.k:
            break


cdef void set_columns(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t column) noexcept nogil:
    """Set the epilogue to the columns from `column` on."""
    cdef mp_epilogue *e = &g.epilogue
    e.out = at.out + column * p.out.size
    e.residual = at.residual + column * p.residual.size if at.residual != NULL else NULL
    e.bias = p.bias + column if p.bias != NULL else NULL
    e.col_scale = p.b.scale + column if p.b.scale != NULL else NULL
    e.col_zero = p.b.zero_point + column if p.b.zero_point != NULL else NULL
    e.col_sum = at.sums + column if at.sums != NULL else NULL


cdef void set_panel(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first, Py_ssize_t column, char *made,
                    int32_t *own_sums) noexcept nogil:
    """Set b to the panel's range of K from `first` on: where it lies in a packed matrix, or packed into `made`."""
    if p.b.packed:
        g.operands.b = packed_range(p, at, first, column, g.shape.n)
        return
    g.operands.b = made
    p.kernels.packing.pack[p.b.format](g.shape.k, g.shape.n, at.b + first * p.b.rs + column * p.b.cs, p.b.rs, p.b.cs,
                                       made)
    if p.plan.scratch.column_sums:
        g.epilogue.col_sum = own_sums
        p.kernels.products[<int>MP_QUADS].column_sums(g.shape.k, g.shape.n, made, own_sums)


cdef void set_block_scales(const Product *p, mp_gemm *g, Py_ssize_t first, Py_ssize_t column,
                           float *scales) noexcept nogil:
    """Copy the scales of the K blocks from `first` on: kernels read whole vectors, beyond the last column too."""
    cdef Py_ssize_t group, block = g.shape.k_block
    for group in range((g.shape.k + block - 1) // block):
        memcpy(scales + group * MP_PANEL, p.b.group_scale + (first // block + group) * p.n + column, g.shape.n * 4)
    g.accumulators.block_scale, g.accumulators.block_scale_ld = scales, MP_PANEL


cdef void run_panels(const Product *p, mp_gemm *g, const Place *at, Py_ssize_t first_column,
                     Py_ssize_t last_column, char *work) noexcept nogil:
    """Multiply NC columns, panel by panel, one range of K after the other; pack or decode each range if necessary."""
    cdef Py_ssize_t first = 0, length, column, panel, i
    cdef Py_ssize_t panel_bytes = g.shape.m * MP_PANEL * 4
    cdef const Scratch *parts = &p.plan.scratch
    cdef int32_t init[MP_PANEL]
    cdef char *partial = work + parts.accumulators
    cdef char *made = partial + parts.partial_sums
    cdef char *decoded = made + parts.made
    cdef int32_t *own_sums = <int32_t *>(decoded + parts.decoded)
    cdef float *scales = <float *>(<char *>own_sums + parts.column_sums)
    if parts.column_sums:
        memset(own_sums, 0, parts.column_sums)
    g.accumulators.ld = MP_PANEL
    while True:
        length = advance(p, g, at.a, first)
        for panel in range((last_column - first_column + MP_PANEL - 1) // MP_PANEL):
            column = first_column + panel * MP_PANEL
            g.shape.n = min(p.n - column, <Py_ssize_t>MP_PANEL)
            g.accumulators.sums = work + panel * panel_bytes if parts.accumulators else NULL
            g.accumulators.partial = partial + panel * panel_bytes if parts.partial_sums else NULL
            set_columns(p, g, at, column)
            if p.plan.prefetch_next or p.plan.way == TRANSPOSED:
                prefetch_next(p, g, at, first, column, first_column, last_column)
            if p.plan.way == TRANSPOSED:
                g.operands.b, g.operands.b_stride, g.epilogue.b_zero = at.b + column * p.b.cs, p.b.cs, 128
                p.kernels.products[p.plan.arithmetic].transposed[p.b.format](g)
                continue
            set_panel(p, g, at, first, column, made, own_sums + panel * MP_PANEL)
            if p.plan.decoded:
                p.kernels.products[p.plan.arithmetic].decode[p.b.format](length, g.shape.n, g.operands.b, decoded)
                g.operands.b = decoded
            if p.b.group_scale != NULL:
                set_block_scales(p, g, first, column, scales)
            if g.epilogue.col_sum != NULL and p.a.row_zero == NULL and (p.b.packed or p.plan.kc >= p.k):
                # One zero point for all rows, and the column sums of B are complete: the integer sums start at
                # -a_zero * col_sum instead of 0, and the epilogue need not subtract it.
                for i in range(g.shape.n):
                    init[i] = -g.epilogue.a_zero * g.epilogue.col_sum[i]
                g.accumulators.init, g.epilogue.col_sum = init, NULL
            g.operands.b_stride = mp_group_bytes[p.plan.format] * g.shape.n
            if p.plan.amx:
                p.kernels.tiles.gemm[p.plan.arithmetic](g)
            else:
                p.kernels.products[p.plan.arithmetic].gemm[p.plan.format](g)
        first += length
        if first >= p.k:
            break
