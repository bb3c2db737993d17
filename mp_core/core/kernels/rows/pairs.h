/* Functions of one or two rows, element by element, and rotary positions. */

#include "rows/extremes.h"
#include "rows/doubles.h"
#include "rows/exponentials.h"
#include "rows/trigonometry.h"
#include "rows/quick.h"

/* The functions of kernels/functions.def, for rows. */
#define MP_ARITHMETIC(NAME, WORD, FUNCTION)                                                                     \
    static void NAME##_of_rows(const float *x, const float *y, ptrdiff_t n, float *out) {                       \
        ptrdiff_t i = 0;                                                                                        \
        for (; i + MP_LANES <= n; i += MP_LANES) store_f32(out + i, FUNCTION(load_f32(x + i), load_f32(y + i))); \
        if (i < n) storen_f32(out + i, FUNCTION(loadn_f32(x + i, n - i), loadn_f32(y + i, n - i)), n - i);      \
    }
#define MP_BINARY(NAME, WORD, FUNCTION)                                                                         \
    static void NAME##_of_rows(const float *x, const float *y, ptrdiff_t n, float *out) {                       \
        for (ptrdiff_t i = 0; i < n; i += MP_LANES) {                                                           \
            const ptrdiff_t m = at_most(n - i, MP_LANES);                                                       \
            write_row(MP_F32, out, i, FUNCTION(read_row(MP_F32, x, i, m), read_row(MP_F32, y, i, m)), m);       \
        }                                                                                                       \
    }
#define MP_UNARY(NAME, WORD, FUNCTION)                                                                          \
    static void NAME##_of_rows(const float *x, const float *y, ptrdiff_t n, float *out) {                       \
        (void)y;                                                                                                \
        for (ptrdiff_t i = 0; i < n; i += MP_LANES) {                                                           \
            const ptrdiff_t m = at_most(n - i, MP_LANES);                                                       \
            write_row(MP_F32, out, i, FUNCTION(read_row(MP_F32, x, i, m)), m);                                  \
        }                                                                                                       \
    }
#include "functions.def"

/* Rotate vectors: the two halves a, b of each become a cos - b sin and b cos + a sin. Products are rounded before they
 * are added. */
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
