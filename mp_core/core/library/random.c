#include "library/random.h"

#include <math.h>
#include <string.h>

#include "library/cast.h"
#include "library/elementwise.h"
#include "library/plan.h"
#include "library/runtime.h"

enum { NUMBERS = 256, WORK = 1 << 14 }; /* numbers in a buffer; the fewest for which a second thread pays (estimated) */
enum { ROOM = NUMBERS + 8 };            /* words in a buffer: they are drawn in pairs of blocks of four */

typedef struct {
    uint64_t word[4];
} block;

/* The upper 64 bits of a product. */
static inline uint64_t high_product(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 both;
    return (uint64_t)((both)a * b >> 64);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

/* Ten rounds of Philox4x64 on n counters, in place. Two at a time hide the latency of the products, and unrolled loops
 * keep the words in registers: a word takes 2.8 ns instead of 4.4 (busy Zen 4, November 2026). */
static inline __attribute__((always_inline)) void philox(const uint32_t *key, block *counters, int n) {
    uint64_t seed = key[0], draw = key[1];
    _Pragma("GCC unroll 10") for (int round = 0; round < 10; round++) {
        const uint64_t first = 0xD2E7470EE14C6C93u, second = 0xCA5A826395121157u;
        _Pragma("GCC unroll 2") for (int i = 0; i < n; i++) {
            uint64_t *c = counters[i].word;
            const uint64_t high0 = high_product(first, c[0]), low0 = first * c[0];
            const uint64_t high1 = high_product(second, c[2]), low1 = second * c[2];
            c[0] = high1 ^ c[1] ^ seed, c[1] = low1, c[2] = high0 ^ c[3] ^ draw, c[3] = low0;
        }
        seed += 0x9E3779B97F4A7C15u, draw += 0xBB67AE8584CAA73Bu;
    }
}

/* Write the words of n numbers (1 to NUMBERS) from `first` on to `words`, a buffer of ROOM, and return the address of
 * the first one: it may be in the middle of a block. `counter` has all words of the counters except the first. */
static const uint64_t *draw_words(const uint32_t *key, block counter, uint64_t first, ptrdiff_t n, uint64_t *words) {
    const ptrdiff_t skipped = first % 4;
    ptrdiff_t i = 0;
    do {
        block pair[2] = {counter, counter};
        pair[0].word[0] = first / 4 + (uint64_t)i + 1, pair[1].word[0] = first / 4 + (uint64_t)i + 2;
        philox(key, pair, 2);
        memcpy(words + 4 * i, pair, sizeof pair);
        i += 2;
    } while (4 * i < skipped + n);
    return words + skipped;
}

/* Write the word of one number n times. */
static const uint64_t *draw_one(const uint32_t *key, uint64_t number, ptrdiff_t n, uint64_t *words) {
    const uint64_t word = draw_words(key, (block){{0}}, number, 1, words)[0];
    for (ptrdiff_t i = 0; i < n; i++) words[i] = word;
    return words;
}

static void drop(const mp_random *r, const uint64_t *words, const char *x, ptrdiff_t n, char *out) {
    float buffer[NUMBERS];
    const float *from = (const float *)x;
    float *to = (float *)out;
    if (r->format != MP_F32) {
        r->kernels->casts->widen[r->format](x, buffer, n, 0);
        from = to = buffer;
    }
    for (ptrdiff_t i = 0; i < n; i++) to[i] = words[i] >> 11 >= r->least ? from[i] * r->factor : 0.0f;
    if (r->format != MP_F32) r->kernels->casts->narrow[r->format](buffer, out, n, 0);
}

void mp_round_stochastically(const mp_casts *casts, const mp_rounding *r, ptrdiff_t first, ptrdiff_t n, const float *x,
                             char *out) {
    const block counter = {{0, r->stream[0], r->stream[1], r->stream[2]}};
    const ptrdiff_t bytes = mp_random_bits(r->format) / 8, per_word = 8 / bytes, size = mp_element_bytes[r->format];
    uint64_t buffer[ROOM];
    for (ptrdiff_t i = 0, count; i < n; i += count) {
        const ptrdiff_t skipped = (first + i) % per_word;
        count = mp_min(n - i, NUMBERS * per_word - skipped);
        const uint64_t *words = draw_words(r->key, counter, (uint64_t)((first + i) / per_word),
                                           mp_ceil_div(skipped + count, per_word), buffer);
        casts->stochastic[r->format](x + i, (const char *)words + skipped * bytes, out + i * size, count, r->mode);
    }
}

/* Round n elements of any float format. */
static void round_any(const mp_random *r, ptrdiff_t number, const char *x, ptrdiff_t n, char *out) {
    const mp_casts *casts = r->kernels->casts;
    mp_rounding how = r->rounding;
    float buffer[4 * NUMBERS];
    how.key = r->key;
    if (r->format == MP_F32) {
        mp_round_stochastically(casts, &how, number, n, (const float *)x, out);
        return;
    }
    for (ptrdiff_t i = 0, count; i < n; i += count) {
        const char *const from = x + i * r->size;
        count = mp_min(n - i, 4 * NUMBERS);
        if (r->format == MP_F64) casts->round_odd((const double *)from, buffer, count);
        else casts->widen[r->format](from, buffer, count, 0);
        mp_round_stochastically(casts, &how, number + i, count, buffer, out + i * r->out_size);
    }
}

void mp_drop_weights(const mp_weight_dropout *d, ptrdiff_t target, ptrdiff_t head, ptrdiff_t first, ptrdiff_t n,
                     float *weights) {
    const block counter = {{0, (uint64_t)head, (uint64_t)target, 2}};
    uint64_t buffer[ROOM];
    for (ptrdiff_t i = 0, count; i < n; i += count) {
        count = mp_min(n - i, NUMBERS);
        const uint64_t *words = draw_words(d->key, counter, (uint64_t)(first + i), count, buffer);
        for (ptrdiff_t j = 0; j < count; j++)
            weights[i + j] = words[j] >> 11 >= d->least ? weights[i + j] * d->factor : 0.0f;
    }
}

/* An odd multiple of 2^-24 between -1 and 1. */
static float between(uint64_t word) { return (float)(2 * (int32_t)(word >> 40) + 1 - (1 << 24)) * 0x1p-24f; }

/* Number i is x sqrt(-2 log(s) / s), s = x^2 + y^2, for the first pair of numbers x, y between -1 and 1 with s < 1. The
 * pairs are words 0 and 1, then 2 and 3, of the Philox blocks with the counters (i + 1, t, 0, 1) for t = 0, 1, ... */
static void draw_normal(const mp_random *r, ptrdiff_t first, ptrdiff_t n, float *out) {
    float square[NUMBERS], logarithm[NUMBERS];
    for (ptrdiff_t i = 0; i < n; i++) {
        block b;
        int pair = 2;
        for (uint64_t t = 0;; pair += 2) {
            if (pair == 4 || t == 0)
                b = (block){{(uint64_t)(first + i) + 1, t++, 0, 1}}, philox(r->key, &b, 1), pair = 0;
            const double x = between(b.word[pair]), y = between(b.word[pair + 1]);
            out[i] = (float)x, square[i] = (float)(x * x + y * y);
            if (square[i] < 1.0f) break;
        }
    }
    r->kernels->rows->functions[MP_LOG](square, NULL, n, logarithm);
    for (ptrdiff_t i = 0; i < n; i++) out[i] *= sqrtf(-2.0f * logarithm[i] / square[i]);
}

static ptrdiff_t lines_of(const mp_random *r) {
    ptrdiff_t lines = 1;
    for (int axis = 0; axis < r->axes - 1; axis++) lines *= r->shape[axis];
    return lines;
}

int mp_random_is_large(const void *context) {
    const mp_random *r = context;
    return (double)lines_of(r) * (double)r->shape[r->axes - 1] >= WORK;
}

ptrdiff_t mp_plan_random(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_random *r = context;
    (void)reproducible;
    r->kernels = mp_active();
    if (rows >= 0) r->shape[0] = rows;
    r->is_flat = 1;
    for (int axis = 0; axis < r->axes; axis++) r->is_flat &= r->step[axis] != 0;
    const ptrdiff_t length = r->shape[r->axes - 1], lines = lines_of(r), parts = r->is_flat ? lines * length : lines;
    r->share = mp_share(parts, threads == 1 || !mp_random_is_large(r) ? 1 : 4 * threads, r->is_flat ? 1 : length);
    if (r->is_flat) r->share = mp_ceil_div(r->share, 4 * NUMBERS) * 4 * NUMBERS;
    return mp_ceil_div(parts, r->share);
}

/* Compute `length` elements of the result from element `element` on. Their numbers begin with `number`, and all have
 * this number if `step` is 0. */
static void run_line(const mp_random *r, ptrdiff_t element, ptrdiff_t length, ptrdiff_t number, ptrdiff_t step) {
    uint64_t buffer[ROOM];
    if (r->kind == MP_ROUND_RANDOMLY) {
        round_any(r, number, r->x + element * r->size, length, r->out + element * r->out_size);
        return;
    }
    for (ptrdiff_t i = 0, n; i < length; i += n) {
        const ptrdiff_t at = (element + i) * r->size, first = number + i * step;
        n = mp_min(length - i, NUMBERS);
        if (r->kind == MP_NORMAL) {
            draw_normal(r, first, n, (float *)(r->out + at));
            continue;
        }
        const uint64_t *words = step ? draw_words(r->key, (block){{0}}, (uint64_t)first, n, buffer)
                                     : draw_one(r->key, (uint64_t)first, n, buffer);
        if (r->kind == MP_DROPOUT) drop(r, words, r->x + at, n, r->out + at);
        else for (ptrdiff_t j = 0; j < n; j++) ((float *)(r->out + at))[j] = (float)(words[j] >> 40) * 0x1p-24f;
    }
}

void mp_run_random(void *context, ptrdiff_t task) {
    const mp_random *r = context;
    if (r->kind == MP_NEXT_KEY) {
        uint32_t *out = (uint32_t *)r->out;
        out[0] = r->key[0], out[1] = r->key[1] + 1;
        return;
    }
    const ptrdiff_t before = r->rows_before ? *r->rows_before * r->step[0] : 0;
    const ptrdiff_t length = r->shape[r->axes - 1], lines = lines_of(r), first = task * r->share;
    if (r->is_flat) {
        run_line(r, first, mp_min(first + r->share, lines * length) - first, before + first, 1);
        return;
    }
    for (ptrdiff_t line = first; line < mp_min(first + r->share, lines); line++) {
        ptrdiff_t number = before;
        for (ptrdiff_t axis = r->axes - 2, rest = line; axis >= 0; rest /= r->shape[axis--])
            number += rest % r->shape[axis] * r->step[axis];
        run_line(r, line * length, length, number, r->step[r->axes - 1]);
    }
}
