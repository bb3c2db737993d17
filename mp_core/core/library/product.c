/* Running a product: mp_run_product gets its plan from plan_kept.c, and the threads of the pool run its tasks.
 *
 * A task (run_task) copies its MC rows of A into scratch if the kernels cannot read them in place. Then it multiplies
 * NC columns after NC columns, in these KC elements of K after KC elements, with one call of a kernel for each panel,
 * or for each micro-panel of its copy. (If B is multiplied in place by at most MR rows, one call has all NC columns; if
 * B is transposed, one call has all of K.) */
#include <assert.h>
#include <string.h>

#include "library/runtime.h"

#include "library/product_rows.h"

/* ---- the loops of a task over columns and ranges of K, and the calls of kernels */

/* Set g to the range of K that starts at `first`; return its length: KC, or less at the end of K. */
static ptrdiff_t advance(const mp_product *p, mp_gemm *g, const char *a, ptrdiff_t first) {
    const ptrdiff_t before_tail = p->k - p->plan.tail, block = g->shape.k_block;
    const ptrdiff_t length = mp_min((first < before_tail ? before_tail : p->k) - first, p->plan.kc);
    g->shape.k = length, g->operands.a = a + first * mp_a_bytes(&p->plan);
    g->accumulators.first = first < block, g->accumulators.last = first + length == p->k;
    g->accumulators.resume = first % block != 0;
    g->accumulators.suspend = !g->accumulators.last && (first + length) % block != 0;
    return length;
}

/* The address of element `first` along K in the packed panel of the n columns from `column` on. */
static const char *packed_range(const mp_product *p, const mp_task_place *at, ptrdiff_t first, ptrdiff_t column,
                                ptrdiff_t n) {
    const int format = p->b.format;
    return at->b + column * mp_column_bytes(format, p->k) + first / mp_group[format] * mp_group_bytes[format] * n;
}

/* Columns that a task multiplies over all ranges of K before the next ones: NC, or fewer at the end. */
typedef struct {
    ptrdiff_t first, last;
} columns;

/* Whether this build prefetches a B of this layout. */
static int prefetches(const mp_product *p) {
    if (p->b.packed) return MP_HAS(PREFETCH_PACKED);
    return p->b.cs == mp_element_bytes[p->b.format] ? MP_HAS(PREFETCH_ROWS) : MP_HAS(PREFETCH_COLUMNS);
}

/* Set the data that g prefetches while it multiplies the panel of `column`: those that are read next.
 *
 * If B is packed or transposed, they are the next range of K of the panel, or the next panel. If B is row-major, they
 * are the next KC rows of the NC columns; each panel prefetches an equal part of them. */
static void set_prefetch(const mp_product *p, mp_gemm *g, const mp_task_place *at, ptrdiff_t first, ptrdiff_t column,
                         columns c) {
    const ptrdiff_t panels = mp_ceil_div(c.last - c.first, MP_PANEL), panel = (column - c.first) / MP_PANEL;
    mp_prefetch *f = &g->prefetch;
    first += g->shape.k;
    if (first >= p->k) first = 0, column = c.last, c = (columns){c.last, 2 * c.last - c.first};
    f->next = NULL;
    if (column >= p->n || !prefetches(p)) return;
    const ptrdiff_t rows = mp_min(p->k - first, p->plan.kc);
    if (p->b.packed) {
        const ptrdiff_t width = mp_min(p->n - column, MP_PANEL);
        f->next = packed_range(p, at, first, column, width);
        f->rows = 1, f->row_bytes = f->row_stride = mp_column_bytes(p->b.format, rows) * width;
    } else if (p->plan.way == MP_TRANSPOSED || p->b.cs != mp_element_bytes[p->b.format]) {
        f->next = at->b + first * p->b.rs + column * p->b.cs;
        f->rows = mp_min(p->n - column, MP_PANEL), f->row_bytes = rows * p->b.rs, f->row_stride = p->b.cs;
    } else {
        const ptrdiff_t begin = panel * rows / panels;
        f->rows = (panel + 1) * rows / panels - begin;
        if (f->rows <= 0) return;
        f->next = at->b + (first + begin) * p->b.rs + c.first * p->b.cs;
        f->row_bytes = (mp_min(c.last, p->n) - c.first) * p->b.cs, f->row_stride = p->b.rs;
    }
}

