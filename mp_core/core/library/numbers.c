#include "library/numbers.h"

#include <math.h>
#include <string.h>

#include "library/cast.h"
#include "library/plan.h" /* mp_min */

/* The integer formats and their C types. */
#define INTEGERS(DO)                                                                                        \
    DO(MP_BOOL, uint8_t) DO(MP_I8, int8_t) DO(MP_U8, uint8_t) DO(MP_I16, int16_t) DO(MP_U16, uint16_t)      \
    DO(MP_I32, int32_t) DO(MP_U32, uint32_t) DO(MP_I64, int64_t) DO(MP_U64, uint64_t)

/* ---- loads */

/* Load n integers; uint64 keeps its bits. */
static void load_integers(int format, const char *at, ptrdiff_t stride, ptrdiff_t n, int64_t *to) {
#define LOAD(FORMAT, TYPE)                                  \
    case FORMAT:                                            \
        for (ptrdiff_t i = 0; i < n; i++, at += stride) {   \
            TYPE x;                                         \
            memcpy(&x, at, sizeof x);                       \
            to[i] = (int64_t)x;                             \
        }                                                   \
        break;
    switch (format) { INTEGERS(LOAD) default: memset(to, 0, (size_t)n * sizeof *to); }
}

static int is_narrow_float(int format) { return format >= 0 && format < MP_FLOATS; }

/* Load n elements as float64; of integers, rounded to nearest even. */
static void load_doubles(const mp_kernels *kernels, int format, const char *at, ptrdiff_t stride, ptrdiff_t n,
                         mp_wide_chunk *to) {
    float floats[MP_WIDE_CHUNK];
    if (format == MP_F64) {
        for (ptrdiff_t i = 0; i < n; i++) memcpy(&to->d[i], at + i * stride, sizeof(double));
    } else if (is_narrow_float(format)) {
        const mp_cast c = {.kernels = kernels, .src_format = format == MP_F32 ? MP_COPY : format, .dst_format = MP_F32,
                           .src_size = (int)mp_element_bytes[format], .dst_size = sizeof(float)};
        mp_cast_line(&c, at, stride, (char *)floats, sizeof(float), n);
        for (ptrdiff_t i = 0; i < n; i++) to->d[i] = floats[i];
    } else {
        load_integers(format, at, stride, n, to->i);
        for (ptrdiff_t i = 0; i < n; i++) to->d[i] = format == MP_U64 ? (double)to->u[i] : (double)to->i[i];
    }
}

void mp_load_wide(const mp_kernels *kernels, mp_wide wide, int format, const char *at, ptrdiff_t stride, ptrdiff_t n,
                  mp_wide_chunk *to) {
    if (wide == MP_DOUBLE) load_doubles(kernels, format, at, stride, n, to);
    else load_integers(format, at, stride, n, to->i);
}

/* ---- stores */

/* Store the low bits of n integers; a boolean is whether the integer is not 0. */
static void store_integers(int format, const int64_t *x, ptrdiff_t n, char *out) {
#define STORE(FORMAT, TYPE)                                                     \
    case FORMAT:                                                                \
        for (ptrdiff_t i = 0; i < n; i++) {                                     \
            const TYPE y = (int)FORMAT == MP_BOOL ? (TYPE)(x[i] != 0) : (TYPE)x[i]; \
            memcpy(out + i * (ptrdiff_t)sizeof y, &y, sizeof y);                \
        }                                                                       \
        break;
    switch (format) { INTEGERS(STORE) default: break; }
}

/* Cut off the fraction. NaN and numbers out of range give the least int32 for types of at most 32 bits (uint32: the
 * least int64), else the least int64, of which the low bits are stored. x86 does so, and NumPy there. */
static int64_t truncated(double x, int format) {
    const double half = 4294967296.0 / 2, whole = 4294967296.0 * half; /* 2^31, 2^63 */
    const int is_short = format != MP_U32 && format != MP_I64 && format != MP_U64;
    if (is_short) return x > -half - 1.0 && x < half ? (int64_t)x : INT32_MIN;
    if (format == MP_U64 && x >= whole && x < 2.0 * whole) return (int64_t)(uint64_t)x;
    return x >= -whole && x < whole ? (int64_t)x : INT64_MIN;
}

