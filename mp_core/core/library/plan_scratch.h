/* Included by plan.c: the scratch of a task. */

/* Bytes of a panel's range of K in scratch, whose columns have column_bytes each, with the slack after it (MP_SLACK). */
static ptrdiff_t panel_bytes(const mp_problem *q, ptrdiff_t column_bytes, int slack) {
    return mp_round_up(column_bytes * mp_min(q->n, MP_PANEL) + slack, 64);
}

/* Set the bytes of the rows of A that a task copies. */
static void size_rows(const mp_problem *q, mp_plan *p) {
    mp_task_scratch *s = &p->scratch;
    s->a_copy = mp_round_up(p->mc * mp_a_row(p, q->k) * mp_a_bytes(p), 64);
    if (mp_wider(p) && !is_ready(q, p->arithmetic))
        s->a_narrow = mp_round_up(p->mc * q->k * mp_own_bytes(p->arithmetic), 64);
    if (q->quantized_here && q->a.format != MP_F32) s->a_gathered = mp_round_up(p->mc * q->k * 4, 64);
    else if (q->a.cs != q->a.size) s->a_gathered = mp_round_up(p->mc * q->k * q->a.size, 64);
}

/* Set the bytes of each part of a task's scratch. */
static void size_scratch(const mp_problem *q, mp_plan *p) {
    mp_task_scratch *s = &p->scratch;
    const ptrdiff_t block = p->k_block, sums = p->mc * MP_PANEL * 4 * p->nc_panels;
    if (!p->direct) size_rows(q, p);
    s->row_scales = q->own_scales ? mp_round_up(p->mc * 4, 64) : 0;
    if (q->zero_point || (mp_flips(q->kernels, p) && p->way != MP_PANELS)) s->row_sums = mp_round_up(p->mc * 4, 64);
    s->partial_sums = (q->k > p->kc && p->kc % block) || p->tail ? sums : 0;
    s->accumulators = (q->k > p->kc && q->k > block) || (p->way == MP_IN_PLACE && !s->partial_sums) ? sums : 0;
    if (p->tail) s->made = mp_group[q->b.format] * p->nc_panels * MP_PANEL * q->b.size;
    else if (p->way == MP_PANELS && !q->packed) s->made = panel_bytes(q, mp_column_bytes(q->b.format, p->kc), MP_SLACK);
    if (p->decoded) s->decoded = panel_bytes(q, mp_multiplied_bytes(p, p->kc), p->decoded == MP_OCTS ? 2 * MP_SLACK : MP_SLACK);
    s->column_sums = p->sums_wanted && !q->packed && p->way != MP_TRANSPOSED ? MP_PANEL * 4 * p->nc_panels : 0;
    s->group_scales = q->group ? mp_ceil_div(q->k, block) * MP_PANEL * 4 : 0;
    s->total = s->row_scales + s->a_copy + s->a_narrow + s->a_gathered + s->row_sums + s->accumulators + s->partial_sums
               + s->made + s->decoded + s->column_sums + s->group_scales;
}
