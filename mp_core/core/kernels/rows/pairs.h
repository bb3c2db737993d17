/* Two rows element by element, and vectors that turn with their positions. */

/* The smaller and the larger number of two; NaN where one of them is NaN. If both are equal, their bits differ only in the
 * sign of zeros, of which the smaller one is -0. */
V vf32 smaller_f32(vf32 x, vf32 y) { return as_f32(or_u32(as_u32(min_f32(x, y)), as_u32(min_f32(y, x)))); }
V vf32 larger_f32(vf32 x, vf32 y) { return minus(smaller_f32(minus(x), minus(y))); }

#define COMBINE(I, N) write_row(MP_F32, out, I, COMBINED(read_row(MP_F32, x, I, N), read_row(MP_F32, y, I, N)), N)
#define ROWS_COMBINED(NAME)                                                      \
    static void NAME(const float *x, const float *y, ptrdiff_t n, float *out) { \
        ptrdiff_t i = 0;                                                         \
        FOR_VECTORS(i, n, COMBINE)                                               \
    }

#define COMBINED add_f32
ROWS_COMBINED(add_rows)
#undef COMBINED
#define COMBINED mul_f32
ROWS_COMBINED(multiply_rows)
#undef COMBINED
#define COMBINED sub_f32
ROWS_COMBINED(subtract_rows)
#undef COMBINED
#define COMBINED div_f32
ROWS_COMBINED(divide_rows)
#undef COMBINED
#define COMBINED larger_f32
ROWS_COMBINED(larger_rows)
#undef COMBINED
#define COMBINED smaller_f32
ROWS_COMBINED(smaller_rows)
#undef COMBINED

/* The two halves a, b of each vector become a cos - b sin and b cos + a sin: products are rounded before they are added. */
static void turn(const float *x, const float *angles, ptrdiff_t half, ptrdiff_t vectors, float *out) {
    for (ptrdiff_t v = 0; v < vectors; v++, x += 2 * half, out += 2 * half) {
        ptrdiff_t i = 0;
#define TURN(I, N)                                                                                  \
    do {                                                                                            \
        const vf32 a = read_row(MP_F32, x, I, N), b = read_row(MP_F32, x + half, I, N);             \
        const vf32 c = read_row(MP_F32, angles, I, N), s = read_row(MP_F32, angles + half, I, N);   \
        write_row(MP_F32, out, I, sub_f32(mul_f32(a, c), mul_f32(b, s)), N);                        \
        write_row(MP_F32, out + half, I, add_f32(mul_f32(b, c), mul_f32(a, s)), N);                 \
    } while (0)
        FOR_VECTORS(i, half, TURN)
    }
}
