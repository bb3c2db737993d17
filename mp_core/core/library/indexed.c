#include "library/indexed.h"

#include <string.h>

#include "library/elementwise.h" /* formats of integers */
#include "library/plan.h"
#include "library/runtime.h"

int mp_indexed_is_large(const void *context) {
    const mp_indexed *t = context;
    double elements = 1;
    for (int axis = 0; axis < t->axes; axis++) elements *= (double)t->shape[axis];
    return elements >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_indexed(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_indexed *t = context;
    (void)reproducible;
    if (rows >= 0) t->shape[0] = rows;
    t->lines = 1;
    for (int axis = 0; axis < t->axes - 1; axis++) t->lines *= t->shape[axis];
    const int is_split = t->axes > 1 && (t->how == MP_READ || t->array_stride[0] != 0) && mp_indexed_is_large(t);
    const ptrdiff_t together = is_split && t->how != MP_READ ? t->lines / t->shape[0] : 1;
    t->share = is_split ? mp_ceil_div(t->lines / together, 4 * threads) * together : t->lines;
    return mp_ceil_div(t->lines, t->share);
}

static ptrdiff_t index_at(const mp_indexed *t, const char *at) {
    int64_t wide;
    int32_t narrow;
    if (t->index_bytes == 8) {
        memcpy(&wide, at, sizeof wide);
        return (ptrdiff_t)wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

/* Copy one element. */
static inline void copy(char *to, const char *from, int size) {
    switch (size) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, (size_t)size); break;
    }
}

#define COMBINE(FORMAT, TYPE, WRAPPING)                                                                     \
    case FORMAT: {                                                                                          \
        TYPE x, y;                                                                                          \
        memcpy(&x, to, sizeof x);                                                                           \
        memcpy(&y, from, sizeof y);                                                                         \
        if (how == MP_ADD_TO) x = (TYPE)((WRAPPING)x + (WRAPPING)y);                                        \
        else if (how == MP_MULTIPLY_BY) x = (TYPE)((WRAPPING)x * (WRAPPING)y);                              \
        else if (y != y || (how == MP_LARGEST_OF ? y > x : y < x)) x = y;                                   \
        memcpy(to, &x, sizeof x);                                                                           \
        break;                                                                                              \
    }

static void combine(mp_indexed_how how, int format, char *to, const char *from) {
    switch (format) {
        COMBINE(MP_F32, float, float)
        COMBINE(MP_F64, double, double)
        COMBINE(MP_I32, int32_t, uint32_t)
        COMBINE(MP_I64, int64_t, uint64_t)
    }
}

/* Run one line; return 0 if an index is out of range. */
static int run_line(const mp_indexed *t, const char *indices, char *array, char *other) {
    const int last = t->axes - 1;
    const ptrdiff_t n = t->shape[last], by = t->index_stride[last];
    const int is_block = by == 0 && t->array_stride[last] == t->size && t->other_stride[last] == t->size;
    ptrdiff_t place = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (i == 0 || by) {
            place = index_at(t, indices + i * by);
            if (place < 0) place += t->limit;
            if (place < 0 || place >= t->limit) return 0;
        }
        char *const at = array + i * t->array_stride[last] + place * t->step;
        char *const beside = other + i * t->other_stride[last];
        if (is_block && t->how <= MP_REPLACE) {
            memcpy(t->how == MP_READ ? beside : at, t->how == MP_READ ? at : beside, (size_t)(n * t->size));
            return 1;
        }
        if (t->how == MP_READ) copy(beside, at, t->size);
        else if (t->how == MP_REPLACE) copy(at, beside, t->size);
        else combine(t->how, t->format, at, beside);
    }
    return 1;
}

void mp_run_indexed(void *context, ptrdiff_t task) {
    mp_indexed *t = context;
    const ptrdiff_t end = mp_min((task + 1) * t->share, t->lines);
    for (ptrdiff_t line = task * t->share; line < end; line++) {
        const char *indices = t->indices;
        char *array = t->array, *other = t->other;
        for (ptrdiff_t axis = t->axes - 2, rest = line; axis >= 0; rest /= t->shape[axis--]) {
            const ptrdiff_t at = rest % t->shape[axis];
            indices += at * t->index_stride[axis], array += at * t->array_stride[axis];
            other += at * t->other_stride[axis];
        }
        if (!run_line(t, indices, array, other)) mp_fail(&t->status, MP_NO_ROW);
    }
}