static void store_doubles(const mp_kernels *kernels, const double *x, ptrdiff_t n, int format, char *out) {
    float floats[MP_WIDE_CHUNK];
    int64_t whole[MP_WIDE_CHUNK];
    if (format == MP_F64) {
        memcpy(out, x, (size_t)n * sizeof *x);
    } else if (format == MP_F32) {
        for (ptrdiff_t i = 0; i < n; i++) ((float *)out)[i] = (float)x[i];
    } else if (is_narrow_float(format)) {
        kernels->casts->round_odd(x, floats, n);
        kernels->casts->narrow[format](floats, out, n, 0);
    } else {
        for (ptrdiff_t i = 0; i < n; i++) whole[i] = format == MP_BOOL ? x[i] != 0.0 : truncated(x[i], format);
        store_integers(format, whole, n, out);
    }
}

/* An integer as float64, rounded to odd if it has more than 53 bits: it may be rounded to a narrow type once more. */
static double odd_double(int64_t x, int is_signed) {
    const int fits = is_signed ? x > -(1LL << 53) && x < 1LL << 53 : (uint64_t)x < 1ULL << 53;
    if (!fits && (x & 0x7FF)) x = (int64_t)(((uint64_t)x & ~0x7FFULL) | 0x800);
    return is_signed ? (double)x : (double)(uint64_t)x;
}

void mp_store_wide(const mp_kernels *kernels, mp_wide wide, const mp_wide_chunk *x, ptrdiff_t n, int format,
                   char *out) {
    double doubles[MP_WIDE_CHUNK];
    const int is_signed = wide == MP_SIGNED;
    if (wide == MP_DOUBLE) {
        store_doubles(kernels, x->d, n, format, out);
    } else if (format == MP_F32) {
        for (ptrdiff_t i = 0; i < n; i++) ((float *)out)[i] = is_signed ? (float)x->i[i] : (float)x->u[i];
    } else if (format == MP_F64) {
        for (ptrdiff_t i = 0; i < n; i++) ((double *)out)[i] = is_signed ? (double)x->i[i] : (double)x->u[i];
    } else if (is_narrow_float(format)) {
        for (ptrdiff_t i = 0; i < n; i++) doubles[i] = odd_double(x->i[i], is_signed);
        store_doubles(kernels, doubles, n, format, out);
    } else {
        store_integers(format, x->i, n, out);
    }
}

/* ---- functions */

#define EACH(NAME, VALUE) \
    case MP_##NAME: for (ptrdiff_t i = 0; i < n; i++) out[i] = (VALUE); break;

static uint64_t power(uint64_t x, uint64_t exponent) {
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, x *= x)
        if (exponent & 1) result *= x;
    return result;
}

/* Functions of integers whose bits do not depend on the sign. */
static void apply_bits(mp_elementwise_function function, const uint64_t *x, const uint64_t *y, ptrdiff_t n,
                       uint64_t *out) {
    switch (function) {
        EACH(ADD, x[i] + y[i])
        EACH(SUBTRACT, x[i] - y[i])
        EACH(MULTIPLY, x[i] * y[i])
        EACH(POWER, power(x[i], y[i]))
        EACH(NEGATIVE, 0 - x[i])
        EACH(SQUARE, x[i] * x[i])
        EACH(BITWISE_AND, x[i] & y[i])
        EACH(BITWISE_OR, x[i] | y[i])
        EACH(BITWISE_XOR, x[i] ^ y[i])
        EACH(INVERT, ~x[i])
        EACH(LEFT_SHIFT, y[i] < 64 ? x[i] << y[i] : 0)
    default: memcpy(out, x, (size_t)n * sizeof *x); break;
    }
}

