/* Casts of contiguous elements from one type to another. */
#ifndef MP_CAST_H
#define MP_CAST_H

#include <string.h>

#include "kernels.h"

MP_SHARED_BEGIN

enum {
    MP_F64 = MP_FORMATS,  /* the format of float64: only a src_format */
    MP_COPY = -1,         /* as src_format: copy the bytes of the elements */
    MP_CAST_CHUNK = 1024, /* elements in a buffer on the stack */
    /* The fewest elements for which a second thread pays: a fraction of a millisecond of memory traffic. */
    MP_CAST_WORK = 1 << 18,
    /* The fewest bytes of a result that is written by non-temporal stores: it would leave the caches before it is read
     * anyway. So a cast of 2^25 elements from float16 to float32 takes 0.6 of the time, and the cast back 0.7 (one
     * Zen 4 core with 32 MiB of L3, November 2026). */
    MP_STREAMED = MP_HAS(STREAMING_STORES) ? 1 << 24 : 1 << 30,
};

typedef struct {
    const mp_kernels *kernels;
    const char *src;
    char *dst;
    ptrdiff_t n, share; /* elements in all; elements in a task */
    int src_format, dst_format, src_size, dst_size;
    int mode;           /* flags of kernels.h: MP_SATURATE, MP_STREAM */
} mp_cast;

enum { MP_SHORT_COPY = 128 }; /* bytes up to which mp_copy_short is faster than memcpy */

/* Copy bytes without calling memcpy: pieces of 16 bytes, of which the last ones may overlap. */
static inline void mp_copy_short(const char *src, char *dst, ptrdiff_t bytes) {
    for (; bytes > 32; src += 16, dst += 16, bytes -= 16) memcpy(dst, src, 16);
#define COPY_ENDS(SIZE) memcpy(dst, src, SIZE), memcpy(dst + bytes - SIZE, src + bytes - SIZE, SIZE)
    if (bytes >= 16) COPY_ENDS(16);
    else if (bytes >= 8) COPY_ENDS(8);
    else if (bytes >= 4) COPY_ENDS(4);
    else for (ptrdiff_t i = 0; i < bytes; i++) dst[i] = src[i];
#undef COPY_ENDS
}

/* Run a task: cast a share of the elements. */
void mp_cast_share(void *cast, ptrdiff_t index);

/* Set the size of a task, for several threads if that pays; return the number of tasks. */
ptrdiff_t mp_share_cast(mp_cast *c, int threads);

/* Cast all elements, contiguous on both sides, on up to `threads` threads. */
void mp_run_cast(mp_cast *c, int threads);

/* Cast or copy n elements whose strides are in bytes. If they are not contiguous, chunks of them are gathered and
 * scattered. */
void mp_cast_line(const mp_cast *c, const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride,
                  ptrdiff_t n);

MP_SHARED_END
#endif
