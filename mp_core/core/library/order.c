#include "library/order.h"

#include <string.h>

#include "library/numbers.h"
#include "library/plan.h"
#include "library/runtime.h"

enum { ORDER_WORK = 1 << 14 }; /* elements from which a second thread pays: sorting takes 20 times as long as copying */

int mp_order_is_large(const void *context) {
    const mp_order *s = context;
    return (double)s->outer * (double)s->n * (double)s->inner >= ORDER_WORK;
}

ptrdiff_t mp_plan_order(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_order *s = context;
    (void)reproducible;
    s->kernels = mp_active();
    if (rows >= 0) s->outer = rows;
    const ptrdiff_t columns = s->outer * s->inner;
    s->share = mp_order_is_large(s) ? mp_ceil_div(columns, 4 * threads) : columns;
    return mp_ceil_div(columns, s->share);
}

/* The bits of a number as an integer of the same order; NaN is the largest, and -0 is 0 unless zeros are split. */
static int64_t key_of_double(double x, int splits_zeros) {
    int64_t bits;
    if (x != x) return INT64_MAX;
    if (x == 0.0 && !splits_zeros) return 0;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? bits ^ INT64_MAX : bits;
}

/* Write keys: the elements in ascending order of keys are in the wanted order. */
static void find_keys(const mp_order *s, const char *x, int64_t *keys) {
    const ptrdiff_t stride = s->inner * s->size;
    mp_wide_chunk chunk;
    for (ptrdiff_t first = 0; first < s->n; first += MP_WIDE_CHUNK) {
        const ptrdiff_t count = mp_min(s->n - first, MP_WIDE_CHUNK);
        mp_load_wide(s->kernels, s->wide, s->format, x + first * stride, stride, count, &chunk);
        for (ptrdiff_t i = 0; i < count; i++) {
            int64_t key = chunk.i[i];
            if (s->wide == MP_UNSIGNED) key ^= INT64_MIN;
            if (s->wide == MP_DOUBLE) key = key_of_double(chunk.d[i], s->extreme);
            if (s->descending) key = ~key;
            else if (s->extreme && s->wide == MP_DOUBLE && key == INT64_MAX) key = INT64_MIN; /* NaN */
            keys[first + i] = key;
        }
    }
}

static int32_t first_of(const int64_t *keys, ptrdiff_t n) {
    ptrdiff_t best = 0;
    for (ptrdiff_t i = 1; i < n; i++)
        if (keys[i] < keys[best]) best = i;
    return (int32_t)best;
}

/* Merge the places from[first .. middle) and from[middle .. end), each sorted by keys. */
static void merge(const int64_t *keys, const int32_t *from, ptrdiff_t first, ptrdiff_t middle, ptrdiff_t end,
                  int32_t *to) {
    ptrdiff_t left = first, right = middle;
    for (ptrdiff_t i = first; i < end; i++) {
        const int is_left = left < middle && (right == end || keys[from[left]] <= keys[from[right]]);
        to[i] = is_left ? from[left++] : from[right++];
    }
}

/* Sort places by their keys, stably; return the one of both buffers of n places that has the result. */
static const int32_t *sort(const int64_t *keys, ptrdiff_t n, int32_t *places, int32_t *buffer) {
    for (ptrdiff_t i = 0; i < n; i++) places[i] = (int32_t)i;
    for (ptrdiff_t width = 1; width < n; width *= 2) {
        for (ptrdiff_t first = 0; first < n; first += 2 * width)
            merge(keys, places, first, mp_min(first + width, n), mp_min(first + 2 * width, n), buffer);
        int32_t *const sorted = buffer;
        buffer = places, places = sorted;
    }
    return places;
}

void mp_run_order(void *context, ptrdiff_t task) {
    mp_order *s = context;
    const ptrdiff_t end = mp_min((task + 1) * s->share, s->outer * s->inner);
    int64_t *const keys = mp_scratch((size_t)s->n * (sizeof *keys + 2 * sizeof(int32_t)));
    if (!keys) {
        mp_fail(&s->status, MP_NO_MEMORY);
        return;
    }
    int32_t *const places = (int32_t *)(keys + s->n);
    for (ptrdiff_t column = task * s->share; column < end; column++) {
        const ptrdiff_t outer = column / s->inner, inner = column % s->inner;
        int32_t *const out = s->out + outer * s->k * s->inner + inner;
        find_keys(s, s->x + (outer * s->n * s->inner + inner) * s->size, keys);
        if (s->extreme) {
            *out = first_of(keys, s->n);
            continue;
        }
        const int32_t *sorted = sort(keys, s->n, places, places + s->n);
        for (ptrdiff_t i = 0; i < s->k; i++) out[i * s->inner] = sorted[i];
    }
}
