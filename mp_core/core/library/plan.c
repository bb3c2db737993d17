/* Making the plan of a product: how kernels read B, tasks for the threads, ranges of K for the caches.
 *
 * mp_make_plan is a pure function: it reads an mp_problem (shape, layouts, formats, kernels, caches, threads) but no
 * elements, and fills an mp_plan, which product.c executes. Measured constants are in tuning.h, shares of a cache here.
 * With every plan, each element of the result is computed by the same operations in the same order: K blocks depend
 * only on the types, on scale groups and, for pairs, on the order of sums (reproducible, or that of AMX tiles).
 *
 *     for each task                        MC rows of A by some panels of B          (a thread takes one at a time)
 *         for each NC columns of the task
 *             for each KC elements of K
 *                 for each panel of the NC columns                                   (64 columns)
 *                     one call of a kernel: MC rows x KC x 64 columns, or one for each micro-panel
 *
 * In place, with MC <= MP_ROWS (6, the largest MR), one call multiplies all NC columns. If B is transposed, there is
 * one call for each panel, over all of K. */
#include <string.h>

#include "library/plan.h"

enum {
    PAGE = 4096,   /* bytes: all bytes between two mapped bytes less than a page apart are mapped */
    AMX_ROWS = 32, /* rows of A in the AMX tiles of a register block */
    AMX_K = 64,    /* integers along K in an AMX tile; a smaller K is multiplied by vectors */
    WINDOW_ROWS = 96, /* the fewest windows in a task, even if they exceed L2, since each task makes its panels again
                         (the 3x3 convolutions of ResNet-18; Zen 3, November 2026) */
};

#define ALL ((ptrdiff_t)1 << 40) /* the K block is all of K: for integers, and for pairs in the order of AMX tiles */

/* By arithmetic: the format of B that it multiplies; the elements in a K block. */
static const int native[MP_ARITHMETICS] = {MP_F32, MP_BF16, MP_I8};
static const ptrdiff_t block_of[MP_ARITHMETICS] = {MP_BLOCK_WIDE, MP_BLOCK_PAIRS, ALL};

/* Whether B is packed, and kernels read its panels, not copies. */
static int as_packed(const mp_problem *q, const mp_plan *p) { return q->packed && !mp_copies_panels(p); }

/* Whether kernels read packed panels, or copies of them in the same format. */
static int keeps_format(const mp_problem *q, const mp_plan *p) {
    return q->packed && p->format == q->b.format && !mp_recoded(p);
}

/* Whether kernels read B from micro-panels in scratch that are narrower than a panel. Each of these is read in order,
 * so that the hardware prefetchers load it from L2 in time. */
static int has_micro_panels(const mp_problem *q, const mp_plan *p) {
    return mp_copies_panels(p) && !mp_by_tiles(p) && q->kernels->products[p->arithmetic]->micro_panel < MP_PANEL;
}

/* Whether rows of A are contiguous in memory and of the type that the arithmetic reads. */
static int is_ready(const mp_problem *q, int arithmetic) {
    return (q->a.cs == q->a.size || q->k <= 1) && q->a.rs % q->a.size == 0 && !q->quantized_here && !q->windows
           && (q->a.format == native[arithmetic] || arithmetic == MP_QUADS);
}

/* Set the way and the fields that depend on it. */
static void set_way(const mp_problem *q, mp_plan *p, mp_way way) {
    p->way = way;
    p->format = mp_copies_panels(p) ? native[p->arithmetic] : q->b.format;
    p->shifted = mp_is_shifted(q, p->arithmetic);
    p->reads_a_in_place = !mp_rewrites_rows(p) && is_ready(q, p->arithmetic);
    p->sums_wanted = p->arithmetic == MP_QUADS && !q->group
                     && ((q->a.format != MP_U8 && mp_flips(q->kernels, p)) || q->row_zero);
}

/* Whether panels are multiplied as they are or copied, for MC rows of A: they are copied if there is such a copy and it
 * pays for MC rows. Widened integers have no row sums, which zero points of B need. A float32 panel is not copied
 * if it has only one micro-panel or fits L1. */
