#include "library/array_cast.h"

#include <string.h>

#include "library/runtime.h"

int mp_array_cast_is_large(const void *context) { return ((const mp_array_cast *)context)->cast.n >= MP_CAST_WORK; }

ptrdiff_t mp_plan_array_cast(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_array_cast *c = context;
    (void)reproducible;
    if (rows < 0) rows = c->rows;
    c->cast.kernels = mp_active(), c->cast.n = rows * c->row, c->cast.mode &= ~MP_STREAM;
    if (c->axes == 0) return mp_share_cast(&c->cast, threads);
    return c->axes == 1 ? 1 : rows;
}

/* The elements from `axis` on, line by line. */
static void run_lines(const mp_array_cast *c, const char *src, char *dst, int axis) {
    if (axis == c->axes - 1) {
        mp_cast_line(&c->cast, src, c->src_stride[axis], dst, c->dst_stride[axis], c->shape[axis]);
        return;
    }
    for (ptrdiff_t i = 0; i < c->shape[axis]; i++)
        run_lines(c, src + i * c->src_stride[axis], dst + i * c->dst_stride[axis], axis + 1);
}

void mp_run_array_cast(void *context, ptrdiff_t task) {
    mp_array_cast *c = context;
    if (c->axes == 0) mp_cast_share(&c->cast, task);
    else if (c->axes == 1) run_lines(c, c->cast.src, c->cast.dst, 0);
    else run_lines(c, c->cast.src + task * c->src_stride[0], c->cast.dst + task * c->dst_stride[0], 1);
}

int mp_fill_is_large(const void *context) {
    (void)context;
    return 0;
}

ptrdiff_t mp_plan_fill(void *context, ptrdiff_t rows, int threads, int reproducible) {
    (void)context, (void)rows, (void)threads, (void)reproducible;
    return 1;
}

void mp_run_fill(void *context, ptrdiff_t task) {
    const mp_fill *f = context;
    ptrdiff_t done = f->size;
    (void)task;
    memcpy(f->to, f->element, (size_t)f->size);
    for (ptrdiff_t more; done < f->bytes; done += more) { /* copy what is there behind it: twice as much each time */
        more = done < f->bytes - done ? done : f->bytes - done;
        memcpy(f->to + done, f->to, (size_t)more);
    }
}
