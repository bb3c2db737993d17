/* Kernels over rows, in several passes; rows should stay in a cache between them. Each pass runs over mp_rows_together
 * rows before the next pass: so the operation at the end of a row (maximum, sum or division), which has a long latency,
 * overlaps with the next row. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "rows/functions.h"
#include "rows/logarithms.h"
#include "rows/derivatives.h"
#include "rows/sums.h"

/* The 0 < n <= 16 elements of a row from element i on; 0 in the other lanes. n is mostly a constant, and `format`
 * always, so that whole vectors are read and written without a mask. */
MP_INLINE vf32 read_row(mp_format format, const void *row, ptrdiff_t i, ptrdiff_t n) {
    switch (format) {
#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST) \
    case MP_##FORMAT:                                                                              \
        if (__builtin_constant_p(n) && n == MP_LANES) return LOAD((const CODE *)row + i);          \
        return TO_F32(LOADN((const CODE *)row + i, n));
#include "formats.def"
    default: return set_f32(0.0f);
    }
}

MP_INLINE void write_row(mp_format format, void *row, ptrdiff_t i, vf32 x, ptrdiff_t n) {
    switch (format) {
#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST) \
    case MP_##FORMAT:                                                                              \
        if (n == MP_LANES) STORE((CODE *)row + i, FROM_F32(x));                                    \
        else STOREN((CODE *)row + i, FROM_F32(x), n);                                              \
        break;
#include "formats.def"
    default: break;
    }
}

MP_INLINE vf32 first_of(ptrdiff_t n, vf32 yes, vf32 no) {
    return n == MP_LANES ? yes : select_f32(first_n(n), yes, no);
}

/* Do something for all vectors from i to `end`: for whole ones with n = MP_LANES, then for the last, partial one. */
#define FOR_VECTORS(I, END, DO)                                 \
    for (; I + MP_LANES <= END; I += MP_LANES) DO(I, MP_LANES); \
    if (I < END) {                                              \
        const ptrdiff_t rest = END - I;                         \
        DO(I, rest);                                            \
        I = END;                                                \
    }

MP_INLINE const void *row_of_x(const mp_row_block *b, const void *x, ptrdiff_t row) {
    return (const char *)x + row * b->ldx * mp_element_bytes[b->x_format];
}
MP_INLINE float *row_of_work(const mp_row_block *b, ptrdiff_t row) { return b->work + row * b->ldw; }
MP_INLINE void *row_of_out(const mp_row_block *b, ptrdiff_t row) {
    return (char *)b->out + row * b->ldo * mp_element_bytes[b->out_format];
}

#include "rows/norms.h"
#include "rows/pairs.h"
#include "rows/reductions.h"
#include "rows/softmax.h"
#include "rows/gradients.h"

static void activate_row(mp_activation activation, const float *x, ptrdiff_t n, float *out) {
    activate(activation, (float *)x, n, 1, n, (result_rows){MP_F32, out, n}); /* the result is f32, so x stays */
}

static mp_row_function *const functions_of_rows[] = {
#define MP_ARITHMETIC(NAME, WORD, FUNCTION) NAME##_of_rows,
#define MP_BINARY(NAME, WORD, FUNCTION) NAME##_of_rows,
#define MP_UNARY(NAME, WORD, FUNCTION) NAME##_of_rows,
#define MP_IN_DOUBLE(NAME, WORD, FUNCTION, BOUND) NAME##_of_rows,
#define MP_QUICK(NAME, WORD, QUICK, FUNCTION, BOUND) NAME##_of_rows,
#include "functions.def"
};

extern const mp_rows MP_EXPORTED(rows);
const mp_rows MP_EXPORTED(rows) = {
    .softmax = softmax,
    .log_softmax = log_softmax,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .activate = activate_row,
    .functions = functions_of_rows,
    .turn = turn,
    .softmax_gradient = softmax_gradient,
    .log_softmax_gradient = log_softmax_gradient,
    .norm_gradient = norm_gradient,
    .sum_blocks = sum_blocks,
    .sum_columns = sum_columns,
    .sum_rows = sum_rows,
};
