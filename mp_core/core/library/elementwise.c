#include "library/elementwise.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "library/numbers.h"
#include "library/plan.h"
#include "library/runtime.h"
#include "library/tables.h"

void mp_join_axes(mp_elementwise *e, int from) {
    const int operands = mp_elementwise_operands[e->function];
    int last = from; /* the axis with which the next one may be merged; none before `from` */
    for (int axis = from; axis < e->axes; axis++) {
        int joined = last > from;
        for (int i = 0; i < operands && joined; i++)
            joined = e->operand[i].stride[last - 1] == e->operand[i].stride[axis] * e->shape[axis];
        if (e->shape[axis] == 1) continue;
        if (joined) last--;
        e->shape[last] = joined ? e->shape[last] * e->shape[axis] : e->shape[axis];
        for (int i = 0; i < operands; i++) e->operand[i].stride[last] = e->operand[i].stride[axis];
        last++;
    }
    if (last == 0) { /* one element */
        e->shape[0] = 1;
        for (int i = 0; i < operands; i++) e->operand[i].stride[0] = e->operand[i].size;
        last = 1;
    }
    e->axes = last;
}

int mp_elementwise_is_large(const void *context) {
    const mp_elementwise *e = context;
    double elements = 1;
    for (int axis = 0; axis < e->axes; axis++) elements *= (double)e->shape[axis];
    return elements >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_elementwise(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_elementwise *e = context;
    (void)reproducible;
    e->kernels = mp_active();
    if (rows >= 0) e->shape[0] = rows;
    e->lines = 1;
    for (int axis = 0; axis < e->axes - 1; axis++) e->lines *= e->shape[axis];
    e->pieces = mp_ceil_div(e->shape[e->axes - 1], MP_CHUNK);
    const ptrdiff_t all = e->lines * e->pieces;
    e->share = mp_share(all, threads == 1 || !mp_elementwise_is_large(e) ? 1 : 4 * threads, MP_CHUNK);
    return mp_ceil_div(all, e->share);
}

/* Return n elements as float32: in place if they are, else converted into `buffer`. */
static const float *widened(const mp_elementwise *e, const mp_operand *x, const char *at, ptrdiff_t n, float *buffer) {
    const ptrdiff_t stride = x->stride[e->axes - 1];
    if (x->format == MP_F32 && stride == x->size && (uintptr_t)at % sizeof(float) == 0) return (const float *)at;
    const mp_cast c = {.kernels = e->kernels, .src_format = x->format == MP_F32 ? MP_COPY : x->format,
                       .dst_format = MP_F32, .src_size = x->size, .dst_size = sizeof(float)};
    mp_cast_line(&c, at, stride ? stride : x->size, (char *)buffer, sizeof(float), stride ? n : 1);
    for (ptrdiff_t i = 1; i < n && !stride; i++) buffer[i] = buffer[0];
    return buffer;
}

static void choose(const char *mask, ptrdiff_t stride, const float *x, const float *y, ptrdiff_t n, float *out) {
    for (ptrdiff_t i = 0; i < n; i++) out[i] = mask[i * stride] ? x[i] : y[i];
}

static void apply(mp_elementwise_function function, const float *x, ptrdiff_t n, float *out) {
    switch (function) {
    case MP_NEGATIVE: for (ptrdiff_t i = 0; i < n; i++) out[i] = -x[i]; break;
    case MP_ABSOLUTE: for (ptrdiff_t i = 0; i < n; i++) out[i] = fabsf(x[i]); break;
    case MP_AS_IT_IS: for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i]; break;
    case MP_SQUARE: for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] * x[i]; break;
    case MP_FLOOR: for (ptrdiff_t i = 0; i < n; i++) out[i] = floorf(x[i]); break;
    case MP_ROUND: for (ptrdiff_t i = 0; i < n; i++) out[i] = rintf(x[i]); break;
    default: for (ptrdiff_t i = 0; i < n; i++) out[i] = sqrtf(x[i]); break;
    }
}

/* A finite number other than 0 is near a tie if its last 12 bits are those of an integer from -1 to 2: those of every
 * tie are 0. */
static int is_near_tie(float y) {
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    return ((bits + 1) & 0xFFC) == 0 && y != 0.0f && isfinite(y);
}

/* Whether one of 16 numbers may be near a tie, with the vectors that compilers have on every CPU. */
static int may_be_near_tie(const float *y) {
    typedef uint32_t quad __attribute__((vector_size(16)));
    quad bits[4], found = {0, 0, 0, 0};
    memcpy(bits, y, sizeof bits);
    for (int i = 0; i < 4; i++) found |= (quad)(((bits[i] + 1) & 0xFFC) == 0);
    uint64_t halves[2];
    memcpy(halves, &found, sizeof halves); /* cppcheck-suppress bufferAccessOutOfBounds; it knows no vectors */
    return (halves[0] | halves[1]) != 0;
}

/* Compute powers that are rounded to 16 or 8 bits afterwards. The error of the kernel is below 1.5 ULP. Where a tie
 * is that near, C's pow decides on which side of it the power is. */