/* Set the epilogue for the columns from `column` on. */
static inline void set_columns(const mp_product *p, mp_gemm *g, const mp_task_place *at, ptrdiff_t column) {
    mp_epilogue *e = &g->epilogue;
    e->out = at->out + column * p->out.size;
    e->residual = at->residual ? at->residual + column * p->residual.size : NULL;
    e->bias = at->bias ? at->bias + column : NULL;
    e->col_scale = p->b.scale ? p->b.scale + column : NULL;
    e->col_zero = p->b.zero_point ? p->b.zero_point + column : NULL;
    e->col_sum = at->sums ? at->sums + column : NULL;
}

/* Multiply NC columns of a row-major B in place: KC rows of B at a time, so that memory is read in order.
 *
 * The kernel reads whole vectors and groups, which may extend beyond the last column into the next row. There is no
 * next row after the last ones (`tail`), so these are copied into scratch first. */
static void run_in_place(const mp_product *p, mp_gemm *g, const mp_task_place *at, columns c, char *work) {
    const mp_task_scratch *parts = &p->plan.scratch;
    const ptrdiff_t size = mp_element_bytes[p->b.format], all = c.last - c.first, group = mp_group[p->b.format];
    const ptrdiff_t row_bytes = mp_round_up(all, MP_LANES) * size;
    /* If several register blocks read the same columns, the width is one panel, which stays in L1. */
    const ptrdiff_t width = g->shape.m > MP_ROWS ? MP_PANEL : all;
    char *copy = work + parts->accumulators + parts->partial_sums;
    const char *b = at->b + c.first * size;
    ptrdiff_t first = 0;
    g->accumulators.ld = mp_round_up(all, MP_LANES), g->operands.b_stride = group * p->b.rs;
    g->epilogue.b_zero = mp_flips(p->kernels, &p->plan) ? 128 : 0; /* kernels read integers of b as b ^ 0x80 */
    do {
        const ptrdiff_t length = advance(p, g, at->a, first);
        if (first == p->k - p->plan.tail) {
            memset(copy, 0, (size_t)(group * row_bytes));
            for (ptrdiff_t row = 0; row < p->plan.tail; row++)
                memcpy(copy + row * row_bytes, b + (first + row) * p->b.rs, (size_t)(all * size));
            b = copy - first * p->b.rs, g->operands.b_stride = group * row_bytes;
        }
        for (ptrdiff_t column = c.first; column < c.last; column += width) {
            const ptrdiff_t done = column - c.first;
            g->shape.n = mp_min(width, c.last - column);
            g->accumulators.partial = work + (parts->partial_sums ? parts->accumulators : 0) + done * 4;
            g->accumulators.sums = parts->accumulators ? work + done * 4 : g->accumulators.partial;
            g->operands.b = b + first * p->b.rs + done * size;
            set_columns(p, g, at, column);
            if (g->shape.m > MP_ROWS) set_prefetch(p, g, at, first, column, c);
            p->kernels->products[p->plan.arithmetic]->in_place[p->b.format](g);
        }
        first += length;
    } while (first < p->k && !mp_stopped());
}

/* Set g to a panel and its range of K from `first` on: in the packed B, or packed into `made`. */
static void set_panel(const mp_product *p, mp_gemm *g, const mp_task_place *at, ptrdiff_t first, ptrdiff_t column,
                      char *made, int32_t *own_sums) {
    const ptrdiff_t k = g->shape.k, n = g->shape.n;
    if (p->b.packed) {
        g->operands.b = packed_range(p, at, first, column, n);
        return;
    }
    g->operands.b = made;
    p->kernels->packing->pack[p->b.format](k, n, at->b + first * p->b.rs + column * p->b.cs, p->b.rs, p->b.cs, made);
    if (own_sums) p->kernels->products[MP_QUADS]->column_sums(k, n, made, own_sums);
}

