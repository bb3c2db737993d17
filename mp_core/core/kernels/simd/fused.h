/* Fused multiply-adds in double, where the CPU has none: a b is exact there (48 bits), a b + c is rounded to 53 bits, and
 * then to the 24 of float. docs/numerics.md ("Fused without FMA") proves that this second rounding goes wrong only if the
 * sum was inexact and lies, as a double, halfway between two floats. Such vectors are computed again, rounded to odd. */
typedef double d_f64 __attribute__((vector_size(32)));
typedef uint64_t d_u64 __attribute__((vector_size(32)));
typedef int64_t d_i64 __attribute__((vector_size(32)));

V int any_q(q_u32 m) {
#if defined(__SSE2__)
    return _mm_movemask_epi8((__m128i)m) != 0;
#else
    uint64_t half[2];
    memcpy(half, &m, sizeof half);
    return (half[0] | half[1]) != 0;
#endif
}
V int any_lane(vmask m) { return any_q((m.x[0] | m.x[1]) | (m.x[2] | m.x[3])); }

/* a b + c of every lane, rounded once. The error of the sum is exact (Knuth's two-sum); NaN where it is not finite. A
 * sum whose last bit is 0 is replaced by its neighbour on the side of the error, whose last bit is 1. */
V q_f32 q_fma_by_odd(q_f32 a, q_f32 b, q_f32 c) {
    const d_f64 p = __builtin_convertvector(a, d_f64) * __builtin_convertvector(b, d_f64);
    const d_f64 z = __builtin_convertvector(c, d_f64), s = p + z;
    const d_f64 t = s - p, error = (p - (s - t)) + (z - t);
    const d_u64 inexact = (d_u64)(error < 0.0) | (d_u64)(error > 0.0), u = (d_u64)s;
    const d_u64 even = (u & 1) - 1, towards_0 = -(((d_u64)error ^ u) >> 63); /* all ones or all zeros */
    return __builtin_convertvector((d_f64)(u + (inexact & even & (towards_0 | 1))), q_f32);
}
static __attribute__((noinline, cold, unused)) void fma_by_odd(const vf32 *a, const vf32 *b, vf32 *c) {
    for (int i = 0; i < 4; i++) c->x[i] = q_fma_by_odd(a->x[i], b->x[i], c->x[i]);
}

/* Whether a lane of the low halves of 16 sums is 2^28 modulo 2^29: halfway between two normal floats. */
V q_u32 q_halfway(q_u32 low) { return (q_u32)(low << 3 == 0x80000000u); }

/* Whether 0 < |r| <= 2^-126: the sum lies where floats have fewer bits, so its halfway points have others. */
V q_u32 q_tiny(q_f32 r) { return (q_u32)(((q_u32)r << 1) - 1 < 0x01000000u); }

/* Lanes of which one may have 28 low bits that are zero; none has if no lane is marked. (Of four vectors at once the
 * least of each byte is looked at: then bytes of several lanes may add up to such bits, which costs the time of a test.) */
V q_u32 q_round(q_u32 x, q_u32 y, q_u32 z, q_u32 w) {
#if defined(__SSE2__)
    const __m128i least = _mm_min_epu8(_mm_min_epu8((__m128i)x, (__m128i)y), _mm_min_epu8((__m128i)z, (__m128i)w));
    return (q_u32)((q_u32)least << 4 == 0);
#else
    return (q_u32)(x << 4 == 0) | (q_u32)(y << 4 == 0) | (q_u32)(z << 4 == 0) | (q_u32)(w << 4 == 0);
#endif
}

#define MP_WIDE_SUM(I) \
    const d_f64 s##I = __builtin_convertvector(a.x[I], d_f64) * __builtin_convertvector(b.x[I], d_f64) + \
                       __builtin_convertvector(c.x[I], d_f64); \
    const q_f32 r##I = __builtin_convertvector(s##I, q_f32); \
    const q_u32 low##I = __builtin_convertvector((d_u64)s##I, q_u32)
V vf32 fma_f32(vf32 a, vf32 b, vf32 c) {
    MP_WIDE_SUM(0);
    MP_WIDE_SUM(1);
    MP_WIDE_SUM(2);
    MP_WIDE_SUM(3);
    vf32 r = {{r0, r1, r2, r3}};
    if (__builtin_expect(any_q(q_round(low0, low1, low2, low3)), 0)) {
        const q_u32 halfway = q_halfway(low0) | q_halfway(low1) | q_halfway(low2) | q_halfway(low3);
        if (__builtin_expect(any_q(halfway | q_tiny(r0) | q_tiny(r1) | q_tiny(r2) | q_tiny(r3)), 0)) {
            const vf32 x = a, y = b;
            r = c;
            fma_by_odd(&x, &y, &r);
        }
    }
    return r;
}
