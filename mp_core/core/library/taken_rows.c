#include "library/taken_rows.h"

#include <string.h>

#include "library/cast.h"
#include "library/elementwise.h"
#include "library/plan.h"
#include "library/runtime.h"

int mp_taken_rows_are_many(const void *context) {
    const mp_taken_rows *s = context;
    return (double)(s->rows + s->limit) * (double)s->n >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_taken_rows(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_taken_rows *s = context;
    (void)reproducible;
    s->kernels = mp_active();
    if (rows >= 0) s->rows = rows;
    s->share = mp_taken_rows_are_many(s) ? mp_round_up(mp_ceil_div(s->n, threads), MP_LANES) : s->n;
    return mp_ceil_div(s->n, s->share);
}

static ptrdiff_t index_of(const mp_taken_rows *s, ptrdiff_t i) {
    return s->index_bytes == 8 ? (ptrdiff_t)((const int64_t *)s->indices)[i] : ((const int32_t *)s->indices)[i];
}

/* Sort the rows of x by their indices; the sort is stable. Those of table row r become order[begins[r]] to
 * order[begins[r + 1] - 1]. Return 0 if an index is outside of the table. */
static int sort_rows(const mp_taken_rows *s, int32_t *begins, int32_t *order) {
    memset(begins, 0, (size_t)(s->limit + 2) * sizeof *begins);
    int32_t *const next = begins + 1; /* next[r]: the begin of row r in `order`; its end after the last loop */
    for (ptrdiff_t i = 0; i < s->rows; i++) {
        const ptrdiff_t r = index_of(s, i);
        if (r < 0 || r >= s->limit) return 0;
        next[r + 1]++;
    }
    for (ptrdiff_t r = 1; r <= s->limit; r++) next[r] += next[r - 1];
    for (ptrdiff_t i = 0; i < s->rows; i++) order[next[index_of(s, i)]++] = (int32_t)i;
    return 1;
}

static void add(const mp_taken_rows *s, const float *x, ptrdiff_t n, float *sum) {
    s->kernels->rows->functions[MP_ADD](sum, x, n, sum);
}

/* Write the sum of `count` rows of x, from column `first` on, to `out`. `work` is a buffer for 2 n elements. */
static void sum_rows(const mp_taken_rows *s, const int32_t *row, ptrdiff_t count, ptrdiff_t first, ptrdiff_t n,
                     float *out, float *work) {
    float *const block = work, *const widened = work + n;
    float *sum = out; /* the first block is summed in the result array */
    memset(out, 0, (size_t)n * sizeof *out);
    for (ptrdiff_t i = 0; i < count; i++) {
        if (i > 0 && row[i] / MP_BLOCK_WIDE != row[i - 1] / MP_BLOCK_WIDE) {
            if (sum == block) add(s, block, n, out);
            sum = block;
            memset(block, 0, (size_t)n * sizeof *block);
        }
        const char *x = s->x + row[i] * s->stride + first * mp_element_bytes[s->format];
        if (s->format != MP_F32) s->kernels->casts->widen[s->format](x, widened, n, 0);
        add(s, s->format == MP_F32 ? (const float *)x : widened, n, sum);
    }
    if (sum == block) add(s, block, n, out);
}

/* Run a task: a share of the columns. Each task sorts all rows, which takes little time compared to the additions. */
void mp_run_taken_rows(void *context, ptrdiff_t task) {
    mp_taken_rows *s = context;
    const ptrdiff_t first = task * s->share, n = mp_min(s->share, s->n - first);
    float *work = mp_scratch((size_t)(2 * n + s->limit + 2 + s->rows) * sizeof *work);
    if (!work) {
        mp_fail(&s->status, MP_NO_MEMORY);
        return;
    }
    int32_t *begins = (int32_t *)(work + 2 * n), *order = begins + s->limit + 2;
    if (!sort_rows(s, begins, order)) {
        mp_fail(&s->status, MP_NO_ROW);
        return;
    }
    for (ptrdiff_t r = 0; r < s->limit; r++)
        sum_rows(s, order + begins[r], begins[r + 1] - begins[r], first, n, s->out + r * s->n + first, work);
}
