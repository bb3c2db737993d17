#include "library/tables.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "library/runtime.h"

enum { CODES = 1 << 16, FORMATS = 2 };

/* x / 2 + c x^2 + ... of a tiny x: if x / 2 is a tie, the exact value is above it, and so is the next double. */
static double above_half(double x) { return x == 0.0 ? x : nextafter(0.5 * x, INFINITY); }
static int is_tiny(double x) { return fabs(x) < 0x1p-60; }

static double sigmoid(double x) {
    const double e = exp(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* x s(x), where the share s is 0 at -Inf: -0 there, since the function is negative below 0. */
static double gated(double x, double share) { return share == 0.0 ? -0.0 : x * share; }

static double gelu(double x) { return is_tiny(x) ? above_half(x) : gated(x, 0.5 * erfc(-x * 0x1.6a09e667f3bcdp-1)); }
static double silu(double x) { return is_tiny(x) ? above_half(x) : gated(x, sigmoid(x)); }
static double gelu_tanh(double x) {
    const double twice_root = 0x1.9884533d43651p+0; /* 2 sqrt(2 / pi) */
    return is_tiny(x) ? above_half(x) : gated(x, sigmoid(twice_root * (x + 0.044715 * x * x * x)));
}
static double softplus(double x) { return fmax(x, 0.0) + (x == x ? log1p(exp(-fabs(x))) : x); }

/* The functions that have tables: the number of an activation or of a function, MP_LINEAR or -1 if it is none, and the
 * function in double. The error of these formulas is below 2^-38 of the result. No result of a 16-bit operand is that
 * close to a tie without being one (tests/test_functions_exact.py), so all C libraries give the same tables. */
static const struct {
    int activation, function;
    double (*exact)(double);
} rows[] = {
    {MP_GELU, -1, gelu},         {MP_SILU, -1, silu},       {MP_GELU_TANH, -1, gelu_tanh},
    {MP_SIGMOID, -1, sigmoid},   {MP_TANH, -1, tanh},       {MP_SOFTPLUS, -1, softplus},
    {MP_EXPONENTIAL, -1, exp},   {MP_LINEAR, MP_LOG, log},  {MP_LINEAR, MP_LOG1P, log1p},
};
enum { FUNCTIONS = sizeof rows / sizeof *rows };

/* Threads that need the same table at the same time all fill it, with the same results: nobody waits. */
static struct {
    atomic_int is_full;
    uint16_t of[CODES];
} tables[FUNCTIONS][FORMATS];

static void fill(double (*exact)(double), int format, uint16_t *table) {
    const mp_casts *casts = mp_active()->casts;
    for (int first = 0; first < CODES; first += MP_CHUNK) {
        uint16_t code[MP_CHUNK];
        mp_chunk_floats x;
        double y[MP_CHUNK];
        for (int i = 0; i < MP_CHUNK; i++) code[i] = (uint16_t)(first + i);
        casts->widen[format](code, x.at, MP_CHUNK, 0);
        for (int i = 0; i < MP_CHUNK; i++) y[i] = exact(x.at[i]);
        casts->round_odd(y, x.at, MP_CHUNK);
        casts->narrow[format](x.at, code, MP_CHUNK, 0);
        for (int i = 0; i < MP_CHUNK; i++) __atomic_store_n(table + first + i, code[i], __ATOMIC_RELAXED);
    }
}

static const uint16_t *table_of(int row, int format) {
    const int column = format == MP_BF16;
    if (format != MP_F16 && format != MP_BF16) return NULL;
    if (!atomic_load_explicit(&tables[row][column].is_full, memory_order_acquire)) {
        fill(rows[row].exact, format, tables[row][column].of);
        atomic_store_explicit(&tables[row][column].is_full, 1, memory_order_release);
    }
    return tables[row][column].of;
}

const uint16_t *mp_table_of_activation(mp_activation activation, int format) {
    for (int row = 0; row < FUNCTIONS && activation != MP_LINEAR; row++)
        if (rows[row].activation == (int)activation) return table_of(row, format);
    return NULL;
}

const uint16_t *mp_table_of_function(mp_elementwise_function function, int format) {
    for (int row = 0; row < FUNCTIONS; row++)
        if (rows[row].function == (int)function) return table_of(row, format);
    return NULL;
}

void mp_map(const uint16_t *table, const void *x, ptrdiff_t stride, ptrdiff_t n, uint16_t *out) {
    const char *at = x;
    for (ptrdiff_t i = 0; i < n; i++, at += stride) {
        uint16_t code;
        memcpy(&code, at, sizeof code);
        out[i] = __atomic_load_n(table + code, __ATOMIC_RELAXED); /* a thread may write the same entry again */
    }
}
