/* Updates of variables, in pieces that stay in the L1 cache. Compilers vectorize each of the loops. */
#include <math.h>

#include "vocabulary.h"

#include "updates/updates.h"

enum { PIECE = 1024 }; /* elements */

/* A rule for one piece: its inputs are w and r, its outputs w and s, its numbers n. w is the variable after decay. */
#define RULE(NAME)                                                                                                     \
    static void NAME(ptrdiff_t count, float *restrict w, const float *restrict g, const float *restrict r0,            \
                     const float *restrict r1, const float *restrict r2, float *restrict s0, float *restrict s1,       \
                     float *restrict s2, const float *restrict n)
#define EACH for (ptrdiff_t i = 0; i < count; i++)
#define UNUSED_FROM_1 (void)r1, (void)r2, (void)s1, (void)s2
#define UNUSED_FROM_2 (void)r2, (void)s2

RULE(sgd) {
    (void)r0, (void)s0, UNUSED_FROM_1;
    EACH w[i] -= g[i] * n[0];
}

RULE(momentum) {
    UNUSED_FROM_1;
    EACH {
        s0[i] = r0[i] * n[1] - g[i] * n[0];
        w[i] += s0[i];
    }
}

RULE(nesterov) {
    UNUSED_FROM_1;
    EACH {
        s0[i] = r0[i] * n[1] - g[i] * n[0];
        w[i] += s0[i] * n[1] - g[i] * n[0];
    }
}

RULE(adam) {
    UNUSED_FROM_2;
    EACH {
        s0[i] = r0[i] + (g[i] - r0[i]) * n[0];
        s1[i] = r1[i] + (g[i] * g[i] - r1[i]) * n[1];
        w[i] -= s0[i] * n[2] / (sqrtf(s1[i]) + n[3]);
    }
}

RULE(amsgrad) {
    EACH {
        s0[i] = r0[i] + (g[i] - r0[i]) * n[0];
        const float v = s1[i] = r1[i] + (g[i] * g[i] - r1[i]) * n[1];
        s2[i] = r2[i] > v || r2[i] != r2[i] ? r2[i] : v;
        w[i] -= s0[i] * n[2] / (sqrtf(s2[i]) + n[3]);
    }
}

RULE(rmsprop) {
    UNUSED_FROM_1;
    EACH {
        s0[i] = r0[i] * n[1] + g[i] * g[i] * n[2];
        w[i] -= g[i] * n[0] / sqrtf(s0[i] + n[3]);
    }
}

RULE(rmsprop_momentum) {
    UNUSED_FROM_2;
    EACH {
        s0[i] = r0[i] * n[1] + g[i] * g[i] * n[2];
        s1[i] = r1[i] * n[4] + g[i] * n[0] / sqrtf(s0[i] + n[3]);
        w[i] -= s1[i];
    }
}

RULE(rmsprop_centered) {
    UNUSED_FROM_2;
    EACH {
        s0[i] = r0[i] * n[1] + g[i] * g[i] * n[2];
        s1[i] = r1[i] * n[1] + g[i] * n[2];
        w[i] -= g[i] * n[0] / sqrtf(s0[i] - s1[i] * s1[i] + n[3]);
    }
}

RULE(rmsprop_centered_momentum) {
    EACH {
        s0[i] = r0[i] * n[1] + g[i] * g[i] * n[2];
        s2[i] = r2[i] * n[1] + g[i] * n[2];
        s1[i] = r1[i] * n[4] + g[i] * n[0] / sqrtf(s0[i] - s2[i] * s2[i] + n[3]);
        w[i] -= s1[i];
    }
}

RULE(adagrad) {
    UNUSED_FROM_1;
    EACH {
        s0[i] = r0[i] + g[i] * g[i];
        w[i] -= g[i] * n[0] / sqrtf(s0[i] + n[1]);
    }
}

RULE(lion) {
    UNUSED_FROM_1;
    EACH {
        const float step = r0[i] * n[1] + g[i] * n[2];
        w[i] -= (step > 0.0f ? 1.0f : step < 0.0f ? -1.0f : step) * n[0]; /* NaN gives NaN */
        s0[i] = r0[i] * n[3] + g[i] * n[4];
    }
}

typedef void rule_function(ptrdiff_t, float *restrict, const float *restrict, const float *restrict,
                           const float *restrict, const float *restrict, float *restrict, float *restrict,
                           float *restrict, const float *restrict);
static rule_function *const rules[] = {
#define MP_UPDATE(NAME, WORD, SLOTS) WORD,
#include "updates/updates.def"
};

/* Whether n elements are all finite. */
static int are_finite(const float *x, ptrdiff_t n) {
    uint32_t others = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        others |= (bits & 0x7FFFFFFFu) > 0x7F7FFFFFu;
    }
    return !others;
}

/* Scale and clip n elements of the gradient; return the result: in `buffer` if it differs, else `g`. */
static const float *prepared(const mp_update *u, const float *g, ptrdiff_t n, float *restrict buffer) {
    if (u->divisor == 1.0f && u->factor == 1.0f && u->limit == INFINITY) return g;
    const float limit = u->limit;
    for (ptrdiff_t i = 0; i < n; i++) buffer[i] = g[i] / u->divisor;
    if (u->factor != 1.0f)
        for (ptrdiff_t i = 0; i < n; i++) buffer[i] *= u->factor;
    if (limit != INFINITY)
        for (ptrdiff_t i = 0; i < n; i++)
            buffer[i] = buffer[i] < -limit ? -limit : buffer[i] > limit ? limit : buffer[i];
    return buffer;
}

extern mp_update_function MP_EXPORTED(update);
int MP_EXPORTED(update)(const mp_update *u, ptrdiff_t first, ptrdiff_t end) {
    float buffer[PIECE];
    const float *r[MP_MOST_SLOTS] = {NULL};
    float *s[MP_MOST_SLOTS] = {NULL};
    int finite = 1;
    for (ptrdiff_t at = first; at < end; at += PIECE) {
        const ptrdiff_t n = end - at < PIECE ? end - at : PIECE;
        const float *const old = u->w + at, *const g = prepared(u, u->g + at, n, buffer);
        float *const w = u->w_out + at;
        finite &= are_finite(u->g + at, n);
        if (u->decay != 0.0f)
            for (ptrdiff_t i = 0; i < n; i++) w[i] = old[i] - old[i] * u->decay;
        else memcpy(w, old, (size_t)n * sizeof *w);
        for (int i = 0; i < MP_MOST_SLOTS && u->slot[i]; i++) r[i] = u->slot[i] + at, s[i] = u->slot_out[i] + at;
        rules[u->rule](n, w, g, r[0], r[1], r[2], s[0], s[1], s[2], u->number);
    }
    return finite;
}
