#include "library/rotary.h"

#include "library/elementwise.h"
#include "library/plan.h"
#include "library/runtime.h"

int mp_rotary_is_large(const void *context) {
    const mp_rotary *t = context;
    return (double)t->rows * (double)(2 * t->half * t->vectors) >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_rotary(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_rotary *t = context;
    (void)reproducible;
    t->kernels = mp_active();
    if (rows >= 0) t->rows = rows;
    t->share = mp_share(t->rows, threads == 1 || !mp_rotary_is_large(t) ? 1 : 4 * threads, 2 * t->half * t->vectors);
    return mp_ceil_div(t->rows, t->share);
}

/* Rotate the vectors of a row. `work` is a buffer for a row of x and of the result in float32; NULL if these are
 * float32. */
static void turn_row(const mp_rotary *t, ptrdiff_t row, ptrdiff_t position, float *work) {
    const ptrdiff_t n = 2 * t->half * t->vectors;
    char *out = t->out.data + row * t->out.stride;
    const char *x = t->x.data + row * t->x.stride;
    float *to = work ? work + n : (float *)out;
    if (work) t->kernels->casts->widen[t->x.format](x, work, n, 0);
    t->kernels->rows->turn(work ? work : (const float *)x, t->angles + position * 2 * t->half, t->half, t->vectors, to);
    if (work) t->kernels->casts->narrow[t->out.format](to, out, n, 0);
}

void mp_run_rotary(void *context, ptrdiff_t task) {
    mp_rotary *t = context;
    const ptrdiff_t end = mp_min((task + 1) * t->share, t->rows);
    const int is_wide = t->x.format == MP_F32;
    float *work = is_wide ? NULL : mp_scratch((size_t)(2 * 2 * t->half * t->vectors) * sizeof *work);
    if (!work && !is_wide) {
        mp_fail(&t->status, MP_NO_MEMORY);
        return;
    }
    ptrdiff_t sequence = 0;
    for (ptrdiff_t row = task * t->share; row < end; row++) {
        ptrdiff_t position = t->offsets ? 0 : row % t->length;
        if (t->offsets) {
            while (t->offsets[sequence + 1] <= row) sequence++;
            position = row - t->offsets[sequence];
            if (t->offsets[sequence + 1] - t->offsets[sequence] > t->few) position += t->few;
            if (t->past) position += t->past[sequence];
        }
        if (position >= t->positions) {
            mp_fail(&t->status, MP_NO_ROW);
            return;
        }
        turn_row(t, row, position, work);
    }
}
