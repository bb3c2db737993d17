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

/* The divisor of a sum of `rows` rows, the first `skipped` of which are left out. */
static float divisor_of(mp_pool how, ptrdiff_t rows, ptrdiff_t skipped) {
    if (how == MP_MEAN_BY_PLACE) return (float)((rows * (rows + 1) - skipped * (skipped + 1)) / 2);
    return how == MP_MEAN_BY_ROOT ? sqrtf((float)(rows - skipped)) : (float)(rows - skipped);
}

/* Compute a mean of the rows. */
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

/* Find the largest element of each column: NaN if there is one, +0 for a zero of either sign. */
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
    if (status) mp_fail(&t->status, status);
}

/* ---- the gradient */

int mp_pooling_gradient_is_large(const void *context) {
    const mp_pooling_gradient *t = context;
    return (double)t->rows * (double)t->width >= mp_this_machine()->tuning->thread_work;
}

ptrdiff_t mp_plan_pooling_gradient(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_pooling_gradient *t = context;
    (void)threads, (void)reproducible;
    t->kernels = mp_active();
    if (sequences >= 0) t->sequences = sequences;
    return t->sequences;
}

static void zero_rows(const mp_pooling_gradient *t, ptrdiff_t first, ptrdiff_t end) {
    const ptrdiff_t bytes = t->width * t->size;
    if (end > first) memset(t->out + first * bytes, 0, (size_t)((end - first) * bytes));
}

static void write_row(const mp_pooling_gradient *t, const float *row, ptrdiff_t to) {
    char *out = t->out + to * t->width * t->size;
    if (t->format == MP_F32) memcpy(out, row, (size_t)t->width * sizeof *row);
    else t->kernels->casts->narrow[t->format](row, out, t->width, 0);
}

/* Set `place`, for each column, to the row of its largest element, among the rows from `first` to `end`. `line` is a
 * buffer for two rows. */
static void find_places(const mp_pooling_gradient *t, ptrdiff_t first, ptrdiff_t end, float *line, ptrdiff_t *place) {
    const mp_product rows = {.kernels = t->kernels, .n = t->width,
                             .b = {.data = t->x, .format = t->format, .rs = t->width * t->size}};
    float *const top = line + t->width;
    for (ptrdiff_t row = first; row < end; row++) {
        widen_row(&rows, row, line);
        for (ptrdiff_t column = 0; column < t->width; column++) {
            const int is_larger = line[column] > top[column] || (isnan(line[column]) && !isnan(top[column]));
            if (row == first || is_larger) top[column] = line[column], place[column] = row;
        }
    }
}

/* Compute the gradient of the rows from `first` to `end`; d is the gradient of their maximum. */
static mp_status spread_to_largest(const mp_pooling_gradient *t, const float *d, ptrdiff_t first, ptrdiff_t end) {
    float *const line = mp_scratch((size_t)t->width * (2 * sizeof(float) + sizeof(ptrdiff_t)));
    if (!line) return MP_NO_MEMORY;
    ptrdiff_t *const place = (ptrdiff_t *)(line + 2 * t->width);
    find_places(t, first, end, line, place);
    for (ptrdiff_t row = first; row < end; row++) {
        for (ptrdiff_t column = 0; column < t->width; column++) line[column] = place[column] == row ? d[column] : 0.0f;
        write_row(t, line, row);
    }
    return MP_DONE;
}

/* Compute the gradient of the rows from `first` to `end`; d is the gradient of their mean. */
static mp_status spread(const mp_pooling_gradient *t, const float *d, ptrdiff_t first, ptrdiff_t end) {
    float *const share = mp_scratch((size_t)(2 * t->width) * sizeof *share);
    if (!share) return MP_NO_MEMORY;
    float *const row_of = share + t->width;
    const float divisor = divisor_of(t->how, t->skipped + end - first, t->skipped);
    for (ptrdiff_t column = 0; column < t->width; column++) share[column] = d[column] / divisor;
    for (ptrdiff_t row = first; row < end; row++) {
        const float times = t->how == MP_MEAN_BY_PLACE ? (float)(t->skipped + row - first + 1) : 1.0f;
        for (ptrdiff_t column = 0; column < t->width; column++) row_of[column] = share[column] * times;
        write_row(t, row_of, row);
    }
    return MP_DONE;
}

void mp_run_pooling_gradient(void *context, ptrdiff_t task) {
    mp_pooling_gradient *t = context;
    const ptrdiff_t begin = t->offsets[task], end = t->offsets[task + 1], first = begin + t->skipped;
    const float *d = t->d + task * t->d_stride;
    mp_status status = MP_DONE;
    zero_rows(t, task == 0 ? 0 : begin, first);
    if (task == t->sequences - 1) zero_rows(t, end, t->rows);
    switch (t->how) {
    case MP_FIRST_ROW: write_row(t, d, first), zero_rows(t, first + 1, end); break;
    case MP_LAST_ROW: zero_rows(t, first, end - 1), write_row(t, d, end - 1); break;
    case MP_LARGEST: status = spread_to_largest(t, d, first, end); break;
    default: status = spread(t, d, first, end); break;
    }
    if (status) mp_fail(&t->status, status);
}