/* Prefetch the next panel's part of a row; this panel's part has `bytes` bytes. The distance between rows is too large
 * for the hardware prefetchers. */
static inline void prefetch_of_next(const void *row, ptrdiff_t bytes) {
    for (ptrdiff_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)row + bytes + at, 0, 3);
}

/* Half of a float of these bits, rounded to nearest even whatever the modes of the CPU are. */
static inline uint32_t half_of(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7FFFFFFF, half = magnitude >> 1; /* subnormal results: bits are proportional */
    if (magnitude >= 0x7F800000) return bits;
    return magnitude >= 0x01000000 ? bits - 0x00800000 : (bits & 0x80000000) | (half + (magnitude & half & 1));
}

static inline void halve(const float *from, ptrdiff_t n, float *to) {
    for (ptrdiff_t j = 0; j < n; j++) {
        uint32_t bits;
        memcpy(&bits, from + j, sizeof bits);
        bits = half_of(bits);
        memcpy(to + j, &bits, sizeof bits);
    }
}

/* Set the scales of the K blocks from `first` on. They are decoded to `scales` if they are codes, and copied there if
 * they are not whole vectors, which kernels read, or if several register blocks read them: rows of scales may be in the
 * same set of the L1 cache. Integers multiply twice the value of F4, so then its scales are halved. */
static void set_block_scales(const mp_product *p, mp_gemm *g, ptrdiff_t first, ptrdiff_t column, float *scales) {
    const ptrdiff_t n = g->shape.n, bytes = n * (ptrdiff_t)sizeof(float), before = first / p->b.group;
    const ptrdiff_t blocks = mp_ceil_div(g->shape.k, g->shape.k_block);
    const int doubled = p->b.format == MP_F4 && p->plan.arithmetic == MP_QUADS;
    mp_scale_codes codes = p->b.scale_codes;
    if (codes.shift) {
        if (doubled) codes.unit *= 0.5f; /* exactly: see mp_scale_codes */
        const ptrdiff_t at = mp_ceil_div(p->k, p->b.group) * column + before * n;
        p->kernels->packing->scales(blocks * n, (const char *)p->b.group_scale + at, codes, scales);
        g->accumulators.block_scale = scales, g->accumulators.block_scale_ld = n;
        return;
    }
    const float *row = (const float *)p->b.group_scale + before * p->n + column;
    const int in_place = g->shape.m <= MP_ROWS && n % MP_LANES == 0 && !doubled;
    assert(in_place || scales); /* a plan whose scales are not read in place has scratch for them */
    g->accumulators.block_scale = in_place ? row : scales;
    g->accumulators.block_scale_ld = in_place ? p->n : MP_PANEL;
    for (ptrdiff_t group = 0; group < blocks; group++, row += p->n) {
        if (p->plan.from_memory) prefetch_of_next(row, bytes);
        if (doubled) halve(row, n, scales + group * MP_PANEL);
        else if (!in_place) memcpy(scales + group * MP_PANEL, row, (size_t)bytes);
    }
}

/* The scratch of run_panels for copies of panels. */
typedef struct {
    char *made, *copy;
    int32_t *own_sums;      /* sums of NC columns; or NULL */
    float *scales;          /* of the scale groups in a range of K of a panel */
    uint32_t *zeros;        /* their zero points: see mp_zeros */
    int32_t *group_sums;    /* the initial integer sums in them; or NULL */
} panel_scratch;

static panel_scratch lay_out(const mp_task_scratch *parts, char *work) {
    panel_scratch s = {.made = work + parts->accumulators + parts->partial_sums};
    s.copy = s.made + parts->made;
    char *const sums = s.copy + parts->copy, *const scales = sums + parts->column_sums;
    char *const zeros = scales + parts->group_scales;
    s.own_sums = parts->column_sums ? (int32_t *)sums : NULL;
    s.scales = (float *)scales, s.zeros = (uint32_t *)zeros;
    s.group_sums = parts->group_sums ? (int32_t *)(zeros + parts->group_zeros) : NULL;
    return s;
}

