#include "library/array_cast.h"

#include <string.h>

#include "library/runtime.h"

enum { SHORT_LINE = 8 }; /* elements */

int mp_array_cast_is_large(const void *context) { return ((const mp_array_cast *)context)->cast.n >= MP_CAST_WORK; }

void mp_join_cast_axes(mp_array_cast *c) {
    int count = 1;
    for (int axis = 1; axis < c->axes; axis++) {
        if (c->shape[axis] == 1) continue;
        const int is_joined = count > 1 && c->src_stride[count - 1] == c->src_stride[axis] * c->shape[axis]
                              && c->dst_stride[count - 1] == c->dst_stride[axis] * c->shape[axis];
        count -= is_joined;
        c->shape[count] = is_joined ? c->shape[count] * c->shape[axis] : c->shape[axis];
        c->src_stride[count] = c->src_stride[axis], c->dst_stride[count] = c->dst_stride[axis];
        count++;
    }
    c->axes = count;
}

ptrdiff_t mp_plan_array_cast(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_array_cast *c = context;
    (void)reproducible;
    if (rows < 0) rows = c->rows;
    c->cast.kernels = mp_active(), c->cast.n = rows * c->row, c->cast.mode &= ~MP_STREAM;
    if (c->axes == 0) return mp_share_cast(&c->cast, threads);
    c->shape[0] = rows;
    return c->axes == 1 ? 1 : rows;
}

/* Copy `count` contiguous lines. Windows of images with few channels have very short ones. */
static void copy_lines(const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride, ptrdiff_t count,
                       ptrdiff_t bytes) {
    if (bytes > MP_SHORT_COPY)
        for (ptrdiff_t i = 0; i < count; i++) memcpy(dst + i * dst_stride, src + i * src_stride, (size_t)bytes);
    else
        for (ptrdiff_t i = 0; i < count; i++) mp_copy_short(src + i * src_stride, dst + i * dst_stride, bytes);
}

/* Cast the elements of the axes from `axis` on, line by line. Lines of few elements, such as the channels of an image,
 * are cast along the axis before the last one. */
static void run_lines(const mp_array_cast *c, const char *src, char *dst, int axis) {
    const int last = c->axes - 1;
    const ptrdiff_t size = c->cast.src_size;
    const int is_contiguous = c->src_stride[last] == size && c->dst_stride[last] == size;
    if (axis == last - 1 && c->cast.src_format == MP_COPY && is_contiguous) {
        copy_lines(src, c->src_stride[axis], dst, c->dst_stride[axis], c->shape[axis], c->shape[last] * size);
        return;
    }
    if (axis == last) {
        mp_cast_line(&c->cast, src, c->src_stride[axis], dst, c->dst_stride[axis], c->shape[axis]);
        return;
    }
    if (axis == last - 1 && c->shape[last] <= SHORT_LINE && c->shape[axis] > c->shape[last]) {
        for (ptrdiff_t i = 0; i < c->shape[last]; i++)
            mp_cast_line(&c->cast, src + i * c->src_stride[last], c->src_stride[axis], dst + i * c->dst_stride[last],
                         c->dst_stride[axis], c->shape[axis]);
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
    for (ptrdiff_t more; done < f->bytes; done += more) { /* double the elements that are set */
        more = done < f->bytes - done ? done : f->bytes - done;
        memcpy(f->to + done, f->to, (size_t)more);
    }
}