static void narrow_powers(const mp_kernels *kernels, const float *x, const float *y, ptrdiff_t n, float *out) {
    kernels->rows->functions[MP_POWER](x, y, n, out);
    for (ptrdiff_t i = 0, end = 0; i < n; i = end) {
        end = mp_min(i + MP_LANES, n);
        if (end - i == MP_LANES && !may_be_near_tie(out + i)) continue;
        for (; i < end; i++) {
            if (!is_near_tie(out[i])) continue;
            const double power = pow(x[i], y[i]);
            kernels->casts->round_odd(&power, out + i, 1);
        }
    }
}

/* Compute x^3 in double, where it is exact for x of 16 bits: only inexact results near a tie have to be rounded to odd.
 * (Rounding all of them takes three times as long as the kernel of powers.) */
static void cube(const mp_kernels *kernels, const float *x, ptrdiff_t n, float *out) {
    for (ptrdiff_t i = 0; i < n; i++) {
        const double y = (double)x[i] * x[i] * x[i];
        out[i] = (float)y;
        if (is_near_tie(out[i]) && out[i] != y) kernels->casts->round_odd(&y, out + i, 1);
    }
}

/* Compute powers. A square, a root and a reciprocal are one operation. */
static void raise_to_powers(const mp_elementwise *e, const float *x, const float *y, ptrdiff_t n, float *out) {
    assert(y);
    const float all = e->operand[1].stride[e->axes - 1] == 0 ? y[0] : 0.0f; /* 0: the exponents may differ */
    if (all == 2.0f) apply(MP_SQUARE, x, n, out);
    else if (all == 3.0f) cube(e->kernels, x, n, out);
    else if (all == 0.5f)
        for (ptrdiff_t i = 0; i < n; i++) out[i] = x[i] == -INFINITY ? INFINITY : sqrtf(x[i] + 0.0f); /* of -0: +0 */
    else if (all == -1.0f)
        for (ptrdiff_t i = 0; i < n; i++) out[i] = 1.0f / x[i];
    else if (e->out_format == MP_F32) e->kernels->rows->functions[MP_POWER](x, y, n, out);
    else narrow_powers(e->kernels, x, y, n, out);
}

/* Compute n elements, at most MP_CHUNK; `at` are the operands' addresses. */
static void run_piece(const mp_elementwise *e, const char *const *at, int operands, ptrdiff_t n, char *out) {
    mp_chunk_floats buffer[3];
    if (e->wide != MP_SINGLE) {
        mp_run_numbers(e, at, n, out);
        return;
    }
    const int masked = e->function == MP_WHERE;
    const int same = e->operand[0].format == e->out_format && e->activation == MP_LINEAR;
    const uint16_t *table = same ? mp_table_of_function(e->function, e->out_format) : NULL;
    if (table) {
        mp_map(table, at[0], e->operand[0].stride[e->axes - 1], n, (uint16_t *)out);
        return;
    }
    const float *x = widened(e, e->operand + masked, at[masked], n, buffer[0].at), *y = NULL;
    if (operands > 1) y = widened(e, e->operand + masked + 1, at[masked + 1], n, buffer[1].at);
    if (e->activation != MP_LINEAR) {
        e->kernels->rows->activate(e->activation, x, n, buffer[0].at);
        x = buffer[0].at;
    }
    if (e->out_format == MP_BOOL) {
        assert(y); /* comparisons have two operands */
        mp_compare_floats(e->function, x, y, n, out);
        return;
    }
    float *const to = e->out_format == MP_F32 ? (float *)out : buffer[2].at;
    if (masked) choose(at[0], e->operand[0].stride[e->axes - 1], x, y, n, to);
    else if (e->function == MP_POWER) raise_to_powers(e, x, y, n, to);
    else if (e->function >= MP_FLOOR_DIVIDE && e->function <= MP_FMOD) mp_float_quotients(e->function, x, y, n, to);
    else if ((int)e->function < MP_KERNEL_FUNCTIONS) e->kernels->rows->functions[e->function](x, y, n, to);
    else apply(e->function, x, n, to);
    if (e->out_format != MP_F32) e->kernels->casts->narrow[e->out_format](to, out, n, 0);
}

void mp_run_elementwise(void *context, ptrdiff_t task) {
    const mp_elementwise *e = context;
    const int last = e->axes - 1, operands = mp_elementwise_operands[e->function];
    const ptrdiff_t end = mp_min((task + 1) * e->share, e->lines * e->pieces);
    assert(operands >= (e->function == MP_WHERE ? 3 : 1));
    for (ptrdiff_t piece = task * e->share; piece < end; piece++) {
        const ptrdiff_t line = piece / e->pieces, first = piece % e->pieces * MP_CHUNK;
        const char *at[MP_MOST_OPERANDS];
        for (int i = 0; i < operands; i++) at[i] = e->operand[i].data + first * e->operand[i].stride[last];
        for (ptrdiff_t axis = last - 1, rest = line; axis >= 0; rest /= e->shape[axis--])
            for (int i = 0; i < operands; i++) at[i] += rest % e->shape[axis] * e->operand[i].stride[axis];
        char *out = e->out + (line * e->shape[last] + first) * e->out_size;
        run_piece(e, at, operands, mp_min(e->shape[last] - first, MP_CHUNK), out);
    }
}
