# Included by plan.pyx: the scratch of a task.

cdef void size_scratch(const Problem *q, Plan *p) noexcept nogil:
    """Set the bytes of each part of a task's scratch."""
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