/* Convert zero points to words of mp_zeros. */
static inline void to_words(const int8_t *zero, ptrdiff_t n, uint32_t base, uint32_t unit, uint32_t *restrict words) {
    int8_t all[MP_PANEL] = {0}; /* a constant number, so that the loop is vectorized */
    memcpy(all, zero, (size_t)n);
    for (int j = 0; j < MP_PANEL; j++) words[j] = base - (uint32_t)(all[j] + 8) * unit;
}

/* Set the zero points of a panel, for the range of K from `first` on. */
static void set_zeros(const mp_product *p, mp_gemm *g, ptrdiff_t first, ptrdiff_t column, uint32_t *words) {
    int8_t same[MP_PANEL];
    const int has_zeros = p->b.code_zero && p->k;
    const ptrdiff_t group = has_zeros && p->b.group_scale ? p->b.group : PTRDIFF_MAX;
    const ptrdiff_t k = mp_max(g->shape.k, 1), n = g->shape.n;
    const int8_t *row = has_zeros ? p->b.code_zero + first / group * p->n + column : same;
    memset(same, p->b.format == MP_F4 ? MP_F4_ZERO : 0, sizeof same);
    g->operands.zeros = (mp_zeros){words, group};
    for (ptrdiff_t i = 0; i <= (k - 1) / group; i++, words += MP_PANEL, row += has_zeros ? p->n : 0) {
        if (has_zeros && p->plan.from_memory) prefetch_of_next(row, n);
        if (mp_by_nibbles(&p->plan)) to_words(row, n, 0, mp_zero_of_quads, words);
        else to_words(row, n, mp_zero_words[p->plan.arithmetic].base, mp_zero_words[MP_WIDE].unit, words);
    }
}

/* Set the initial integer sums of each K block of a panel or a copied micro-panel to -a_zero * the sum of the column,
 * because int8 of A is read as a ^ 0x80. */
static void start_at_group_sums(const mp_product *p, mp_gemm *g, int32_t *init) {
    const ptrdiff_t block = mp_min(g->shape.k_block, mp_max(g->shape.k, 1));
    const int32_t zero = g->epilogue.a_zero;
    for (ptrdiff_t start = 0, i = 0; start < mp_max(g->shape.k, 1); start += block, i++) {
        int32_t *const sums = init + i * MP_PANEL;
        memset(sums, 0, MP_PANEL * sizeof *sums);
        p->kernels->products[MP_QUADS]->column_sums(mp_min(block, g->shape.k - start), g->shape.n,
                                                    (const char *)g->operands.b + start * g->shape.n, sums);
        for (int j = 0; j < MP_PANEL; j++) sums[j] *= -zero; /* a constant number, so that the loop is vectorized */
    }
    g->accumulators.init = init, g->accumulators.init_ld = MP_PANEL;
}

/* If A has no zero points (row_zero), and there are column sums of B over all of K: set the initial integer sums to
 * -a_zero * col_sum instead of 0, so that the epilogue need not subtract it. a_zero is 128 if int8 is read as a ^
 * 0x80. */
static void start_at_zero_points(const mp_product *p, mp_gemm *g, int32_t *init) {
    mp_epilogue *e = &g->epilogue;
    if (!MP_HAS(ZERO_POINTS_FIRST) || !e->col_sum || p->a.row_zero || !(p->b.packed || p->plan.kc >= p->k)) return;
    for (ptrdiff_t i = 0; i < g->shape.n; i++) init[i] = -e->a_zero * e->col_sum[i];
    g->accumulators.init = init, e->col_sum = NULL;
}