static mp_way way_of_panels(const mp_problem *q, const mp_plan *p, ptrdiff_t mc, int tiles) {
    const mp_products *const kernels = q->kernels->products[p->arithmetic];
    const mp_copies *const recoded = &kernels->recoded, *const decoded = &q->kernels->decoding[p->arithmetic].decoded;
    const int format = q->b.format, widens = kernels->widen_row != NULL;
    const ptrdiff_t few = MP_HAS(DECODE_IN_REGISTERS) ? mp_few_rows(q, p->arithmetic) : 0;
    const int shifted = mp_is_shifted(q, p->arithmetic);
    if (tiles) return decoded->copy[format] ? MP_DECODED_TILES : MP_TILES;
    const int recodes = shifted ? recoded->copy_shifted[format] != NULL : recoded->copy[format] != NULL;
    if (MP_HAS(MADE_WIDER) && recodes && mc > recoded->few_rows[format] && !(q->zero_point && widens))
        return widens ? MP_WIDER : MP_OCTS;
    if (shifted) return mc > few ? MP_DECODED : MP_PANELS;
    if (format == MP_F32 && (q->n <= kernels->micro_panel || q->k * MP_PANEL * 4 <= q->machine->l1d)) return MP_PANELS;
    return MP_HAS(DECODE_INTO_A_PANEL) && decoded->copy[format] && mc > few ? MP_DECODED : MP_PANELS;
}

/* Choose the arithmetic, whether panels are copied, and whether the plan is small. */
static void choose_kernel(const mp_problem *q, mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    p->arithmetic = q->quantized_here ? MP_QUADS : mp_arithmetic_of(q->a.format, q->b.format);
    int tiles = q->kernels->tiles->gemm[p->arithmetic] != NULL;
    if (p->arithmetic == MP_QUADS)
        tiles = tiles && q->b.format == MP_I8 && !q->group && q->k >= AMX_K
                && q->m >= (q->packed ? t->amx.packed_m : t->amx.made_m);
    else /* AMX tiles add floats in another order, so this must not depend on M or N */
        tiles = tiles && !q->reproducible && (q->group % MP_TILE_PAIRS == 0 || q->group >= q->k);
    p->k_block = q->group ? q->group : tiles ? ALL : block_of[p->arithmetic];
    set_way(q, p, way_of_panels(q, p, q->m, tiles));
    p->small = MP_HAS(SMALL_CALLS) && mp_multiplications(q) < t->thread_work && q->matrices == 1 && q->packed
               && !q->group && !q->zero_point && !p->shifted
               && (p->reads_a_in_place || (q->a.cs == q->a.size && !q->quantized_here));
}

/* The largest MC that the caches and copy_bytes allow. Copied windows stay in L2 while all columns are multiplied,
 * unless they would be fewer than WINDOW_ROWS. `cut` may choose a smaller MC to get more tasks. */
static ptrdiff_t largest_mc(const mp_problem *q, const mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    ptrdiff_t mc = as_packed(q, p) ? t->packed_mc : t->repacked_mc;
    if (!as_packed(q, p) && p->arithmetic == MP_QUADS && (q->k << mp_wider(p)) * MP_PANEL <= q->machine->l2 / 4)
        mc *= 2; /* all of K is one range, so there are no accumulators in scratch, which would use L2 */
    if (has_micro_panels(q, p)) mc /= 2; /* KC is twice as large: see range_bytes */
    if (!p->reads_a_in_place) {
        const ptrdiff_t row_bytes = mp_max(mp_a_row(p, q->k) * mp_a_bytes(p), 1);
        const ptrdiff_t bytes = q->windows ? q->machine->l2 / 2 : t->copy_bytes;
        mc = mp_min(mc, mp_max(bytes / row_bytes / MP_ROWS * MP_ROWS, q->windows ? WINDOW_ROWS : MP_ROWS));
    }
    return mc;
}

