#include "library/row_gradients.h"

#include "library/elementwise.h" /* MP_ADD */
#include "library/plan.h"
#include "library/rows.h" /* MP_ROWS_WORK */
#include "library/runtime.h"

/* Return a row as float32: in place if it is, else converted into `work`. */
static const float *widened(const mp_row_gradient *g, const char *row, float *work) {
    if (g->format == MP_F32) return (const float *)row;
    g->kernels->casts->widen[g->format](row, work, g->length, 0);
    return work;
}

/* Return x + residual of a row, in `work` if it has to be computed; `other` is a buffer for another row. */
static const float *input_of(const mp_row_gradient *g, ptrdiff_t at, float *work, float *other) {
    const float *x = widened(g, g->x + at, work);
    if (!g->residual) return x;
    g->kernels->rows->functions[MP_ADD](x, widened(g, g->residual + at, other), g->length, work);
    return work;
}

static void run_row(const mp_row_gradient *g, ptrdiff_t row, float *work) {
    const mp_rows *kernels = g->kernels->rows;
    const ptrdiff_t n = g->length, at = row * n * g->size;
    const float *x = input_of(g, at, work, work + n), *d = widened(g, g->d + at, work + n);
    char *const to = g->out + row * n * g->out_size;
    float *const out = g->out_format == MP_F32 ? (float *)to : work + 2 * n;
    mp_norm_row norm = {.x = x, .d = d, .gamma = g->gamma, .n = n, .epsilon = g->epsilon,
                        .is_centred = g->what == MP_LAYER_NORM_GRADIENT, .out = out,
                        .shares = g->shares ? g->shares + row * n : work + 3 * n};
    switch (g->what) {
    case MP_SOFTMAX_GRADIENT: kernels->softmax_gradient(x, d, n, g->scale, out); break;
    case MP_LOG_SOFTMAX_GRADIENT: kernels->log_softmax_gradient(x, d, n, out); break;
    case MP_LAYER_NORM_GRADIENT:
    case MP_RMS_NORM_GRADIENT: kernels->norm_gradient(&norm); break;
    }
    if (g->out_format != MP_F32) g->kernels->casts->narrow[g->out_format](out, to, n, 0);
}

void mp_run_row_gradients(void *call, ptrdiff_t task) {
    mp_row_gradient *g = call;
    const ptrdiff_t end = mp_min((task + 1) * g->share, g->rows);
    float *work = mp_scratch((size_t)(4 * g->length) * sizeof(float));
    if (!work) {
        mp_fail(&g->status, MP_NO_MEMORY);
        return;
    }
    for (ptrdiff_t row = task * g->share; row < end; row++) run_row(g, row, work);
}

int mp_row_gradients_are_large(const void *call) {
    const mp_row_gradient *g = call;
    return (double)g->rows * (double)g->length >= MP_ROWS_WORK;
}

ptrdiff_t mp_plan_row_gradients(void *call, ptrdiff_t rows, int threads, int reproducible) {
    mp_row_gradient *g = call;
    (void)reproducible;
    g->kernels = mp_active();
    if (rows >= 0) g->rows = rows;
    g->share = mp_share(g->rows, threads > 1 && mp_row_gradients_are_large(g) ? 4 * threads : 1, g->length);
    return mp_ceil_div(g->rows, g->share);
}
