/* A cast: how elements of one type become those of another, and where they lie. */
#ifndef MP_CAST_H
#define MP_CAST_H

#include "kernels.h"

MP_SHARED_BEGIN

enum {
    MP_F64 = MP_FORMATS,  /* the format of float64, a source only */
    MP_COPY = -1,         /* as src_format: elements are copied as they are */
    MP_CAST_CHUNK = 1024, /* elements that pass through a buffer on the stack at a time, of float64 too */
    /* Elements from which a second thread pays: a fraction of a millisecond of memory traffic. */
    MP_CAST_WORK = 1 << 18,
    /* Bytes of a result from which it is written by non-temporal stores: so large a result is taken to leave the caches
     * before it is read. A cast of 2^25 elements takes 0.6 of the time by these from float16 to float32, and 0.7 back
     * (one Zen 4 core with 32 MiB of L3, November 2026). */
    MP_STREAMED = MP_HAS(STREAMING_STORES) ? 1 << 24 : 1 << 30,
};

typedef struct {
    const mp_kernels *kernels;
    const char *src;
    char *dst;
    ptrdiff_t n, share; /* elements: all of them, and those of a task */
    int src_format, dst_format, src_size, dst_size;
    int mode;           /* flags of kernels.h: MP_SATURATE, MP_STREAM */
} mp_cast;

/* One task: a share of contiguous elements. Its context is the cast. */
void mp_cast_share(void *cast, ptrdiff_t index);

/* Share the elements out among threads where that pays; return the number of shares. */
ptrdiff_t mp_share_cast(mp_cast *c, int threads);

/* Cast all of c's elements, contiguous on both sides, on up to so many threads. */
void mp_run_cast(mp_cast *c, int threads);

/* Cast, or copy, n elements that lie so many bytes apart: gathered and scattered chunk by chunk where they are not
 * contiguous. */
void mp_cast_line(const mp_cast *c, const char *src, ptrdiff_t src_stride, char *dst, ptrdiff_t dst_stride,
                  ptrdiff_t n);

MP_SHARED_END
#endif
