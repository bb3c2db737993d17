/* Stochastic rounding of f32 to the narrow formats. A number between two neighbours of the format becomes the larger
 * magnitude with the probability f, its distance from the smaller magnitude in units of their distance.
 *
 * Let |x| = m 2^(e - 150) with the biased exponent e of x, where subnormal numbers have e = 1, and let E be the larger
 * one of e and of the exponent of the smallest normal number of the format. Then |x| in units of the format's last bit
 * is m / 2^cut, cut = E - e + 23 - mantissa, and its code is that number plus (E - lowest) << mantissa: the leading bit
 * of a normal number adds 1 << mantissa. We compute m / 2^cut with 32 bits after the binary point, add 32 random bits
 * to these, and drop them. If m / 2^cut needs more bits, those are cut, so f is rounded down to a multiple of 2^-32.
 *
 * bf16 has the exponents of f32: cut is always 16, so 16 random bits are exact, and the code is (bits + random) >> 16.
 *
 * These loops have no words of the vocabulary: it has no shift by a vector. Compilers vectorize them. */

/* A code above `largest` overflows. Then it is `beyond`: an infinity or NaN, or `largest` if casts saturate. */
typedef struct {
    uint32_t largest, beyond, nan;
} code_limits;

MP_INLINE uint32_t limited_code(uint32_t code, uint32_t u, code_limits limits, const int sign) {
    const uint32_t finite = code > limits.largest ? limits.beyond : code;
    return ((u & 0x7FFFFFFFu) > 0x7F800000u ? limits.nan : finite) | u >> 31 << sign;
}

MP_INLINE uint32_t stochastic_code(uint32_t u, uint32_t random, const int exponent, const int mantissa) {
    const uint32_t lowest = 129 - (1 << (exponent - 1)); /* the biased f32 exponent of the smallest normal number */
    const uint32_t t = u & 0x7FFFFFFFu, biased = t >> 23, e = biased > 1 ? biased : 1;
    const uint32_t highest = e > lowest ? e : lowest, cut = highest - e + 23 - mantissa;
    const uint64_t fixed = (uint64_t)(t - ((e - 1) << 23)) << 32 >> (cut < 63 ? cut : 63);
    return ((highest - lowest) << mantissa) + (uint32_t)((fixed + random) >> 32);
}

#define BITS_OF(X, U) memcpy(&U, &X, sizeof U)

/* Arguments: format, C type of a code, exponent and mantissa bits, largest code, code of overflow, code of NaN. */
#define MP_STOCHASTIC(FORMAT, CODE, EXPONENT, MANTISSA, LARGEST, BEYOND, NAN_CODE)                                 \
    static void stochastic_##FORMAT(const float *src, const void *random, void *dst, ptrdiff_t n, int mode) {      \
        const code_limits limits = {LARGEST, mode & MP_SATURATE ? LARGEST : BEYOND, NAN_CODE};                     \
        const uint32_t *restrict r = random;                                                                       \
        CODE *restrict d = dst;                                                                                    \
        for (ptrdiff_t i = 0; i < n; i++) {                                                                        \
            uint32_t u;                                                                                            \
            BITS_OF(src[i], u);                                                                                    \
            const uint32_t code = stochastic_code(u, r[i], EXPONENT, MANTISSA);                                    \
            d[i] = (CODE)limited_code(code, u, limits, EXPONENT + MANTISSA);                                       \
        }                                                                                                          \
    }
MP_STOCHASTIC(F16, uint16_t, 5, 10, 0x7BFF, 0x7C00, 0x7E00)
MP_STOCHASTIC(F8_E4M3FN, uint8_t, 4, 3, 0x7E, 0x7F, 0x7F)
MP_STOCHASTIC(F8_E5M2, uint8_t, 5, 2, 0x7B, 0x7C, 0x7E)

static void stochastic_BF16(const float *src, const void *random, void *dst, ptrdiff_t n, int mode) {
    const code_limits limits = {0x7F7F, mode & MP_SATURATE ? 0x7F7F : 0x7F80, 0x7FC0};
    const uint16_t *restrict r = random;
    uint16_t *restrict d = dst;
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t u;
        BITS_OF(src[i], u);
        d[i] = (uint16_t)limited_code(((u & 0x7FFFFFFFu) + r[i]) >> 16, u, limits, 15);
    }
}

#undef MP_STOCHASTIC
#undef BITS_OF