/* Multiply the columns from `column` on: those of a panel, or of one micro-panel of it. */
static inline void run_kernel(const mp_product *p, mp_gemm *g, const mp_task_place *at, ptrdiff_t column,
                              const int32_t *own_sums) {
    const mp_products *kernels = p->kernels->products[p->plan.arithmetic];
    int32_t init[MP_PANEL];
    g->operands.b_stride = (p->plan.way == MP_OCTS ? MP_OCT : mp_group_bytes[p->plan.format]) * g->shape.n;
    set_columns(p, g, at, column);
    if (own_sums) g->epilogue.col_sum = own_sums;
    start_at_zero_points(p, g, init);
    if (mp_by_tiles(&p->plan)) p->kernels->tiles->gemm[p->plan.arithmetic](g);
    else if (mp_recoded(&p->plan)) kernels->gemm_recoded(g);
    else if (p->plan.way == MP_PANELS && p->plan.shifted) kernels->gemm_shifted[p->b.format](g);
    else kernels->gemm[p->plan.format](g);
}

/* Copy a range of K of a panel, and multiply its micro-panels one after the other. */
static void run_copy(const mp_product *p, mp_gemm *g, const mp_task_place *at, ptrdiff_t column,
                     const int32_t *own_sums, const panel_scratch *s) {
    const int recoded = mp_recoded(&p->plan);
    const mp_products *by =
        recoded ? p->kernels->products[p->plan.arithmetic] : &p->kernels->decoding[p->plan.arithmetic];
    const ptrdiff_t n = g->shape.n, width = by->micro_panel;
    const mp_copies *const copies = recoded ? &by->recoded : &by->decoded;
    mp_accumulators *const sums = &g->accumulators;
    if (p->plan.shifted) copies->copy_shifted[p->b.format](g->shape.k, n, g->operands.b, &g->operands.zeros, s->copy);
    else copies->copy[p->b.format](g->shape.k, n, g->operands.b, s->copy);
    g->operands.b = s->copy;
    for (ptrdiff_t done = 0; done < n; done += width) {
        g->shape.n = mp_min(n - done, width);
        if (s->group_sums) start_at_group_sums(p, g, s->group_sums);
        run_kernel(p, g, at, column + done, own_sums ? own_sums + done : NULL);
        g->operands.b = (const char *)g->operands.b + width * mp_multiplied_bytes(&p->plan, g->shape.k);
        if (sums->sums) sums->sums = (float *)sums->sums + width;
        if (sums->partial) sums->partial = (float *)sums->partial + width;
        if (sums->block_scale) sums->block_scale += width;
        g->prefetch.next = NULL; /* this was prefetched with the first micro-panel */
    }
}

/* Multiply NC columns: for each range of K, panel after panel, packed or copied if necessary. */
static void run_panels(const mp_product *p, mp_gemm *g, const mp_task_place *at, columns c, char *work) {
    const mp_products *kernels = p->kernels->products[p->plan.arithmetic];
    const mp_task_scratch *parts = &p->plan.scratch;
    const ptrdiff_t panel_sums = g->shape.m * MP_PANEL * 4;
    const panel_scratch s = lay_out(parts, work);
    char *const partial = work + parts->accumulators;
    ptrdiff_t first = 0;
    if (s.own_sums) memset(s.own_sums, 0, (size_t)parts->column_sums);
    g->accumulators.ld = MP_PANEL;
    do {
        const ptrdiff_t length = advance(p, g, at->a, first);
        if (at->block_sums) g->operands.block_sums = at->block_sums + first / g->shape.k_block;
        for (ptrdiff_t column = c.first, panel = 0; column < c.last; column += MP_PANEL, panel++) {
            int32_t *const sums = s.own_sums ? s.own_sums + panel * MP_PANEL : NULL;
            g->shape.n = mp_min(p->n - column, MP_PANEL);
            g->accumulators.sums = parts->accumulators ? work + panel * panel_sums : NULL;
            g->accumulators.partial = parts->partial_sums ? partial + panel * panel_sums : NULL;
            if (p->plan.prefetch_next || p->plan.way == MP_TRANSPOSED) set_prefetch(p, g, at, first, column, c);
            if (p->plan.way == MP_TRANSPOSED) {
                set_columns(p, g, at, column);
                g->operands.b = at->b + column * p->b.cs, g->operands.b_stride = p->b.cs;
                g->epilogue.b_zero = mp_flips(p->kernels, &p->plan) ? 128 : 0;
                kernels->transposed[p->b.format](g);
                continue;
            }
            set_panel(p, g, at, first, column, s.made, sums);
            if (p->b.group_scale) set_block_scales(p, g, first, column, s.scales);
            if (p->plan.shifted) set_zeros(p, g, first, column, s.zeros);
            if (mp_copies_panels(&p->plan)) {
                run_copy(p, g, at, column, sums, &s);
            } else {
                if (s.group_sums) start_at_group_sums(p, g, s.group_sums);
                run_kernel(p, g, at, column, sums);
            }
        }
        first += length;
    } while (first < p->k && !mp_stopped());
}