/* Quotients of integers: 0 if y is 0. The quotient of the least integer and -1 wraps around to the least integer. */
static int64_t floor_divided(int64_t x, int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return (int64_t)(0 - (uint64_t)x);
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}
static int64_t fraction(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
static int64_t modulo(int64_t x, int64_t y) {
    const int64_t rest = fraction(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

static void apply_signed(mp_elementwise_function function, const int64_t *x, const int64_t *y, ptrdiff_t n,
                         int64_t *out) {
    switch (function) {
        EACH(LARGER, x[i] > y[i] ? x[i] : y[i])
        EACH(SMALLER, x[i] < y[i] ? x[i] : y[i])
        EACH(ABSOLUTE, x[i] < 0 ? (int64_t)(0 - (uint64_t)x[i]) : x[i])
        EACH(SIGN, (x[i] > 0) - (x[i] < 0))
        EACH(FLOOR_DIVIDE, floor_divided(x[i], y[i]))
        EACH(MOD, modulo(x[i], y[i]))
        EACH(FMOD, fraction(x[i], y[i]))
        EACH(RIGHT_SHIFT, x[i] >> ((uint64_t)y[i] < 64 ? y[i] : 63))
    default: apply_bits(function, (const uint64_t *)x, (const uint64_t *)y, n, (uint64_t *)out); break;
    }
}

static void apply_unsigned(mp_elementwise_function function, const uint64_t *x, const uint64_t *y, ptrdiff_t n,
                           uint64_t *out) {
    switch (function) {
        EACH(LARGER, x[i] > y[i] ? x[i] : y[i])
        EACH(SMALLER, x[i] < y[i] ? x[i] : y[i])
        EACH(SIGN, x[i] != 0)
        EACH(FLOOR_DIVIDE, y[i] ? x[i] / y[i] : 0)
        EACH(MOD, y[i] ? x[i] % y[i] : 0)
        EACH(FMOD, y[i] ? x[i] % y[i] : 0)
        EACH(RIGHT_SHIFT, y[i] < 64 ? x[i] >> y[i] : 0)
    default: apply_bits(function, x, y, n, out); break;
    }
}

/* NumPy's quotients of floats: the remainder of fmod, which is exact, with the sign of y; the quotient from it. */
#define QUOTIENTS(TYPE, NAME, FMOD, FLOOR, COPYSIGN)                                    \
    static TYPE NAME##_modulo(TYPE x, TYPE y) {                                         \
        const TYPE rest = FMOD(x, y);                                                   \
        if (y == 0) return rest;                                                        \
        if (rest == 0) return COPYSIGN(0, y);                                           \
        return (y < 0) != (rest < 0) ? rest + y : rest;                                 \
    }                                                                                   \
    static TYPE NAME##_floor_divided(TYPE x, TYPE y) {                                  \
        if (y == 0) return x / y;                                                       \
        const TYPE rest = FMOD(x, y);                                                   \
        TYPE quotient = (x - rest) / y;                                                 \
        if (rest != 0 && (y < 0) != (rest < 0)) quotient -= 1;                          \
        if (quotient == 0) return COPYSIGN(0, x / y);                                   \
        const TYPE whole = FLOOR(quotient);                                             \
        return quotient - whole > (TYPE)0.5 ? whole + 1 : whole;                        \
    }
QUOTIENTS(float, float, fmodf, floorf, copysignf)
QUOTIENTS(double, double, fmod, floor, copysign)

void mp_float_quotients(mp_elementwise_function function, const float *x, const float *y, ptrdiff_t n, float *out) {
    switch (function) {
        EACH(FLOOR_DIVIDE, float_floor_divided(x[i], y[i]))
        EACH(MOD, float_modulo(x[i], y[i]))
    default: for (ptrdiff_t i = 0; i < n; i++) out[i] = fmodf(x[i], y[i]); break;
    }
}

/* The larger of two numbers: NaN if one is NaN; +0 is larger than -0. */
static double larger(double x, double y) {
    if (x == y) return signbit(x) ? y : x;
    return x > y || x != x ? x : y;
}

static void apply_double(mp_elementwise_function function, const double *x, const double *y, ptrdiff_t n,
                         double *out) {
    switch (function) {
        EACH(ADD, x[i] + y[i])
        EACH(SUBTRACT, x[i] - y[i])
        EACH(MULTIPLY, x[i] * y[i])
        EACH(DIVIDE, x[i] / y[i])
        EACH(LARGER, larger(x[i], y[i]))
        EACH(SMALLER, -larger(-x[i], -y[i]))
        EACH(NEGATIVE, -x[i])
        EACH(ABSOLUTE, fabs(x[i]))
        EACH(SQUARE, x[i] * x[i])
        EACH(ROOT, sqrt(x[i]))
        EACH(FLOOR, floor(x[i]))
        EACH(ROUND, rint(x[i]))
        EACH(SIGN, x[i] > 0.0 ? 1.0 : x[i] < 0.0 ? -1.0 : x[i])
        EACH(FLOOR_DIVIDE, double_floor_divided(x[i], y[i]))
        EACH(MOD, double_modulo(x[i], y[i]))
        EACH(FMOD, fmod(x[i], y[i]))
    default: memcpy(out, x, (size_t)n * sizeof *x); break;
    }
}

#define COMPARISONS(NAME, TYPE)                                                                                     \
    NAME(mp_elementwise_function function, const TYPE *x, const TYPE *y, ptrdiff_t n, char *out) {                  \
        switch (function) {                                                                                         \
            EACH(LESS, x[i] < y[i])                                                                                 \
            EACH(LESS_EQUAL, x[i] <= y[i])                                                                          \
            EACH(GREATER, x[i] > y[i])                                                                              \
            EACH(GREATER_EQUAL, x[i] >= y[i])                                                                       \
            EACH(EQUAL, x[i] == y[i])                                                                               \
        default: for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] != y[i]; break;                                    \
        }                                                                                                           \
    }
