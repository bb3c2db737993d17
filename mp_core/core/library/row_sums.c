#include "library/row_sums.h"

#include "library/elementwise.h" /* MP_ADD, MP_ELEMENTWISE_WORK */
#include "library/plan.h"
#include "library/runtime.h"

enum { MOST_COLUMNS = 1024, LEAST_COLUMNS = 64 }; /* in a task: their sums stay in the L1 cache */

void mp_run_row_sums(void *call, ptrdiff_t task) {
    const mp_row_sums *s = call;
    const ptrdiff_t first = task * s->share, n = mp_min(s->share, s->columns - first);
    const float *total = s->before ? s->before + first : NULL;
    float *const out = s->out + first, sum[MOST_COLUMNS];
    for (ptrdiff_t row = 0; row < s->rows; row += MP_BLOCK_WIDE) {
        const char *x = s->x + (row * s->columns + first) * s->size;
        s->kernels->rows->sum_rows((mp_format)s->format, x, mp_min(MP_BLOCK_WIDE, s->rows - row),
                                   s->columns * s->size, n, total ? sum : out);
        if (total) s->kernels->rows->functions[MP_ADD](total, sum, n, out);
        total = out;
    }
}

int mp_row_sums_are_large(const void *call) {
    const mp_row_sums *s = call;
    return (double)s->rows * (double)s->columns >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_row_sums(void *call, ptrdiff_t rows, int threads, int reproducible) {
    mp_row_sums *s = call;
    (void)reproducible;
    s->kernels = mp_active();
    if (rows >= 0) s->rows = rows;
    if (!mp_row_sums_are_large(s)) threads = 1;
    s->share = MOST_COLUMNS;
    while (s->share > LEAST_COLUMNS && mp_ceil_div(s->columns, s->share) < 2 * threads) s->share /= 2;
    return mp_ceil_div(s->columns, s->share);
}
