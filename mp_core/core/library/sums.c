#include "library/sums.h"

#include <string.h>

#include "library/plan.h"
#include "library/runtime.h"

static void add(float *to, const float *x, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) to[i] += x[i];
}

/* to = x + to; x is the sum of earlier blocks. */
static void add_before(const float *x, float *to, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) to[i] = x[i] + to[i];
}

/* Add lanes[16][n] of n columns; the sums are in lanes[0][n]. */
static void add_lanes(float *lanes, ptrdiff_t n) {
    for (ptrdiff_t half = MP_LANES / 2; half > 0; half /= 2) add(lanes, lanes + half * n, half * n);
}

static ptrdiff_t blocks_of(const mp_sum_call *s) { return mp_ceil_div(s->k, MP_BLOCK_ROW); }

ptrdiff_t mp_lanes_of_sums(const mp_sum_call *s) {
    return s->inner == 1 && s->k > MP_BLOCK_ROW ? s->outer * blocks_of(s) * MP_LANES : 0;
}

/* Run a task of rows with one block each. */
static void run_short_rows(void *call, ptrdiff_t index) {
    const mp_sum_call *s = call;
    const ptrdiff_t end = mp_min((index + 1) * s->share, s->outer);
    float lanes[MP_ROWS_TOGETHER * MP_LANES];
    for (ptrdiff_t row = index * s->share; row < end; row += MP_ROWS_TOGETHER) {
        const ptrdiff_t rows = mp_min(end - row, MP_ROWS_TOGETHER), stride = s->k * s->size;
        s->kernels->rows->sum_blocks((mp_format)s->format, s->x + row * stride, rows, stride, s->k, lanes);
        for (ptrdiff_t i = 0; i < rows; i++) {
            add_lanes(lanes + i * MP_LANES, 1);
            s->out[row + i] = lanes[i * MP_LANES] / s->divisor;
        }
    }
}

/* Run a task of longer rows: compute the lanes of `share` blocks. */
static void run_blocks(void *call, ptrdiff_t index) {
    const mp_sum_call *s = call;
    const ptrdiff_t end = mp_min((index + 1) * s->share, s->outer * s->blocks), whole = s->k / MP_BLOCK_ROW;
    for (ptrdiff_t item = index * s->share, count; item < end; item += count) {
        const ptrdiff_t row = item / s->blocks, block = item % s->blocks;
        count = block < whole ? mp_min(end - item, whole - block) : 1;
        s->kernels->rows->sum_blocks(
            (mp_format)s->format, s->x + (row * s->k + block * MP_BLOCK_ROW) * s->size, count, MP_BLOCK_ROW * s->size,
            block < whole ? MP_BLOCK_ROW : s->k % MP_BLOCK_ROW, s->lanes + item * MP_LANES);
    }
}

/* Compute the sums of rows from the lanes of their blocks: add pairs of blocks, pairs of pairs and so on. */
void mp_join_sums_task(void *call, ptrdiff_t index) {
    const mp_sum_call *s = call;
    (void)index;
    for (ptrdiff_t row = 0; row < s->outer; row++) {
        float *const lanes = s->lanes + row * s->blocks * MP_LANES;
        for (ptrdiff_t step = 1; step < s->blocks; step *= 2)
            for (ptrdiff_t block = 0; block + step < s->blocks; block += 2 * step)
                add(lanes + block * MP_LANES, lanes + (block + step) * MP_LANES, MP_LANES);
        add_lanes(lanes, 1);
        s->out[row] = lanes[0] / s->divisor;
    }
}

/* Run a task of columns: a strip. If bit i of the number of blocks so far is set, level[i] are the lanes of 2^i
 * blocks. */
static void run_columns(void *call, ptrdiff_t index) {
    mp_sum_call *s = call;
    const ptrdiff_t strips = mp_ceil_div(s->inner, s->share), outer = index / strips, first = index % strips * s->share;
    const ptrdiff_t n = mp_min(s->share, s->inner - first), lanes = MP_LANES * n, row_bytes = s->inner * s->size;
    const char *x = s->x + (outer * s->k * s->inner + first) * s->size;
    float *const out = s->out + outer * s->inner + first;
    ptrdiff_t levels = 0;
    while (s->blocks > 1 && s->blocks >> levels) levels++;
    float *const sum = mp_scratch((size_t)((1 + levels) * lanes) * sizeof(float));
    if (!sum) {
        mp_fail(&s->status, MP_NO_MEMORY);
        return;
    }
    float *const level = sum + lanes;
    for (ptrdiff_t block = 0; block < s->blocks; block++, x += MP_BLOCK_ROW * row_bytes) {
        const ptrdiff_t rows = mp_min(s->k - block * MP_BLOCK_ROW, MP_BLOCK_ROW);
        s->kernels->rows->sum_columns((mp_format)s->format, x, rows, row_bytes, n, sum);
        ptrdiff_t i = 0;
        for (; block >> i & 1; i++) add_before(level + i * lanes, sum, lanes);
        if (levels) memcpy(level + i * lanes, sum, (size_t)lanes * sizeof(float));
    }
    if (levels) {
        ptrdiff_t i = 0;
        while (!(s->blocks >> i & 1)) i++;
        memcpy(sum, level + i * lanes, (size_t)lanes * sizeof(float));
        while (s->blocks >> ++i)
            if (s->blocks >> i & 1) add_before(level + i * lanes, sum, lanes);
    }
    add_lanes(sum, n);
    for (ptrdiff_t i = 0; i < n; i++) out[i] = sum[i] / s->divisor;
}

int mp_sums_are_large(const void *call) {
    const mp_sum_call *s = call;
    return (double)s->outer * (double)s->k * (double)s->inner >= MP_SUMS_WORK;
}

ptrdiff_t mp_plan_sums(void *call, ptrdiff_t outer, int threads, int reproducible) {
    mp_sum_call *s = call;
    (void)reproducible;
    s->kernels = mp_active();
    if (outer >= 0) s->outer = outer;
    s->blocks = blocks_of(s);
    if (!mp_sums_are_large(s)) threads = 1;
    if (s->inner > 1) {
        s->share = MP_MOST_COLUMNS;
        while (s->share > MP_LEAST_COLUMNS && mp_ceil_div(s->inner, s->share) * s->outer < 2 * threads) s->share /= 2;
        return mp_ceil_div(s->inner, s->share) * s->outer;
    }
    const ptrdiff_t items = s->outer * s->blocks, together = MP_ROWS_TOGETHER;
    s->share = mp_round_up(mp_share(items, 4 * threads, mp_min(s->k, MP_BLOCK_ROW)), together);
    return mp_ceil_div(items, s->share);
}

ptrdiff_t mp_plan_sums_join(void *call, ptrdiff_t outer, int threads, int reproducible) {
    mp_plan_sums(call, outer, threads, reproducible);
    return 1;
}

void mp_run_sums_task(void *call, ptrdiff_t task) {
    const mp_sum_call *s = call;
    (s->inner > 1 ? run_columns : s->blocks > 1 ? run_blocks : run_short_rows)(call, task);
}

void mp_run_sums(mp_sum_call *s, int threads) {
    const ptrdiff_t tasks = mp_plan_sums(s, MP_OWN_ROWS, threads, 0);
    mp_parallel_for(mp_sums_are_large(s) ? threads : 1, tasks, mp_run_sums_task, s);
    if (mp_lanes_of_sums(s)) mp_join_sums_task(s, 0);
}
