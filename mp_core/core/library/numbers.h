/* Functions of integers, booleans and float64, element by element, and casts between these types and floats.
 *
 * Elements are widened to 64 bits, computed, and narrowed to the type of the result. Sums, products and shifts of
 * integers wrap around, as in NumPy; so a narrower type may be computed in the wider one. */
#ifndef MP_NUMBERS_H
#define MP_NUMBERS_H

#include "library/elementwise.h"

MP_SHARED_BEGIN

/* Compute n elements of a function whose `wide` is not MP_SINGLE; `at` are the addresses of the operands. */
void mp_run_numbers(const mp_elementwise *e, const char *const *at, ptrdiff_t n, char *out);

/* FLOOR_DIVIDE, MOD or FMOD of n floats, with NumPy's bits. */
void mp_float_quotients(mp_elementwise_function function, const float *x, const float *y, ptrdiff_t n, float *out);

/* A comparison of n floats, from MP_LESS on. */
void mp_compare_floats(mp_elementwise_function function, const float *x, const float *y, ptrdiff_t n, char *out);

/* Elements in a buffer of wide elements. */
enum { MP_WIDE_CHUNK = 512 };
typedef union {
    int64_t i[MP_WIDE_CHUNK];
    uint64_t u[MP_WIDE_CHUNK];
    double d[MP_WIDE_CHUNK];
} mp_wide_chunk;

/* Load n elements, at most MP_WIDE_CHUNK, as `wide` says; store n of them contiguously in a format. */
void mp_load_wide(const mp_kernels *kernels, mp_wide wide, int format, const char *at, ptrdiff_t stride, ptrdiff_t n,
                  mp_wide_chunk *to);
void mp_store_wide(const mp_kernels *kernels, mp_wide wide, const mp_wide_chunk *x, ptrdiff_t n, int format, char *out);

MP_SHARED_END
#endif
