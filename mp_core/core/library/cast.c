/* Casts between float formats: loops around the kernels. */
#include <string.h>

#include "library/cast.h"
#include "library/plan.h"
#include "library/runtime.h"

/* Cast n contiguous elements: directly if one type is float32, else through chunks of float32. Both round once. */
static void run_contiguous(const mp_cast *c, const char *src, char *dst, ptrdiff_t n) {
    const mp_casts *casts = c->kernels->casts;
    const int saturates = c->mode & MP_SATURATE;
    mp_chunk_floats buffer;
    if (c->src_format == MP_F32) {
        casts->narrow[c->dst_format]((const float *)src, dst, n, c->mode);
        return;
    }
    if (c->dst_format == MP_F32 && c->src_format != MP_F64 && !saturates) {
        casts->widen[c->src_format](src, (float *)dst, n, c->mode);
        return;
    }
    if (c->dst_format == MP_BF16 && (c->src_format == MP_F8_E4M3FN || c->src_format == MP_F8_E5M2) && !saturates) {
        casts->to_bf16[c->src_format](src, dst, n);
        return;
    }
    for (ptrdiff_t i = 0, count; i < n; i += count) {
        count = mp_min(n - i, MP_CAST_CHUNK);
        if (c->src_format == MP_F64) casts->round_odd((const double *)(src + i * c->src_size), buffer.at, count);
        else casts->widen[c->src_format](src + i * c->src_size, buffer.at, count, 0);
        casts->narrow[c->dst_format](buffer.at, dst + i * c->dst_size, count, saturates);
    }
}

/* Copy n elements of `size` bytes; strides are in bytes. Constant sizes need no calls of memcpy. */
static void copy_elements(const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride, ptrdiff_t n,
                          int size) {
#define COPY_EACH(SIZE) \
    for (ptrdiff_t i = 0; i < n; i++) memcpy(dst + i * dst_stride, src + i * src_stride, SIZE)
    if (size == 4) COPY_EACH(4);
    else if (size == 2) COPY_EACH(2);
    else COPY_EACH((size_t)size);
#undef COPY_EACH
}

static void run_strided(const mp_cast *c, const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride,
                        ptrdiff_t n) {
    char source[MP_CAST_CHUNK * 8], result[MP_CAST_CHUNK * 8];
    for (ptrdiff_t i = 0, count; i < n; i += count) {
        const char *at = src + i * src_stride;
        char *to = dst + i * dst_stride;
        count = mp_min(n - i, MP_CAST_CHUNK);
        if (src_stride != c->src_size) {
            copy_elements(at, src_stride, source, c->src_size, count, c->src_size);
            at = source;
        }
        if (dst_stride == c->dst_size) {
            run_contiguous(c, at, to, count);
        } else {
            run_contiguous(c, at, result, count);
            copy_elements(result, c->dst_size, to, dst_stride, count, c->dst_size);
        }
    }
}

void mp_cast_line(const mp_cast *c, const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride,
                  ptrdiff_t n) {
    const int contiguous = src_stride == c->src_size && dst_stride == c->dst_size;
    if (c->src_format == MP_COPY && contiguous) memcpy(dst, src, (size_t)(n * c->src_size));
    else if (c->src_format == MP_COPY) copy_elements(src, src_stride, dst, dst_stride, n, c->src_size);
    else if (contiguous) run_contiguous(c, src, dst, n);
    else run_strided(c, src, src_stride, dst, dst_stride, n);
}

void mp_cast_share(void *cast, ptrdiff_t index) {
    const mp_cast *c = cast;
    const ptrdiff_t first = index * c->share;
    run_contiguous(c, c->src + first * c->src_size, c->dst + first * c->dst_size, mp_min(c->share, c->n - first));
}

ptrdiff_t mp_share_cast(mp_cast *c, int threads) {
    if (c->n < MP_CAST_WORK) threads = 1;
    else if (c->n * c->dst_size >= MP_STREAMED) c->mode |= MP_STREAM;
    c->share = mp_round_up(mp_share(c->n, threads, 1), MP_CAST_CHUNK);
    return mp_ceil_div(c->n, c->share);
}

void mp_run_cast(mp_cast *c, int threads) {
    if (c->n < MP_CAST_WORK) run_contiguous(c, c->src, c->dst, c->n);
    else mp_parallel_for(threads, mp_share_cast(c, threads), mp_cast_share, c);
}
