#include "library/product_rows.h"

#include <string.h>

/* Elements of A that are quantized at a time (at least one row): up to K = 4096 they stay in L1 meanwhile. */
enum { QUANTIZED = 4096 };

/* How elements of A become those of an arithmetic. */
static mp_conversion conversion_to(const mp_product *p, int arithmetic) {
    const mp_casts *casts = p->kernels->casts;
    mp_conversion c = {.from = p->a.size, .to = mp_own_bytes(arithmetic)};
    if (arithmetic == MP_WIDE && p->a.format != MP_F32) c.widen = casts->widen[p->a.format];
    if (arithmetic == MP_PAIRS && p->a.format != MP_BF16) c.to_bf16 = casts->to_bf16[p->a.format];
    return c;
}

/* Quantize rows of A to the same codes as mp_core.quantize: by given scales, or each row by its amax / 127. */
static void quantize_rows(const mp_product *p, const char *a, ptrdiff_t from, ptrdiff_t rows, char *to, char *wide,
                          mp_gemm *g) {
    const mp_quantizers *quantizers = p->kernels->quantizers;
    const ptrdiff_t at_once = mp_max(1, QUANTIZED / mp_max(p->k, 1));
    float *scales = (float *)g->epilogue.row_scale, amax[QUANTIZED];
    mp_part part = {.rows = rows, .cols = p->k, .x = (float *)a, .ldx = p->a.rs / 4, .q = (uint8_t *)to, .ldq = p->k,
                    .scale = scales, .by_row = g->epilogue.row_stride, .qmin = -128, .qmax = 127};
    if (p->a.windows || p->a.format != MP_F32) {
        const mp_conversion c = conversion_to(p, MP_WIDE);
        if (p->a.windows) mp_gather_windows(p->a.windows, c, a, from, rows, wide);
        else for (ptrdiff_t i = 0; i < rows; i++) mp_convert(c, a + i * p->a.rs, p->k, wide + i * p->k * c.to);
        part.x = (float *)wide, part.ldx = p->k;
    }
    part.prefetch_distance = part.ldx;
    if (p->a.scales) part.scale = p->a.scales, part.zero_point = p->a.zeros, part.by_row = 0, part.by_column = 1;
    if (p->a.scales || p->a.row_scale) {
        quantizers->quantize[MP_CODE_I8](&part);
        return;
    }
    part.qmin = -127, part.mode = MP_NO_CLAMP;
    for (ptrdiff_t first = 0; first < rows; first += part.rows) {
        part.rows = mp_min(rows - first, at_once), part.scale = scales + first, part.prefetch_distance = 0;
        memset(amax, 0, (size_t)part.rows * sizeof(float));
        quantizers->amax(&part, amax);
        quantizers->symmetric_scales(amax, part.rows, 127, scales + first);
        part.prefetch_distance = part.rows * part.ldx;
        quantizers->quantize[MP_CODE_I8](&part);
        part.x += part.rows * part.ldx;
        part.q += part.rows * part.ldq;
    }
}

/* Copy rows that are not contiguous into contiguous rows of the same type. */
static void gather_elements(const mp_product *p, const char *a, ptrdiff_t rows, char *to) {
    if (p->a.size > 1) {
        p->kernels->packing->pack[p->a.size == 4 ? MP_F32 : MP_F16](rows, p->k, a, p->a.rs, p->a.cs, to);
        return;
    }
    for (ptrdiff_t q = 0; q < p->k; q++)
        for (ptrdiff_t i = 0; i < rows; i++) to[i * p->k + q] = a[i * p->a.rs + q * p->a.cs];
}

/* Copy rows of A to `to`, contiguous and in the type of the arithmetic. Rows that are not contiguous are first copied
 * to `gathered`. */
