#include "library/rows.h"

#include "library/plan.h"
#include "library/runtime.h"
#include "library/tables.h"

/* The mask of a row, or NULL. */
static const uint8_t *kept(const mp_mask *m, ptrdiff_t row) {
    const uint8_t *at = m->keep;
    for (int axis = m->axes - 1; at && axis >= 0; axis--) {
        at += row % m->shape[axis] * m->stride[axis];
        row /= m->shape[axis];
    }
    return at;
}

/* Compute the softmax of the next rows, up to b->rows: as many as have masks with a constant stride. */
static void run_softmax(const mp_row_call *r, mp_row_block *b, ptrdiff_t row) {
    const mp_mask *m = &r->mask;
    ptrdiff_t stride = 0;
    if (m->keep && m->axes > 0) {
        stride = m->stride[m->axes - 1];
        b->rows = mp_min(b->rows, m->shape[m->axes - 1] - row % m->shape[m->axes - 1]);
    }
    r->kernels->rows->softmax(b, kept(m, row), stride, r->scale);
}

static void run_activation(const mp_row_call *r, mp_row_block *b) {
    if (b->ldx != b->n || b->ldo != b->n) b->rows = 1;
    const ptrdiff_t n = b->rows * b->n;
    const float *x = b->x;
    const uint16_t *table = mp_table_of_activation(r->activation, r->format);
    if (table) {
        mp_map(table, b->x, 2, n, b->out);
        return;
    }
    if (r->format != MP_F32) {
        r->kernels->casts->widen[r->format](b->x, b->work, n, 0);
        x = b->work;
    }
    r->kernels->rows->activate(r->activation, x, n, b->work);
    if (r->format != MP_F32) r->kernels->casts->narrow[r->format](b->work, b->out, n, 0);
}

/* Run a task, some rows at a time. Between the passes over rows of narrow types their float32 is in scratch; rows of
 * float32 use the result. */
void mp_run_rows(void *call, ptrdiff_t task) {
    mp_row_call *r = call;
    const mp_format format = (mp_format)r->format;
    const ptrdiff_t end = mp_min((task + 1) * r->share, r->rows), together = mp_rows_together(r->length);
    float *work = format == MP_F32 ? NULL : mp_scratch((size_t)(together * r->length) * sizeof(float));
    if (format != MP_F32 && !work) {
        mp_fail(&r->status, MP_NO_MEMORY);
        return;
    }
    mp_row_block b = {.n = r->length, .ldx = r->ldx, .ldw = work ? r->length : r->ldo, .ldo = r->ldo,
                      .x_format = format, .out_format = format};
    for (ptrdiff_t row = task * r->share; row < end; row += b.rows) {
        const ptrdiff_t at = row * r->ldx * r->size;
        b.rows = mp_min(end - row, together);
        b.x = r->x + at, b.out = r->out + row * r->ldo * r->size;
        b.work = work ? work : b.out;
        switch (r->what) {
        case MP_SOFTMAX: run_softmax(r, &b, row); break;
        case MP_ACTIVATE: run_activation(r, &b); break;
        case MP_LOG_SOFTMAX: r->kernels->rows->log_softmax(&b); break;
        case MP_RMS_NORM: r->kernels->rows->rms_norm(&b, r->gamma, r->epsilon); break;
        case MP_LAYER_NORM:
            r->kernels->rows->layer_norm(&b, r->residual ? r->residual + at : NULL, r->gamma, r->beta, r->epsilon);
            break;
        }
    }
}

int mp_rows_are_large(const void *call) {
    const mp_row_call *r = call;
    return (double)r->rows * (double)r->length >= MP_ROWS_WORK;
}

ptrdiff_t mp_plan_rows(void *call, ptrdiff_t rows, int threads, int reproducible) {
    mp_row_call *r = call;
    (void)reproducible;
    r->kernels = mp_active();
    if (rows >= 0) r->rows = rows;
    r->share = mp_share(r->rows, threads > 1 && mp_rows_are_large(r) ? 4 * threads : 1, r->length);
    return mp_ceil_div(r->rows, r->share);
}