COMPARISONS(void mp_compare_floats, float)
COMPARISONS(static void compare_signed, int64_t)
COMPARISONS(static void compare_unsigned, uint64_t)
COMPARISONS(static void compare_doubles, double)

static void compare(const mp_elementwise *e, const mp_wide_chunk *x, const mp_wide_chunk *y, ptrdiff_t n, char *out) {
    if (e->wide == MP_DOUBLE) compare_doubles(e->function, x->d, y->d, n, out);
    else if (e->wide == MP_SIGNED) compare_signed(e->function, x->i, y->i, n, out);
    else compare_unsigned(e->function, x->u, y->u, n, out);
}

static void apply(const mp_elementwise *e, const mp_wide_chunk *x, const mp_wide_chunk *y, ptrdiff_t n,
                  mp_wide_chunk *out) {
    if (e->wide == MP_DOUBLE) apply_double(e->function, x->d, y->d, n, out->d);
    else if (e->wide == MP_SIGNED) apply_signed(e->function, x->i, y->i, n, out->i);
    else apply_unsigned(e->function, x->u, y->u, n, out->u);
}

/* The first operand of MP_WHERE is a mask of bytes; the others are chosen as bits. */
static void run_chunk(const mp_elementwise *e, int operands, const char *const *at, ptrdiff_t n, char *out) {
    const int last = e->axes - 1, masked = e->function == MP_WHERE;
    mp_wide_chunk given[2] = {0}, result = {0};
    for (int i = masked; i < operands; i++)
        mp_load_wide(e->kernels, e->wide, e->operand[i].format, at[i], e->operand[i].stride[last], n,
                     &given[i - masked]);
    if (e->function >= MP_LESS) {
        compare(e, &given[0], &given[1], n, out);
        return;
    }
    if (masked)
        for (ptrdiff_t i = 0; i < n; i++)
            result.u[i] = at[0][i * e->operand[0].stride[last]] ? given[0].u[i] : given[1].u[i];
    else apply(e, &given[0], &given[1], n, &result);
    mp_store_wide(e->kernels, e->wide, &result, n, e->out_format, out);
}

void mp_run_numbers(const mp_elementwise *e, const char *const *at, ptrdiff_t n, char *out) {
    const int operands = mp_elementwise_operands[e->function];
    for (ptrdiff_t first = 0; first < n; first += MP_WIDE_CHUNK) {
        const char *from[MP_MOST_OPERANDS] = {0};
        for (int i = 0; i < operands; i++) from[i] = at[i] + first * e->operand[i].stride[e->axes - 1];
        run_chunk(e, operands, from, mp_min(n - first, MP_WIDE_CHUNK), out + first * e->out_size);
    }
}