static void gather_rows(const mp_product *p, const char *a, ptrdiff_t first, ptrdiff_t rows, char *to, char *gathered) {
    const mp_conversion c = conversion_to(p, p->plan.arithmetic);
    ptrdiff_t rs = p->a.rs, k = p->k;
    if (p->a.windows) {
        mp_gather_windows(p->a.windows, c, a, first, rows, to);
        return;
    }
    if (p->a.cs != p->a.size) {
        gather_elements(p, a, rows, gathered);
        a = gathered, rs = k * p->a.size;
    }
    if (rs == k * p->a.size) k *= rows, rows = 1; /* there are no gaps between rows: convert them as one row */
    for (; rows > 0; rows--, a += rs, to += k * c.to) mp_convert(c, a, k, to);
}

/* Copy rows of A, rs bytes apart, into the layout of gemm_recoded. */
static void widen_rows(const mp_product *p, const char *from, ptrdiff_t rs, ptrdiff_t rows, char *to) {
    const ptrdiff_t row_bytes = mp_a_row(&p->plan, p->k) * mp_a_bytes(&p->plan);
    for (; rows > 0; rows--, from += rs, to += row_bytes)
        p->kernels->products[p->plan.arithmetic]->widen_row(p->k, from, p->a.format != MP_U8, to);
}

enum { ORDERED = 8 }; /* gemm_shifted reads each eight elements of A in the order 0, 4, 1, 5, 2, 6, 3, 7. */

/* Write eight elements of int8 in that order. Sizes are constant, so that the compiler uses vectors. */
static void order_eight(const char *from, char *to) {
    char eight[ORDERED];
    memcpy(eight, from, ORDERED);
    for (int i = 0; i < ORDERED / 2; i++) to[2 * i] = eight[i], to[2 * i + 1] = eight[i + ORDERED / 2];
}

/* Copy int8 rows of A, rs bytes apart, into the layout of gemm_shifted. */
static void order_rows(const mp_product *p, const char *from, ptrdiff_t rs, ptrdiff_t rows, char *to) {
    const ptrdiff_t rest = p->k % ORDERED, whole = p->k - rest;
    for (; rows > 0; rows--, from += rs) {
        for (ptrdiff_t q = 0; q < whole; q += ORDERED, to += ORDERED) order_eight(from + q, to);
        if (rest) {
            char eight[ORDERED] = {0};
            memcpy(eight, from + whole, (size_t)rest);
            order_eight(eight, to);
            to += ORDERED;
        }
    }
}

/* Copy rows of A that are in the type of the arithmetic into the layout that the kernels read. */
static void rewrite_rows(const mp_product *p, const char *from, ptrdiff_t rs, ptrdiff_t rows, char *to) {
    if (mp_wider(&p->plan)) widen_rows(p, from, rs, rows, to);
    else order_rows(p, from, rs, rows, to);
}

/* If rows are in the type of the arithmetic already (is_ready of plan.c; then a_narrow has no bytes), rewrite_rows
 * reads the caller's A. */
void mp_copy_rows(const mp_product *p, mp_gemm *g, const char *a, ptrdiff_t first, ptrdiff_t rows, char *work) {
    const mp_plan *plan = &p->plan;
    const mp_task_scratch *parts = &plan->scratch;
    char *const narrow = mp_rewrites_rows(plan) ? work + parts->a_copy : work;
    char *const gathered = work + parts->a_copy + parts->a_narrow;
    /* If K is 0, quantized rows have scales but no codes. */
    if (mp_rewrites_rows(plan) && !parts->a_narrow && !p->a.quantized_here) {
        rewrite_rows(p, a, p->a.rs, rows, work);
        return;
    }
    if (p->a.quantized_here) quantize_rows(p, a, first, rows, narrow, gathered, g);
    else gather_rows(p, a, first, rows, narrow, gathered);
    if (mp_rewrites_rows(plan)) rewrite_rows(p, narrow, p->k * mp_own_bytes(plan->arithmetic), rows, work);
}