/* Cut the product into tasks. A task is MC rows of A by `task_panels` panels of B, of one matrix.
 *
 *     tasks = matrices * row_tasks * panel_tasks
 *     row_tasks = ceil(M / MC), panel_tasks = ceil(panels / task_panels), panels = ceil(N / 64)
 *
 * One thread: as few tasks as possible, row_tasks = ceil(M / largest_mc) of equal MC, each with all panels.
 *
 * T threads: about `wanted` tasks. Each thread gets several, because the product takes as long as the slowest thread:
 *     wanted = T * clamp(matrices M N K / thread_work, least_tasks, most_tasks)
 * But wanted = T if more tasks would move more memory: if each task copies its rows of A into scratch, since cutting N
 * copies them again; or if row-major B may be read in place, since it is best to read whole rows of B.
 * First N is cut, since a task with all rows of A reads its part of B only once:
 *     task_panels = panels * min(matrices row_tasks, wanted) / wanted, rounded down, at least 1
 * M is cut too, into at most T parts of at least about 2 MP_ROWS rows, in two cases: all matrices together have fewer
 * panels than there are threads; or packed panels keep their format (keeps_format), and cutting N alone gives fewer
 * than `wanted` tasks. If the product quantizes rows of A, and each thread gets at least MP_ROWS of them, only M is
 * cut, so that no row is quantized twice.
 *
 * MC is a multiple of MP_ROWS (of 32 rows for AMX tiles, if a task has more than 64), so that only the last task has
 * incomplete register blocks. But if the number of tasks along M is a multiple of the number of threads, MC is not
 * rounded up, so that all tasks have nearly the same number of rows: the product takes as long as the largest task. */
static void cut(const mp_problem *q, mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    const ptrdiff_t panels = mp_ceil_div(q->n, MP_PANEL), threads = q->threads;
    ptrdiff_t row_tasks = mp_ceil_div(q->m, largest_mc(q, p));
    p->task_panels = panels;
    if (threads > 1 && q->quantized_here && q->m >= threads * MP_ROWS) {
        row_tasks = mp_round_up(row_tasks, threads);
    } else if (threads > 1) {
        const double each = mp_multiplications(q) / t->thread_work;
        ptrdiff_t wanted = threads * (ptrdiff_t)(each < t->least_tasks  ? t->least_tasks
                                                 : each > t->most_tasks ? t->most_tasks
                                                                        : each);
        if (!q->packed && q->b.cs == q->b.size && q->m <= t->in_place_mc[p->arithmetic]) wanted = threads;
        if (!p->reads_a_in_place) {
            wanted = threads;
            row_tasks = row_tasks > 1 ? mp_round_up(row_tasks, threads) : 1;
        }
        if (q->matrices * panels < threads || (keeps_format(q, p) && q->matrices * row_tasks * panels < wanted))
            row_tasks = mp_max(row_tasks, mp_min(mp_ceil_div(q->m, 2 * MP_ROWS), threads));
        p->task_panels = mp_max(1, panels * mp_min(q->matrices * row_tasks, wanted) / wanted);
    }
    const ptrdiff_t rows = mp_ceil_div(q->m, row_tasks);
    const ptrdiff_t unit = mp_by_tiles(p) && rows > 2 * AMX_ROWS     ? AMX_ROWS
                           : threads > 1 && row_tasks % threads == 0 ? 1
                                                                     : MP_ROWS;
    p->mc = mp_min(mp_round_up(rows, unit), q->m);
    p->row_tasks = mp_ceil_div(q->m, p->mc);
    p->panel_tasks = mp_ceil_div(panels, p->task_panels);
}

/* Whether row-major B is multiplied in place: if a task has so few rows of A that packing B would take longer.
 *
 * Kernels read whole vectors, up to 63 bytes beyond the columns of B. These bytes have to be mapped: they are part of
 * the next row, or of a gap before it that is smaller than a page. */
static int fits_in_place(const mp_problem *q, const mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    const int near = p->arithmetic == MP_WIDE && !mp_copies_panels(p) && q->n % MP_LANES == 0
                     && q->k * q->b.rs <= q->machine->l2 / 4;
    return q->b.cs == q->b.size && q->n >= MP_LANES && q->b.rs >= q->n * q->b.size
           && (q->n % MP_LANES == 0 || q->b.rs - q->n * q->b.size < PAGE)
           && p->mc <= (near ? t->in_place_l2_mc : t->in_place_mc[p->arithmetic])
           && q->kernels->products[p->arithmetic]->in_place[q->b.format] != NULL;
}

