#include "library/pooling.h"

#include <math.h>
#include <string.h>

int mp_pooling_is_large(const void *context) {
    const mp_pooling *t = context;
    return (double)t->offsets[t->sequences] * (double)t->sums.n >= mp_this_machine()->tuning->thread_work;
}

ptrdiff_t mp_plan_pooling(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_pooling *t = context;
    (void)threads;
    t->sums.kernels = mp_active(), t->sums.reproducible = reproducible;
    if (sequences >= 0) t->sequences = sequences;
    return t->sequences;
}

/* What a sum of `rows` rows, of which the first `skipped` have no weight, is divided by. */
static float divisor_of(mp_pool how, ptrdiff_t rows, ptrdiff_t skipped) {
    if (how == MP_MEAN_BY_PLACE) return (float)((rows * (rows + 1) - skipped * (skipped + 1)) / 2);
    return how == MP_MEAN_BY_ROOT ? sqrtf((float)(rows - skipped)) : (float)(rows - skipped);
}

/* A mean of the rows. */
static mp_status add_rows(mp_product *sums, mp_pool how, ptrdiff_t skipped) {
    mp_plan_product(sums, 1, 1);
    char *work = mp_scratch((size_t)sums->plan.scratch.total);
    if (!work) return MP_NO_MEMORY;
    mp_run_here(sums, work);
    float *out = (float *)sums->out.data;
    const float divisor = divisor_of(how, sums->k, skipped);
    for (ptrdiff_t column = 0; column < sums->n; column++) out[column] /= divisor;
    return MP_DONE;
}

static void widen_row(const mp_product *sums, ptrdiff_t row, float *out) {
    const char *x = sums->b.data + row * sums->b.rs;
    if (sums->b.format == MP_F32) memcpy(out, x, (size_t)sums->n * sizeof *out);
    else sums->kernels->casts->widen[sums->b.format](x, out, sums->n, 0);
}

/* The largest element of each column, NaN if there is one, +0 for a zero. */
static mp_status find_largest(const mp_product *sums, ptrdiff_t skipped) {
    float *out = (float *)sums->out.data, *line = mp_scratch((size_t)sums->n * sizeof *line);
    if (!line) return MP_NO_MEMORY;
    for (ptrdiff_t column = 0; column < sums->n; column++) out[column] = -INFINITY;
    for (ptrdiff_t row = skipped; row < sums->k; row++) {
        widen_row(sums, row, line);
        for (ptrdiff_t column = 0; column < sums->n; column++)
            if (line[column] > out[column] || isnan(line[column])) out[column] = line[column];
    }
    for (ptrdiff_t column = 0; column < sums->n; column++) out[column] += 0.0f;
    return MP_DONE;
}

void mp_run_pooling(void *context, ptrdiff_t task) {
    mp_pooling *t = context;
    mp_product sums = t->sums;
    float *out = (float *)(sums.out.data + task * sums.out.rs);
    mp_status status = MP_DONE;
    sums.k = t->offsets[task + 1] - t->offsets[task];
    sums.b.data += t->offsets[task] * sums.b.rs;
    sums.out.data = (char *)out;
    switch (t->how) {
    case MP_FIRST_ROW: widen_row(&sums, t->skipped, out); break;
    case MP_LAST_ROW: widen_row(&sums, sums.k - 1, out); break;
    case MP_LARGEST: status = find_largest(&sums, t->skipped); break;
    default: status = add_rows(&sums, t->how, t->skipped); break;
    }
    if (status) t->status = status;
}
