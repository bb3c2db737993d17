/* Two rows element by element, and vectors that turn with their positions. */

#define COMBINE(I, N) write_row(MP_F32, out, I, COMBINED(read_row(MP_F32, x, I, N), read_row(MP_F32, y, I, N)), N)

static void add_rows(const float *x, const float *y, ptrdiff_t n, float *out) {
    ptrdiff_t i = 0;
#define COMBINED add_f32
    FOR_VECTORS(i, n, COMBINE)
#undef COMBINED
}

static void multiply_rows(const float *x, const float *y, ptrdiff_t n, float *out) {
    ptrdiff_t i = 0;
#define COMBINED mul_f32
    FOR_VECTORS(i, n, COMBINE)
#undef COMBINED
}

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
