/* What the files of the public functions (../include/mp_core.h) share: checks of arguments. */
#ifndef MP_API_H
#define MP_API_H

#include "include/mp_core.h"
#include "library/plan.h"
#include "library/runtime.h"

#define MP_MOST ((ptrdiff_t)1 << 50) /* elements: beyond it, sizes of scratch might overflow */

_Static_assert((int)MP_CORE_FLOAT32 == MP_F32 && (int)MP_CORE_FLOAT16 == MP_F16 && (int)MP_CORE_BFLOAT16 == MP_BF16
               && (int)MP_CORE_FLOAT8_E4M3FN == MP_F8_E4M3FN && (int)MP_CORE_FLOAT8_E5M2 == MP_F8_E5M2,
               "the floats have the same numbers as mp_core_type and as mp_format");
_Static_assert((int)MP_CORE_RELU == MP_RELU && (int)MP_CORE_GELU == MP_GELU && (int)MP_CORE_SILU == MP_SILU
               && (int)MP_CORE_RELU6 == MP_RELU6 && (int)MP_CORE_GELU_TANH == MP_GELU_TANH
               && (int)MP_CORE_SIGMOID == MP_SIGMOID && (int)MP_CORE_TANH == MP_TANH,
               "activations have the same numbers as mp_core_activation and as mp_activation");

/* Whether a type is a float of at most 32 bits. These have the first values; float64 has the next one. */
static inline int mp_is_float(int type) { return type >= 0 && type <= MP_CORE_FLOAT8_E5M2; }

/* ---- counts and strides: every one that a caller gives passes one of these checks */

static inline int mp_is_count(ptrdiff_t n) { return n >= 0 && n <= MP_MOST; }

/* Whether `count` pieces, and one if there is none, that lie `stride` elements apart, one way or the other, are within
 * what can be counted. */
static inline int mp_reaches(ptrdiff_t count, ptrdiff_t stride) {
    ptrdiff_t elements;
    return mp_is_count(count) && !__builtin_mul_overflow(mp_max(count, 1), stride, &elements) && elements >= -MP_MOST
           && elements <= MP_MOST;
}

/* Whether that is so of `count` rows of n elements that lie `stride` elements apart without an overlap. */
static inline int mp_are_rows(ptrdiff_t count, ptrdiff_t n, ptrdiff_t stride) {
    return mp_is_count(n) && stride >= n && mp_reaches(count, stride);
}

static inline int mp_are_threads(int threads) { return threads >= 1 && threads <= MP_MOST_THREADS; }

/* The kernels in use, chosen at the first call; NULL if MP_CORE_ISA names none that this machine can use. */
const mp_kernels *mp_kernels_in_use(void);

#endif
