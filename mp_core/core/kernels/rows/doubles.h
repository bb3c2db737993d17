/* Functions computed in float64, in additions, multiplications and divisions that are rounded one by one: C without
 * intrinsics, which the compiler makes vectors of, with the same bits on every instruction set. Their polynomials have
 * relative errors below 2^-37, so that the rounding to float32 decides almost alone. */

#define MP_DOUBLES 32 /* elements that are computed together; a whole number of vectors of every set */

MP_INLINE uint64_t bits_of(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
MP_INLINE double double_of(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* y as a float from which 16 or 8 bits are rounded correctly. The nearest float will do, unless it lies halfway between
 * two numbers of such a type. Then, if y differs from it by more than the error of polynomials, the next float on the
 * side of y is taken, which is less than 1 ULP away from y. */
static __attribute__((noinline, cold)) float rounded_beside_tie(double y) {
    float nearest = (float)y;
    const double size = fabs((double)nearest), above = fabs(y) - size, most = size * 0x1p-36;
    uint32_t u;
    memcpy(&u, &nearest, sizeof u);
    u += (uint32_t)(above > most) - (uint32_t)(above < -most);
    memcpy(&nearest, &u, sizeof u);
    return nearest;
}

/* Not 0 if the float with these bits may lie halfway between two numbers of 16 or 8 bits: then its last 12 bits are 0,
 * and not all 23 are. */
MP_INLINE uint32_t may_be_tie(uint32_t u) { return ((u & 0xFFFu) - 1) >> 31 ? u & 0x7FF000u : 0; }

/* Load n elements, at most MP_DOUBLES, and bound their magnitudes; the rest are 0, and NaN stays. */
MP_INLINE void load_block(const float *x, ptrdiff_t n, float bound, float *block) {
    for (ptrdiff_t i = 0; i < MP_DOUBLES; i += MP_LANES) {
        const vf32 v = i + MP_LANES <= n ? load_f32(x + i) : i < n ? loadn_f32(x + i, n - i) : set_f32(0.0f);
        store_f32(block + i, min_f32(set_f32(bound), max_f32(set_f32(-bound), v)));
    }
}

MP_INLINE void store_block(const float *block, ptrdiff_t n, float *out) {
    for (ptrdiff_t i = 0; i < MP_DOUBLES && i < n; i += MP_LANES) {
        if (i + MP_LANES <= n) store_f32(out + i, load_f32(block + i));
        else storen_f32(out + i, load_f32(block + i), n - i);
    }
}

/* Round a block, and store n elements, at most MP_DOUBLES. */
static __attribute__((noinline)) void round_block(const double *y, ptrdiff_t n, float *out) {
    float block[MP_DOUBLES];
    uint32_t ties = 0;
    for (int j = 0; j < MP_DOUBLES; j++) block[j] = (float)y[j];
    for (int j = 0; j < MP_DOUBLES; j++) {
        uint32_t u;
        memcpy(&u, block + j, sizeof u);
        ties |= may_be_tie(u);
    }
    for (int j = 0; j < MP_DOUBLES && ties; j++) {
        uint32_t u;
        memcpy(&u, block + j, sizeof u);
        if (may_be_tie(u)) block[j] = rounded_beside_tie(y[j]);
    }
    store_block(block, n, out);
}

/* Define FUNCTION##_block, which computes a block: y[j] = FUNCTION(x[j]). */
#define MP_BLOCK(FUNCTION)                                                              \
    static __attribute__((noinline)) void FUNCTION##_block(const float *x, double *y) { \
        for (int j = 0; j < MP_DOUBLES; j++) y[j] = FUNCTION(x[j]);                     \
    }

/* The functions of kernels/functions.def that are computed in float64, for rows. */
#define MP_IN_DOUBLE(NAME, WORD, FUNCTION, BOUND)                                         \
    static void NAME##_of_rows(const float *x, const float *y, ptrdiff_t n, float *out) { \
        (void)y;                                                                          \
        for (ptrdiff_t i = 0; i < n; i += MP_DOUBLES) {                                   \
            float block[MP_DOUBLES];                                                      \
            double result[MP_DOUBLES];                                                    \
            load_block(x + i, n - i, BOUND, block);                                       \
            FUNCTION##_block(block, result);                                              \
            round_block(result, n - i, out + i);                                          \
        }                                                                                 \
    }