/* Multiply NC columns over all of K in one call. */
static void run_in_turn(const mp_product *p, mp_gemm *g, const mp_task_place *at, columns c) {
    advance(p, g, at->a, 0);
    g->shape.n = c.last - c.first;
    g->accumulators.ld = g->shape.n;
    g->operands.b = packed_range(p, at, 0, c.first, MP_PANEL);
    g->operands.b_stride = mp_column_bytes(p->b.format, p->k) * MP_PANEL;
    set_columns(p, g, at, c.first);
    p->kernels->products[p->plan.arithmetic]->in_turn[p->b.format](g);
}

/* ---- tasks */

/* Run a task: MC rows of A by some panels of B, of one matrix of the batch. `work` has plan.scratch.total bytes. */
static void run_task(const mp_product *p, ptrdiff_t index, char *work) {
    const mp_plan *plan = &p->plan;
    const ptrdiff_t first_panel = index % plan->panel_tasks * plan->task_panels, rest = index / plan->panel_tasks;
    const ptrdiff_t row = rest % plan->row_tasks * plan->mc, matrix = rest / plan->row_tasks;
    const ptrdiff_t end = mp_min(p->n, (first_panel + plan->task_panels) * MP_PANEL), nc = plan->nc_panels * MP_PANEL;
    mp_gemm g = p->common;
    mp_task_place at = mp_place_of(p, matrix, row);
    g.shape.m = mp_min(plan->mc, p->m - row);
    work = mp_prepare_rows(p, &g, &at, matrix * p->m + row, work);
    for (ptrdiff_t first = first_panel * MP_PANEL, column = first; column < end; column += nc) {
        if (column > first && mp_stopped()) return;
        const columns c = {column, mp_min(column + nc, end)};
        if (plan->way == MP_IN_PLACE) run_in_place(p, &g, &at, c, work);
        else if (plan->way == MP_IN_TURN && (c.last - c.first) % MP_PANEL == 0) run_in_turn(p, &g, &at, c);
        else run_panels(p, &g, &at, c, work);
    }
}

void mp_run_here(const mp_product *p, char *work) {
    const ptrdiff_t tasks = mp_ceil_div(p->m, p->plan.mc) * p->plan.panel_tasks;
    for (ptrdiff_t index = 0; index < tasks && !(index > 0 && mp_stopped()); index++) run_task(p, index, work);
}

/* Run a small plan: one task, one range of K, no accumulators in scratch. */
static void run_small(mp_product *p, char *work) {
    mp_gemm *g = &p->common;
    mp_task_place at = {.a = p->a.data, .b = p->b.data, .sums = p->b.sums, .residual = p->residual.data,
                        .bias = p->bias, .out = p->out.data};
    g->shape.m = p->m, g->epilogue.row_scale = p->a.row_scale, g->epilogue.row_zero = p->a.row_zero;
    g->operands.lda = p->a.rs / mp_own_bytes(p->plan.arithmetic);
    if (!p->plan.reads_a_in_place) {
        at.a = work, g->operands.lda = mp_a_row(&p->plan, p->k);
        mp_copy_rows(p, g, p->a.data, 0, p->m, work);
        work += p->plan.scratch.a_copy + p->plan.scratch.a_narrow;
    }
    run_panels(p, g, &at, (columns){0, p->n}, work);
}