/* Whether a transposed B is not packed: pieces of it are transposed (int8: read by dot products along K). */
static int fits_transposed(const mp_problem *q, const mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    const int is_short = p->arithmetic == MP_QUADS && q->k < t->transposed_quads_k;
    return q->b.rs == q->b.size && p->mc <= (is_short ? MP_ROWS : t->transposed_mc[p->arithmetic])
           && q->kernels->products[p->arithmetic]->transposed[q->b.format] != NULL;
}

/* Whether B is assumed to be in memory: it is larger than L2 / 2. It is probably the weights of one of many layers, or
 * shares L2 with other data. */
static int comes_from_memory(const mp_problem *q) {
    const ptrdiff_t column_bytes = q->packed ? mp_column_bytes(q->b.format, q->k) : q->k * q->b.size;
    return MP_HAS(MEMORY_OR_CACHE) && q->n * column_bytes > q->machine->l2 / 2;
}

/* Whether several panels are multiplied in turn: for one row of A, and packed panels that are in memory. */
static int fits_in_turn(const mp_problem *q, const mp_plan *p) {
    return q->packed && p->from_memory && p->way == MP_PANELS && p->mc == 1 && !q->group
           && q->kernels->products[p->arithmetic]->in_turn[q->b.format] != NULL;
}

/* Replace the way of panels by a better one, if there is any. A uint8 A and zero points of A by row need packed panels.
 * If B is read in place, elements are decoded in registers. */
static void choose_way(const mp_problem *q, mp_plan *p) {
    if (MP_HAS(PANELS_IN_TURN) && fits_in_turn(q, p)) set_way(q, p, MP_IN_TURN);
    if (q->packed || mp_by_tiles(p) || q->k == 0 || q->row_zero) return;
    if (p->arithmetic == MP_QUADS && q->a.format != MP_I8) return;
    if (MP_HAS(IN_PLACE) && fits_in_place(q, p)) {
        set_way(q, p, MP_IN_PLACE);
        const ptrdiff_t group = mp_group[q->b.format];
        if (q->n % MP_LANES || q->k % group) p->tail = (q->k - 1) % group + 1;
    } else if (MP_HAS(TRANSPOSED) && fits_transposed(q, p)) {
        set_way(q, p, MP_TRANSPOSED);
    }
}

/* Choose how B is prefetched. */
static void choose_prefetching(const mp_problem *q, mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    const int plain = q->b.format == native[p->arithmetic];
    if (!q->packed && q->b.cs == q->b.size) {
        p->prefetch_next = 1;
    } else if (mp_by_tiles(p) && q->packed) {
        /* Multiplying at most 2 small_mc rows takes little more time than loading B from memory. So elements of the
         * same panel are prefetched just before their use, not a whole range. If B is decoded, decoding reads it in
         * order and takes most of the time, so that the hardware prefetchers are enough. */
        const int few = p->mc <= 2 * t->small_mc;
        p->prefetch_within = p->from_memory && few && as_packed(q, p);
        p->prefetch_next = p->from_memory && !few;
    } else if (p->mc > t->small_mc) {
        p->prefetch_next = q->packed || q->b.rs == q->b.size;
    } else if (q->packed && p->from_memory) {
        p->prefetch_next = p->mc >= t->prefetch_mc[!plain];
        /* With one row of A, and if nothing is decoded, the hardware prefetchers are enough. */
        p->prefetch_within = as_packed(q, p) && !p->prefetch_next && (p->mc > 1 || !plain);
    }
}

/* KC and NC for row-major B and at most small_mc rows of A: a short range of K over many panels, then the next range.
 *
 * So rows of B are read in long pieces. The accumulators for NC columns, and the partial sums if K has several K
 * blocks, fit L2 / 4. */
