#include "library/windows.h"

#include <stdlib.h>

#include "library/elementwise.h"
#include "library/plan.h"
#include "library/runtime.h"

void mp_join_windows(mp_windows *w) {
    while (w->axes > 2 && w->stride[w->axes - 2] == w->stride[w->axes - 1] * w->shape[w->axes - 1]) {
        w->axes--;
        w->shape[w->axes - 1] *= w->shape[w->axes];
        w->stride[w->axes - 1] = w->stride[w->axes];
    }
}

static ptrdiff_t elements_of_row(const mp_windows *w) {
    ptrdiff_t elements = 1;
    for (int axis = 1; axis < w->axes; axis++) elements *= w->shape[axis];
    return elements;
}

int mp_windows_are_large(const void *context) {
    const mp_windows *w = context;
    return (double)w->shape[0] * (double)elements_of_row(w) >= MP_ELEMENTWISE_WORK;
}

/* Whether indices of the first axis write different elements. */
static int rows_are_apart(const mp_windows *w) {
    ptrdiff_t reach = 0;
    for (int axis = 1; axis < w->axes; axis++) reach += (w->shape[axis] - 1) * llabs(w->stride[axis]);
    return llabs(w->stride[0]) > reach;
}

ptrdiff_t mp_plan_windows(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_windows *w = context;
    (void)threads, (void)reproducible;
    w->kernels = mp_active();
    if (rows >= 0) w->shape[0] = rows;
    return rows_are_apart(w) ? w->shape[0] : 1;
}

/* Add a line of n elements. `work` is a buffer for a line in float32. */
static void add_line(const mp_windows *w, const char *x, ptrdiff_t n, char *to, float *work) {
    const ptrdiff_t stride = w->stride[w->axes - 1];
    const float *line = (const float *)x;
    if (w->format != MP_F32) {
        w->kernels->casts->widen[w->format](x, work, n, 0);
        line = work;
    }
    if (stride == sizeof(float)) w->kernels->rows->functions[MP_ADD]((float *)to, line, n, (float *)to);
    else for (ptrdiff_t i = 0; i < n; i++, to += stride) *(float *)to += line[i];
}

/* Add the elements of the axes from `axis` on; return the address after them in x. */
static const char *add_from(const mp_windows *w, const char *x, char *to, int axis, float *work) {
    if (axis == w->axes - 1) {
        add_line(w, x, w->shape[axis], to, work);
        return x + w->shape[axis] * w->size;
    }
    for (ptrdiff_t i = 0; i < w->shape[axis]; i++) x = add_from(w, x, to + i * w->stride[axis], axis + 1, work);
    return x;
}

void mp_run_windows(void *context, ptrdiff_t task) {
    mp_windows *w = context;
    float *work = NULL;
    if (w->format != MP_F32) {
        work = mp_scratch((size_t)w->shape[w->axes - 1] * sizeof *work);
        if (!work) {
            mp_fail(&w->status, MP_NO_MEMORY);
            return;
        }
    }
    if (!rows_are_apart(w)) add_from(w, w->x, (char *)w->to, 0, work);
    else if (w->axes == 1) add_line(w, w->x + task * w->size, 1, (char *)w->to + task * w->stride[0], work);
    else add_from(w, w->x + task * elements_of_row(w) * w->size, (char *)w->to + task * w->stride[0], 1, work);
}
