#include "library/pair.h"

#include "library/cast.h"
#include "library/plan.h"
#include "library/runtime.h"

const float *mp_widened(const mp_kernels *kernels, int format, const char *at, ptrdiff_t n, float *buffer) {
    if (format == MP_F32) return (const float *)at;
    kernels->casts->widen[format](at, buffer, n, 0);
    return buffer;
}

ptrdiff_t mp_share_rows(ptrdiff_t rows, ptrdiff_t length, int threads) {
    if ((double)rows * (double)length < MP_PAIR_WORK || threads == 1) return rows;
    return mp_max(1, mp_ceil_div(rows, 4 * threads));
}

int mp_pair_is_large(const void *context) {
    const mp_pair *p = context;
    return (double)p->rows * (double)p->length >= MP_PAIR_WORK;
}

ptrdiff_t mp_plan_pair(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_pair *p = context;
    (void)reproducible;
    p->kernels = mp_active();
    if (rows >= 0) p->rows = rows;
    p->share = mp_share_rows(p->rows, p->length, threads);
    return mp_ceil_div(p->rows, p->share);
}

static void run_row(const mp_pair *p, ptrdiff_t row) {
    const mp_rows *const kernels = p->kernels->rows;
    mp_chunk_floats first, second;
    for (ptrdiff_t column = 0, n; column < p->length; column += n) {
        n = mp_min(p->length - column, MP_CAST_CHUNK);
        const char *x_at = p->x.data + row * p->x.stride + column * p->x.size;
        const char *y_at = p->y.data + row * p->y.stride + column * p->y.size;
        char *to = p->out.data + row * p->out.stride + column * p->out.size;
        const float *x = mp_widened(p->kernels, p->x.format, x_at, n, first.at);
        const float *y = mp_widened(p->kernels, p->y.format, y_at, n, second.at);
        if (p->activation != MP_LINEAR) {
            kernels->activate(p->activation, x, n, first.at);
            x = first.at;
        }
        if (p->out.format == MP_F32) {
            kernels->combine[p->how](x, y, n, (float *)to);
        } else {
            kernels->combine[p->how](x, y, n, first.at);
            p->kernels->casts->narrow[p->out.format](first.at, to, n, 0);
        }
    }
}

void mp_run_pair(void *context, ptrdiff_t task) {
    const mp_pair *p = context;
    const ptrdiff_t end = mp_min((task + 1) * p->share, p->rows);
    for (ptrdiff_t row = task * p->share; row < end; row++) run_row(p, row);
}
