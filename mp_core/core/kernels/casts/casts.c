/* Casts between the storage formats and f32: loops over arrays. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "casts/decode.h"
#include "casts/stochastic.h"

#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST)                  \
    static void widen_##FORMAT(const void *src, float *dst, ptrdiff_t n, int mode) {                               \
        const CODE *s = src;                                                                                       \
        ptrdiff_t i = 0;                                                                                           \
        if (mode & MP_STREAM) {                                                                                    \
            const ptrdiff_t head = unaligned_head(dst, sizeof *dst, n);                                            \
            widen_##FORMAT(s, dst, head, 0);                                                                       \
            for (i = head; i + MP_LANES <= n; i += MP_LANES) stream_f32(dst + i, LOAD(s + i));                     \
            stream_fence();                                                                                        \
        }                                                                                                          \
        MP_UNROLL_8 for (; i + MP_LANES <= n; i += MP_LANES) store_f32(dst + i, LOAD(s + i));                      \
        if (i < n) storen_f32(dst + i, TO_F32(LOADN(s + i, n - i)), n - i);                                        \
    }                                                                                                              \
    static void narrow_##FORMAT(const float *src, void *dst, ptrdiff_t n, int mode) {                              \
        CODE *d = dst;                                                                                             \
        const vf32 limit = set_f32(mode & MP_SATURATE ? LARGEST : INFINITY);                                       \
        ptrdiff_t i = 0;                                                                                           \
        if (mode & MP_SATURATE) {                                                                                  \
            for (; i + MP_LANES <= n; i += MP_LANES) STORE(d + i, FROM_F32(clamp_f32(load_f32(src + i), limit)));  \
        } else if (mode & MP_STREAM) {                                                                             \
            const ptrdiff_t head = unaligned_head(dst, sizeof *d, n);                                              \
            narrow_##FORMAT(src, d, head, 0);                                                                      \
            for (i = head; i + MP_LANES <= n; i += MP_LANES) STREAM(d + i, FROM_F32(load_f32(src + i)));           \
            stream_fence();                                                                                        \
        }                                                                                                          \
        MP_UNROLL_8 for (; i + MP_LANES <= n; i += MP_LANES) STORE(d + i, FROM_F32(load_f32(src + i)));            \
        if (i < n) STOREN(d + i, FROM_F32(clamp_f32(loadn_f32(src + i, n - i), limit)), n - i);                    \
    }
#include "formats.def"

/* Round f64 to f32, to odd: if x is not an f32, and the last bit of the nearest one is even, choose the f32 on the
 * other side of x. */
static void round_odd(const double *src, float *dst, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, src + i, sizeof x);
        const float nearest = (float)x;
        uint32_t u;
        memcpy(&u, &nearest, sizeof u);
        if ((double)nearest != x && x == x && !(u & 1)) {
            const int too_small = fabs((double)nearest) < fabs(x);
            u += too_small ? 1 : -1; /* the next float away from zero, or towards it */
        }
        memcpy(dst + i, &u, sizeof u);
    }
}

/* Make NaN quiet in a pair of bf16. NaN of pair_part_e4m3fn is always quiet; pair_part_e5m2 keeps signalling ones. */
MP_INLINE vu32 quiet_e4m3fn(vu32 pair) { return pair; }
MP_INLINE vu32 quiet_e5m2(vu32 pair) {
    const vu32 magnitude = set_u32(0x7FFF0000u), infinity = set_u32(0x7F800000u), none = set_u32(0);
    const vu32 first = select_u32(gt_i32(and_u32(shl_u32(pair, 16), magnitude), infinity), set_u32(0x40), none);
    const vu32 second = select_u32(gt_i32(and_u32(pair, magnitude), infinity), set_u32(0x400000u), none);
    return or_u32(pair, or_u32(first, second));
}

/* 8-bit floats to bf16, exactly, 32 at a time: 16 lanes of two bytes become 16 pairs of bf16, in the same order. */
#define MP_PAIR(FORMAT, AT) quiet_##FORMAT(pair_part_##FORMAT(load_u16_as_u32(AT), 0))
#define MP_TO_BF16(FORMAT)                                                                                       \
    static void to_bf16_##FORMAT(const void *src, void *dst, ptrdiff_t n) {                                      \
        const char *s = src;                                                                                     \
        char *d = dst;                                                                                           \
        for (; n >= 32; n -= 32, s += 32, d += 64) store_u32(d, MP_PAIR(FORMAT, s));                             \
        if (n == 0) return;                                                                                      \
        char codes[32] = {0}, halves[64];                                                                        \
        memcpy(codes, s, (size_t)n);                                                                             \
        store_u32(halves, MP_PAIR(FORMAT, codes));                                                               \
        memcpy(d, halves, (size_t)n * 2);                                                                        \
    }
MP_TO_BF16(e4m3fn)
MP_TO_BF16(e5m2)
#undef MP_TO_BF16
#undef MP_PAIR

/* Whether all elements are finite. They are widened to f32, which keeps Inf and NaN. Only Inf and NaN have bits without
 * the sign above 0x7F7FFFFF, the largest finite f32: then the sign bit of the difference, beyond_finite, is set. It is
 * tested after every 1024 elements, so that the loop ends early if there is an infinity. */
MP_INLINE vu32 beyond_finite(vf32 x) { return sub_u32(set_u32(0x7F7FFFFF), and_u32(as_u32(x), set_u32(0x7FFFFFFF))); }

MP_INLINE int any_sign(vu32 x) {
    uint32_t lane[MP_LANES], all = 0;
    store_u32(lane, x);
    for (int i = 0; i < MP_LANES; i++) all |= lane[i];
    return all >> 31;
}

#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST)                 \
    static int all_finite_##FORMAT(const void *x, ptrdiff_t n) {                                                   \
        const CODE *s = x;                                                                                         \
        for (ptrdiff_t i = 0; i < n;) {                                                                            \
            const ptrdiff_t end = i + at_most(n - i, 1024);                                                        \
            vu32 beyond = set_u32(0);                                                                              \
            for (; i + MP_LANES <= end; i += MP_LANES) beyond = or_u32(beyond, beyond_finite(LOAD(s + i)));        \
            if (i < end) beyond = or_u32(beyond, beyond_finite(TO_F32(LOADN(s + i, end - i))));                    \
            if (any_sign(beyond)) return 0;                                                                        \
            i = end;                                                                                               \
        }                                                                                                          \
        return 1;                                                                                                  \
    }
#include "formats.def"

extern const mp_casts MP_EXPORTED(casts);
const mp_casts MP_EXPORTED(casts) = {
#define MP_FLOAT(FORMAT, ...) \
    .widen[MP_##FORMAT] = widen_##FORMAT, .narrow[MP_##FORMAT] = narrow_##FORMAT, \
    .all_finite[MP_##FORMAT] = all_finite_##FORMAT,
#include "formats.def"
    .to_bf16 = {[MP_F8_E4M3FN] = to_bf16_e4m3fn, [MP_F8_E5M2] = to_bf16_e5m2},
    .stochastic = {[MP_F16] = stochastic_F16, [MP_BF16] = stochastic_BF16, [MP_F8_E4M3FN] = stochastic_F8_E4M3FN,
                   [MP_F8_E5M2] = stochastic_F8_E5M2},
    .round_odd = round_odd,
};