void mp_run_product_task(void *product, ptrdiff_t index) {
    mp_product *p = product;
    char *work = NULL;
    if (p->plan.scratch.total) {
        work = p->slots ? mp_take_slot(p->slots) : mp_scratch((size_t)p->plan.scratch.total);
        if (!work) {
            mp_fail(&p->status, MP_NO_MEMORY);
            return;
        }
    }
    if (p->plan.small) run_small(p, work);
    else run_task(p, index, work);
    if (p->slots && work) mp_give_slot(p->slots, work);
}

void mp_column_as_row(mp_product *p) {
    const int formats_turn = p->a.format == p->b.format || (p->a.format < MP_FLOATS && p->b.format < MP_FLOATS);
    if (p->n != 1 || p->m <= 1 || p->a.windows || p->b.packed || p->out.rs != p->out.size || p->bias || p->residual.data
        || p->a.row_scale || p->a.row_zero || p->b.scale || p->b.zero_point || !formats_turn)
        return;
    const mp_left a = p->a;
    p->n = p->m, p->m = 1;
    p->a.data = p->b.data, p->a.format = p->b.format, p->a.size = mp_element_bytes[p->b.format];
    p->a.rs = p->b.cs, p->a.cs = p->b.rs;
    p->b.data = a.data, p->b.format = a.format, p->b.rs = a.cs, p->b.cs = a.rs;
    for (int axis = 0; axis < p->batch_axes; axis++) {
        const ptrdiff_t stride = p->batch[axis].a;
        p->batch[axis].a = p->batch[axis].b, p->batch[axis].b = stride;
    }
}

void mp_plan_product(mp_product *p, ptrdiff_t matrices, int threads) {
    mp_problem q;
    memset(&q, 0, sizeof q); /* padding too: problems are compared as bytes */
    q.kernels = p->kernels, q.machine = mp_this_machine(), q.matrices = matrices, q.m = p->m, q.n = p->n, q.k = p->k;
    q.a = (mp_layout){p->a.format, (int)p->a.size, p->a.rs, p->a.cs};
    q.b = (mp_layout){p->b.format, (int)mp_element_bytes[p->b.format], p->b.rs, p->b.cs};
    q.windows = p->a.windows != NULL, q.packed = p->b.packed, q.quantized_here = p->a.quantized_here;
    q.finds_scales = p->a.quantized_here && !p->a.row_scale && !p->a.scales;
    q.row_zero = p->a.row_zero != NULL, q.zero_point = p->b.zero_point != NULL;
    q.code_zero = p->b.code_zero != NULL;
    q.group = p->b.group_scale ? p->b.group : 0, q.reproducible = p->reproducible;
    mp_gemm *g = &p->common;
    q.threads = mp_multiplications(&q) < q.machine->tuning->thread_work ? 1 : threads;
    p->threads = q.threads;
    if (MP_HAS(KEPT_PLANS)) mp_find_plan(&q, &p->plan);
    else mp_make_plan(&q, &p->plan);
    if (p->plan.arithmetic == MP_QUADS) {
        g->operands.a_flip = p->a.format == MP_U8 ? 0 : 0x80808080u;
        g->epilogue.a_zero = p->a.format != MP_U8 && mp_flips(p->kernels, &p->plan) ? 128 : 0;
    }
    if (!p->plan.sums_wanted) p->b.sums = NULL;
    g->shape.k_block = p->plan.k_block;
    g->prefetch.from_memory = p->plan.from_memory, g->prefetch.this_panel = p->plan.prefetch_within;
    g->epilogue.ldo = p->out.rs / p->out.size;
    if (p->residual.data) g->epilogue.ldr = p->residual.rs / p->residual.size;
}

ptrdiff_t mp_product_tasks(const mp_product *p, ptrdiff_t matrices) {
    return p->plan.small ? 1 : matrices * p->plan.row_tasks * p->plan.panel_tasks;
}

void mp_run_product(mp_product *p, ptrdiff_t matrices, int threads) {
    mp_plan_product(p, matrices, threads);
    if (p->plan.small) mp_run_product_task(p, 0);
    else mp_parallel_for(p->threads, mp_product_tasks(p, matrices), mp_run_product_task, p);
}