static void interleave_panels(const mp_problem *q, mp_plan *p) {
    const mp_tuning *t = q->machine->tuning;
    const int many = p->mc > MP_ROWS;
    p->nc_panels = mp_max(1, q->machine->l2 / 4 / (p->mc * MP_PANEL * 4 * (q->k > p->k_block ? 2 : 1)));
    if (many && p->from_memory)
        p->nc_panels = mp_min(p->nc_panels, mp_max(1, t->memory_row_bytes / (MP_PANEL * q->b.size)));
    if (p->way != MP_IN_PLACE || p->mc == 1)
        p->kc = many && p->from_memory && !mp_by_tiles(p) ? t->packing_memory_k : t->packing_k;
    else if (many)
        p->kc = t->in_place_reread_k;
    else
        p->kc = p->from_memory && p->arithmetic != MP_QUADS ? t->in_place_memory_k : t->in_place_k;
}

/* The size of a range of K of a panel, in bytes.
 *
 * Micro-panels may fill half of L2. Other ranges have to fit L2 if more than small_mc rows of A read them repeatedly,
 * or if panels are read as they are and the next range is not prefetched. Else they have to fit L1, together with the
 * next range if packed panels are prefetched. */
static ptrdiff_t range_bytes(const mp_problem *q, const mp_plan *p) {
    const mp_machine *machine = q->machine;
    if (has_micro_panels(q, p)) return machine->l2 / 2;
    if (p->mc > machine->tuning->small_mc || (as_packed(q, p) && !p->prefetch_next))
        return mp_by_tiles(p) ? machine->tuning->amx.range_bytes : machine->l2 / 4;
    return q->packed && p->prefetch_next ? machine->l1d / 2 : machine->l1d;
}

/* The scale groups along K whose scales, for a panel, fill a quarter of L1: they may be decoded into scratch. */
static ptrdiff_t groups_in_cache(const mp_problem *q) { return mp_max(1, q->machine->l1d / 4 / (MP_PANEL * 4)); }

/* Choose KC and NC. KC is a multiple of a K block, or divides it, or is all of K.
 *
 * If B has a tail, KC is at most one K block, since the range before the tail may end inside of a K block. */
static void choose_ranges(const mp_problem *q, mp_plan *p) {
    const ptrdiff_t block = p->k_block, small_mc = q->machine->tuning->small_mc;
    const int one_panel = q->n <= MP_PANEL;
    p->nc_panels = 1;
    if (p->way == MP_TRANSPOSED || (p->mc <= (mp_by_tiles(p) ? small_mc : MP_ROWS)
                                    && (as_packed(q, p) || (p->way == MP_IN_PLACE && one_panel))))
        /* Every range of B is read once, so it need not fit a cache. */
        p->kc = p->tail ? block : q->group && !mp_by_tiles(p) ? groups_in_cache(q) * block : q->k;
    else if (p->mc <= small_mc && !q->packed && p->prefetch_next && (p->way == MP_IN_PLACE || !one_panel))
        interleave_panels(q, p);
    else
        p->kc = range_bytes(q, p) / (MP_PANEL * mp_group_bytes[p->format] << mp_wider(p)) * mp_group[p->format];
    /* group_sums are for whole K blocks */
    if ((p->shifted || q->group) && p->arithmetic == MP_QUADS) p->kc = mp_max(p->kc, block);
    if (p->kc >= q->k)
        p->kc = mp_max(q->k, 1);
    else if (p->kc >= block)
        p->kc = p->kc / block * block;
    else if (block != ALL && block % p->kc)
        p->kc = block;
    if (p->way == MP_IN_TURN) p->nc_panels = q->kernels->products[p->arithmetic]->turn_panels;
    p->nc_panels = MP_HAS(NC_OF_ROW_MAJOR_B) || p->way == MP_IN_TURN ? mp_min(p->nc_panels, p->task_panels) : 1;
}

/* ---- the scratch of a task */

/* Bytes in scratch for a range of K of a panel: column_bytes for each column, then `slack` bytes (MP_SLACK). */
static ptrdiff_t panel_bytes(const mp_problem *q, ptrdiff_t column_bytes, int slack) {
    return mp_round_up(column_bytes * mp_min(q->n, MP_PANEL) + slack, 64);
}