mp_task_place mp_place_of(const mp_product *p, ptrdiff_t matrix, ptrdiff_t row) {
    mp_task_place at = {.a = p->a.data + row * p->a.rs, .b = p->b.data, .sums = p->b.sums,
                        .residual = p->residual.data, .out = p->out.data + row * p->out.rs};
    ptrdiff_t b_matrix = 0;
    if (p->bias) at.bias = p->bias + matrix * p->bias_stride;
    if (at.residual) at.residual += row * p->residual.rs;
    for (int axis = p->batch_axes - 1; axis >= 0; axis--) {
        const mp_axis *x = &p->batch[axis];
        const ptrdiff_t position = matrix % x->length;
        matrix /= x->length;
        at.a += position * x->a;
        at.out += position * x->out;
        b_matrix += position * x->b;
        if (at.residual) at.residual += position * x->residual;
    }
    at.b += p->b.packed ? b_matrix * p->b.matrix_bytes : b_matrix;
    if (at.sums) at.sums += b_matrix * p->n;
    return at;
}

/* row_sum[i] of mp_epilogue = (sum over K of a ^ a_flip) - K * ((a_flip & 255) + row_zero[i]). */
static void sum_rows(const mp_product *p, mp_gemm *g, const char *a, int32_t *sums) {
    const mp_epilogue *e = &g->epilogue;
    p->kernels->products[MP_QUADS]->row_sums(g->shape.m, p->k, a, g->operands.lda, g->operands.a_flip, sums);
    for (ptrdiff_t i = 0; i < g->shape.m; i++) {
        const int32_t zero = e->row_zero ? e->row_zero[i * e->row_stride] : 0;
        sums[i] -= (int32_t)p->k * ((int32_t)(g->operands.a_flip & 255) + zero);
    }
    g->epilogue.row_sum = sums;
}

/* Compute block_sums of mp_operands: minus the sum of each K block of each int8 row of A. The kernel adds q + 128. */
static void sum_blocks(const mp_product *p, mp_gemm *g, const char *a, int32_t *sums) {
    const ptrdiff_t k = g->operands.lda, block = mp_max(mp_min(g->shape.k_block, k), 1);
    const ptrdiff_t blocks = mp_ceil_div(mp_max(k, 1), block), whole = k / block;
    const mp_products *quads = p->kernels->products[MP_QUADS];
    g->operands.block_sums_ld = blocks;
    for (ptrdiff_t i = 0; i < g->shape.m; i++, a += k, sums += blocks) {
        quads->row_sums(whole, block, a, block, 0x80808080u, sums);
        if (whole < blocks) quads->row_sums(1, k - whole * block, a + whole * block, 0, 0x80808080u, sums + whole);
        for (ptrdiff_t b = 0; b < blocks; b++) sums[b] = 128 * (int32_t)mp_min(block, k - b * block) - sums[b];
    }
}

char *mp_prepare_rows(const mp_product *p, mp_gemm *g, mp_task_place *at, ptrdiff_t row, char *work) {
    const mp_task_scratch *parts = &p->plan.scratch;
    g->operands.lda = p->a.rs / mp_own_bytes(p->plan.arithmetic);
    if (p->a.row_scale) g->epilogue.row_scale = p->a.row_scale + row * g->epilogue.row_stride;
    if (parts->row_scales) {
        g->epilogue.row_scale = (float *)work, g->epilogue.row_stride = 1;
        work += parts->row_scales;
    }
    if (!p->plan.reads_a_in_place) {
        mp_copy_rows(p, g, at->a, row % p->m, g->shape.m, work);
        at->a = work, g->operands.lda = mp_a_row(&p->plan, p->k);
    }
    work += parts->a_copy + parts->a_narrow + parts->a_gathered;
    if (p->a.row_zero) g->epilogue.row_zero = p->a.row_zero + row * g->epilogue.row_stride;
    if (parts->block_sums) {
        sum_blocks(p, g, at->a, (int32_t *)work);
        at->block_sums = (int32_t *)work;
        work += parts->block_sums;
    }
    if (parts->row_sums) {
        sum_rows(p, g, at->a, (int32_t *)work);
        work += parts->row_sums;
    }
    return work;
}
