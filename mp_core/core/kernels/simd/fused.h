/* Fused multiply-adds for CPUs without FMA. docs/numerics.md ("Fused without FMA") has the proofs. */
typedef double q_f64 __attribute__((vector_size(16)));
typedef uint64_t q_u64 __attribute__((vector_size(16)));

MP_INLINE int any_q(q_u32 m) {
#if defined(__SSE2__)
    return _mm_movemask_epi8((__m128i)m) != 0;
#else
    uint64_t half[2];
    memcpy(half, &m, sizeof half);
    return (half[0] | half[1]) != 0;
#endif
}
MP_INLINE int any_lane(vmask m) { return any_q((m.x[0] | m.x[1]) | (m.x[2] | m.x[3])); }

#if defined(__SSE2__)
MP_INLINE q_f64 q_lower(q_f32 x) { return (q_f64)_mm_cvtps_pd((__m128)x); }
MP_INLINE q_f64 q_upper(q_f32 x) { return (q_f64)_mm_cvtps_pd((__m128)_mm_shuffle_epi32((__m128i)x, 0xEE)); }
MP_INLINE q_f32 q_rounded(q_f64 lower, q_f64 upper) {
    return (q_f32)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)lower), _mm_cvtpd_ps((__m128d)upper));
}
#else
MP_INLINE q_f64 q_lower(q_f32 x) { return (q_f64){x[0], x[1]}; }
MP_INLINE q_f64 q_upper(q_f32 x) { return (q_f64){x[2], x[3]}; }
MP_INLINE q_f32 q_rounded(q_f64 lower, q_f64 upper) {
    return (q_f32){(float)lower[0], (float)lower[1], (float)upper[0], (float)upper[1]};
}
#endif

/* The lower 32 bits of four doubles. */
MP_INLINE q_u32 q_low_bits(q_f64 lower, q_f64 upper) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return MP_EVEN_LANES((q_u32)lower, (q_u32)upper);
#else
    return MP_ODD_LANES((q_u32)lower, (q_u32)upper);
#endif
}

/* p + c, rounded to odd: a sum that is inexact and whose last bit is 0 is replaced by the next number on the side of
 * the error. Knuth's two-sum computes the error exactly. (If the sum is not finite, the error is NaN, and the sum
 * stays.) */
MP_INLINE q_f64 q_add_to_odd(q_f64 p, q_f64 c) {
    const q_f64 s = p + c, t = s - p, error = (p - (s - t)) + (c - t);
    const q_u64 u = (q_u64)s, inexact = (q_u64)(error < 0.0) | (q_u64)(error > 0.0);
    const q_u64 even = (u & 1) - 1, opposite = -(((q_u64)error ^ u) >> 63); /* all ones or all zeros */
    return (q_f64)(u + (inexact & even & (opposite | 1)));
}

/* Set every lane of *z to x y + z. Most sums of callers are exact in double, and need no more work. */
static __attribute__((noinline, cold, unused)) void fma_by_odd(const vf32 *x, const vf32 *y, vf32 *z) {
    q_f64 p[8], c[8];
    q_u64 inexact = {0, 0};
    for (int i = 0; i < 4; i++) {
        p[2 * i] = q_lower(x->x[i]) * q_lower(y->x[i]), p[2 * i + 1] = q_upper(x->x[i]) * q_upper(y->x[i]);
        c[2 * i] = q_lower(z->x[i]), c[2 * i + 1] = q_upper(z->x[i]);
    }
    for (int i = 0; i < 8; i++) {
        const q_f64 s = p[i] + c[i];
        inexact |= (q_u64)(s - c[i] != p[i]) | (q_u64)(s - p[i] != c[i]);
    }
    if (any_q((q_u32)inexact))
        for (int i = 0; i < 4; i++)
            z->x[i] = q_rounded(q_add_to_odd(p[2 * i], c[2 * i]), q_add_to_odd(p[2 * i + 1], c[2 * i + 1]));
    else
        for (int i = 0; i < 4; i++) z->x[i] = q_rounded(p[2 * i] + c[2 * i], p[2 * i + 1] + c[2 * i + 1]);
}

/* Marks lanes, the low halves of sums, that are 2^28 modulo 2^29: halfway between two normal floats. */
MP_INLINE q_u32 q_halfway(q_u32 low) { return (q_u32)(low << 3 == 0x80000000u); }

/* Marks 0 < |r| <= 2^-126: floats have fewer bits there, so that other doubles are halfway. */
MP_INLINE q_u32 q_tiny(q_f32 r) { return (q_u32)(((q_u32)r << 1) - 1 < 0x01000000u); }