/* Set the sizes of the parts of scratch for rows of A. */
static void size_rows(const mp_problem *q, mp_plan *p) {
    mp_task_scratch *s = &p->scratch;
    s->a_copy = mp_round_up(p->mc * mp_a_row(p, q->k) * mp_a_bytes(p), 64);
    if (mp_rewrites_rows(p) && !is_ready(q, p->arithmetic))
        s->a_narrow = mp_round_up(p->mc * q->k * mp_own_bytes(p->arithmetic), 64);
    if (q->quantized_here && (q->windows || q->a.format != MP_F32)) s->a_gathered = mp_round_up(p->mc * q->k * 4, 64);
    else if (q->a.cs != q->a.size) s->a_gathered = mp_round_up(p->mc * q->k * q->a.size, 64);
}

/* Whether an array B is multiplied without being packed. */
static int where_it_lies(const mp_plan *p) { return p->way == MP_IN_PLACE || p->way == MP_TRANSPOSED; }

/* Set the sizes of all parts of a task's scratch. */
static void size_scratch(const mp_problem *q, mp_plan *p) {
    mp_task_scratch *s = &p->scratch;
    const ptrdiff_t block = p->k_block, sums = p->mc * MP_PANEL * 4 * p->nc_panels;
    if (!p->reads_a_in_place) size_rows(q, p);
    s->row_scales = q->finds_scales ? mp_round_up(p->mc * 4, 64) : 0;
    if (q->zero_point || (mp_flips(q->kernels, p) && where_it_lies(p))) s->row_sums = mp_round_up(p->mc * 4, 64);
    s->partial_sums = (q->k > p->kc && p->kc % block) || p->tail ? sums : 0;
    s->accumulators = (q->k > p->kc && q->k > block) || (p->way == MP_IN_PLACE && !s->partial_sums) ? sums : 0;
    if (p->tail) s->made = mp_group[q->b.format] * p->nc_panels * MP_PANEL * q->b.size;
    else if (!where_it_lies(p) && !q->packed) s->made = panel_bytes(q, mp_column_bytes(q->b.format, p->kc), MP_SLACK);
    const int slack = p->way == MP_OCTS ? 2 * MP_SLACK : MP_SLACK;
    if (mp_copies_panels(p)) s->copy = panel_bytes(q, mp_multiplied_bytes(p, p->kc), slack);
    s->column_sums = p->sums_wanted && !q->packed && p->way != MP_TRANSPOSED ? MP_PANEL * 4 * p->nc_panels : 0;
    s->group_scales = q->group ? mp_ceil_div(q->k, block) * MP_PANEL * 4 : 0;
    const ptrdiff_t rows_of_groups = (q->group ? mp_ceil_div(p->kc, q->group) : 1) * MP_PANEL * 4;
    if (p->shifted) s->group_zeros = rows_of_groups;
    if ((p->shifted || q->group) && mp_flips(q->kernels, p) && !mp_by_nibbles(p)) s->group_sums = rows_of_groups;
    if (mp_by_nibbles(p)) s->block_sums = mp_round_up(p->mc * mp_ceil_div(mp_max(q->k, 1), block) * 4, 64);
    s->total = s->row_scales + s->a_copy + s->a_narrow + s->a_gathered + s->row_sums + s->block_sums + s->accumulators
               + s->partial_sums + s->made + s->copy + s->column_sums + s->group_scales + s->group_zeros
               + s->group_sums;
}

void mp_make_plan(const mp_problem *q, mp_plan *p) {
    memset(p, 0, sizeof *p);
    choose_kernel(q, p);
    if (p->small) {
        p->mc = q->m, p->kc = mp_max(q->k, 1), p->nc_panels = 1;
        p->row_tasks = p->panel_tasks = 1, p->task_panels = mp_ceil_div(q->n, MP_PANEL);
        size_scratch(q, p);
        return;
    }
    cut(q, p);
    const mp_way way = way_of_panels(q, p, p->mc, mp_by_tiles(p));
    if (p->mc < q->m && way != p->way) { /* too few rows for copies: cut the product again without them */
        set_way(q, p, way);
        cut(q, p);
    }
    p->from_memory = comes_from_memory(q);
    choose_way(q, p);
    choose_prefetching(q, p);
    choose_ranges(q, p);
    size_scratch(q, p);
}
