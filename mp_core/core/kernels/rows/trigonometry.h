/* sin, cos, tan, atan, asin and acos, in float64 (doubles.h). Angles are reduced exactly enough for every float. */

/* Angles of a block: x = quadrants pi / 2 + rest, |rest| <= pi / 4, the quadrants modulo 2^52. */
typedef struct { double rest[MP_DOUBLES]; uint64_t quadrants[MP_DOUBLES]; } reduced_block;

/* For |x| < 2^21, the quadrants have at most 21 bits, and the upper part of pi / 2 has 31: their product is exact. */
MP_INLINE double reduced_angle(double x, uint64_t *quadrants) {
    const double shifted = x * 0x1.45f306dc9c883p-1 /* 2 / pi */ + 0x1.8p52, n = shifted - 0x1.8p52;
    *quadrants = bits_of(shifted);
    return (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34;
}

/* For finite |x| >= 2^21, x = m 2^e, e >= -2: Payne and Hanek's method. Of the product of the integer m with 2 / pi,
 * only the bits from 2^1 down to 2^-62 matter; 96 bits of 2 / pi, beginning at the bit of 2^(1 - e), give them. */
static __attribute__((noinline, cold)) double reduced_large_angle(float x, uint64_t *quadrants) {
    static const uint32_t two_over_pi[] = {0, /* then the bits after the point */
        0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu};
    uint32_t u, word[3];
    memcpy(&u, &x, sizeof u);
    const uint64_t m = (u & 0x7FFFFFu) | 0x800000u;
    const int e = (int)(u >> 23 & 255) - 150, first = (e + 30) / 32, shift = (e + 30) % 32;
    for (int i = 0; i < 3; i++) {
        const uint64_t two = (uint64_t)two_over_pi[first + i] << 32 | two_over_pi[first + i + 1];
        word[i] = (uint32_t)(two << shift >> 32);
    }
    const uint64_t product = (m * word[0] << 32) + m * word[1] + (m * word[2] >> 32);
    const uint64_t n = (product + ((uint64_t)1 << 61)) >> 62;
    const double rest = (double)(int64_t)(product - (n << 62)) * 0x1.921fb54442d18p-62;
    *quadrants = x < 0.0f ? -n : n;
    return x < 0.0f ? -rest : rest;
}

static __attribute__((noinline)) void reduce_block(const float *x, reduced_block *r) {
    uint32_t large = 0;
    for (int j = 0; j < MP_DOUBLES; j++) {
        uint32_t u;
        memcpy(&u, x + j, sizeof u);
        large |= (u & 0x7FFFFFFFu) >= 0x4A000000u; /* 2^21 */
        r->rest[j] = reduced_angle(x[j], r->quadrants + j);
    }
    for (int j = 0; j < MP_DOUBLES && large; j++)
        if (fabsf(x[j]) >= 0x1p21f && fabsf(x[j]) < INFINITY) r->rest[j] = reduced_large_angle(x[j], r->quadrants + j);
}

/* sin r and cos r, |r| <= pi / 4; relative errors 2^-37.5 and 2^-43. */
MP_INLINE double sine_of_rest(double r) {
    const double z = r * r;
    double p = 0x1.6cd1c6f6529a1p-19;
    p = p * z + -0x1.a00f7ead10a7cp-13;
    p = p * z + 0x1.1111086a30297p-7;
    p = p * z + -0x1.5555554c721bdp-3;
    return r * (p * z + 1.0);
}
MP_INLINE double cosine_of_rest(double r) {
    const double z = r * r;
    double p = -0x1.23c94ca671c0bp-22;
    p = p * z + 0x1.a00eb8afca673p-16;
    p = p * z + -0x1.6c16b347059edp-10;
    p = p * z + 0x1.55555545c2d27p-5;
    p = p * z + -0x1.ffffffffe9873p-2;
    return p * z + 1.0;
}

/* x if the number of quadrants is even, else y. */
MP_INLINE double by_quadrant(uint64_t quadrants, double x, double y) {
    const uint64_t odd = -(quadrants & 1);
    return double_of((bits_of(x) & ~odd) | (bits_of(y) & odd));
}
MP_INLINE double sin_of_reduced(double r, uint64_t quadrants) {
    const double y = by_quadrant(quadrants, sine_of_rest(r), cosine_of_rest(r));
    return double_of(bits_of(y) ^ (quadrants & 2) << 62);
}
MP_INLINE double cos_of_reduced(double r, uint64_t quadrants) { return sin_of_reduced(r, quadrants + 1); }
MP_INLINE double tan_of_reduced(double r, uint64_t quadrants) {
    const double s = sine_of_rest(r), c = cosine_of_rest(r);
    const double y = by_quadrant(quadrants, s, c) / by_quadrant(quadrants, c, s);
    return double_of(bits_of(y) ^ (quadrants & 1) << 63);
}

#define MP_PERIODIC_BLOCK(FUNCTION)                                                      \
    static __attribute__((noinline)) void FUNCTION##_block(const float *x, double *y) {  \
        reduced_block r;                                                                 \
        reduce_block(x, &r);                                                             \
        for (int j = 0; j < MP_DOUBLES; j++) y[j] = FUNCTION(r.rest[j], r.quadrants[j]); \
    }
MP_PERIODIC_BLOCK(sin_of_reduced)
MP_PERIODIC_BLOCK(cos_of_reduced)
MP_PERIODIC_BLOCK(tan_of_reduced)

/* atan x = atan a + atan z, z = (|x| - a) / (1 + a |x|), with a = 0, 1 or infinity so that |z| <= tan(pi / 8). atan z =
 * z (1 + w P(w)), w = z^2; relative error 2^-40. */
MP_INLINE double arctan_in_double(double x) {
    const double u = fabs(x), limit = 0x1.a827999fcef32p-2 /* tan(pi / 8) */, quarter = 0x1.921fb54442d18p-1;
    const double less = u - 1.0, more = u + 1.0, large = 1.0 / limit;
    const double over = u > large ? -1.0 : less, under = u > large ? u : more;
    const double angle = u > large ? 2.0 * quarter : quarter;
    const double z = (u > limit ? over : u) / (u > limit ? under : 1.0), w = z * z;
    double p = -0x1.36ac707eb708ep-5;
    p = p * w + 0x1.1e5c09c975bb9p-4;
    p = p * w + -0x1.7082a8ec2377fp-4;
    p = p * w + 0x1.c6d1e9f758b9cp-4;
    p = p * w + -0x1.2490c2f95a23ep-3;
    p = p * w + 0x1.999991fbc7b06p-3;
    p = p * w + -0x1.5555554eded74p-2;
    return copysign((u > limit ? angle : 0.0) + z * (p * w + 1.0), x);
}
MP_BLOCK(arctan_in_double)

/* asin x = atan(x / sqrt(1 - x^2)) and acos x = 2 atan(sqrt((1 - x) / (1 + x))); 1 - x and 1 + x are exact where they
 * are small. NaN beyond 1, where a root is that of a negative number. */
MP_INLINE double arcsin_in_double(double x) { return arctan_in_double(x / sqrt((1.0 - x) * (1.0 + x))); }
MP_BLOCK(arcsin_in_double)
MP_INLINE double arccos_in_double(double x) { return 2.0 * arctan_in_double(sqrt((1.0 - x) / (1.0 + x))); }
MP_BLOCK(arccos_in_double)