/* Marks a lane if the 24 low bits of the same lane of x, y, z or w are zero, as in every halfway point of normal and of
 * tiny floats. With SSE2 the minimum is computed byte by byte, so that a lane may be marked although no single vector
 * has 24 zero bits there. Such a false mark only takes time. */
MP_INLINE q_u32 q_round(q_u32 x, q_u32 y, q_u32 z, q_u32 w) {
#if defined(__SSE2__)
    const __m128i least = _mm_min_epu8(_mm_min_epu8((__m128i)x, (__m128i)y), _mm_min_epu8((__m128i)z, (__m128i)w));
    return (q_u32)((q_u32)least << 8 == 0);
#else
    return (q_u32)(x << 8 == 0) | (q_u32)(y << 8 == 0) | (q_u32)(z << 8 == 0) | (q_u32)(w << 8 == 0);
#endif
}

/* Marks a lane if the upper byte of the same lane of one of the four vectors is 0 or 1. */
MP_INLINE q_u32 q_least_is_below_2(vu32 v) {
#if defined(__SSE2__)
    const __m128i lower = _mm_min_epu8((__m128i)v.x[0], (__m128i)v.x[1]),
                  upper = _mm_min_epu8((__m128i)v.x[2], (__m128i)v.x[3]);
    return (q_u32)((q_u32)_mm_min_epu8(lower, upper) >> 25 == 0);
#else
    return (q_u32)(v.x[0] >> 25 == 0) | (q_u32)(v.x[1] >> 25 == 0) | (q_u32)(v.x[2] >> 25 == 0)
           | (q_u32)(v.x[3] >> 25 == 0);
#endif
}

#define MP_FMA(I)                                                                                      \
    const q_f64 lower##I = q_lower(a.x[I]) * q_lower(b.x[I]) + q_lower(c.x[I]);                        \
    const q_f64 upper##I = q_upper(a.x[I]) * q_upper(b.x[I]) + q_upper(c.x[I]);                        \
    const q_f32 r##I = q_rounded(lower##I, upper##I);                                                  \
    const q_u32 low##I = q_low_bits(lower##I, upper##I);
MP_INLINE vf32 fma_f32(vf32 a, vf32 b, vf32 c) {
    MP_FMA(0) MP_FMA(1) MP_FMA(2) MP_FMA(3)
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
#undef MP_FMA

/* Replace subnormal lanes by zeros of the same sign, if the CPU does not do so itself (products.c sets this mode). */
MP_INLINE vf32 flush_lanes(vf32 x) {
#if !defined(__SSE__)
    const vu32 sign = set_u32(0x80000000u), u = as_u32(x);
    const vmask normal = gt_i32(and_u32(u, set_u32(0x7FFFFFFF)), set_u32(0x007FFFFF));
    x = as_f32(and_u32(u, or_u32(normal, sign)));
#endif
    return x;
}

/* a b + c of bf16 a and b, rounded once and flushed. A product of bf16 has 16 bits: it is exact in float if it is
 * normal, and zero if a factor is. Of products with exponent 0 or 255, only those in which no factor is zero need
 * doubles; they are rare. */
MP_INLINE vf32 add_product(vf32 a, vf32 b, vf32 c) {
    a = flush_lanes(a), b = flush_lanes(b), c = flush_lanes(c);
    const vf32 p = mul_f32(a, b);
    const vu32 next
        = add_u32(shl_u32(as_u32(p), 1), set_u32(0x01000000)); /* the exponent + 1, modulo 256, in bits 24 to 31 */
    if (__builtin_expect(any_q(q_least_is_below_2(next)), 0)) {
        const vmask extreme = lt_u32(next, set_u32(0x02000000));
        const vf32 zero = set_f32(0.0f);
        const vu32 factors = and_u32(ne_f32(a, zero), ne_f32(b, zero));
        if (__builtin_expect(any_lane(and_u32(extreme, factors)), 0)) {
            const vf32 x = a, y = b;
            fma_by_odd(&x, &y, &c);
            return flush_lanes(c);
        }
    }
    return flush_lanes(add_f32(p, c));
}

#define MP_NATIVE_DOT
MP_INLINE vf32 dot_bf16(vf32 acc, vu32 a, vu32 b) {
    const vu32 odd = set_u32(0xFFFF0000u);
    acc = add_product(as_f32(and_u32(a, odd)), as_f32(and_u32(b, odd)), acc);
    return add_product(as_f32(shl_u32(a, 16)), as_f32(shl_u32(b, 16)), acc);
}
