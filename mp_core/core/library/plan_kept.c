/* The plans that a thread has made, kept for its next products.
 *
 * Programs multiply the same few shapes again and again, and a small product takes little longer than its plan does. So each
 * thread keeps the plan in the place that a hash of its problem names, until another problem takes the place. (Without
 * the kept plans, calls from Python of 1x64x64, 4x16x16 and 16x64x64 take 1.02 to 1.27 times as long: "kept plans" of
 * special_cases.py; Zen 5, November 2026.) */
#include <string.h>

#include "library/plan.h"

enum { PLACE_BITS = 6 }; /* 64 places, 22 KB of each thread's memory */

static _Thread_local struct {
    mp_problem problem; /* its kernels are NULL in a place that is free */
    mp_plan plan;
} kept[1 << PLACE_BITS];

/* The place of a problem: the upper bits of the sum of M, N, K, both formats and the row stride of B, each times an odd
 * constant (multiplicative hashing). Problems that differ in nothing else share a place. */
static size_t place_of(const mp_problem *q) {
    const uint64_t types = (uint64_t)(q->a.format << 8 | q->b.format);
    const uint64_t sum = (uint64_t)q->m * 0x9E3779B97F4A7C15u + (uint64_t)q->n * 0xC2B2AE3D27D4EB4Fu
                         + (uint64_t)q->k * 0x165667B19E3779F9u + types * 0x27D4EB2F165667C5u
                         + (uint64_t)q->b.rs * 0x85EBCA77C2B2AE63u;
    return sum >> (64 - PLACE_BITS);
}

const mp_plan *mp_plan_of(const mp_problem *q) {
    const size_t place = place_of(q);
    if (memcmp(q, &kept[place].problem, sizeof *q)) {
        mp_make_plan(q, &kept[place].plan);
        memcpy(&kept[place].problem, q, sizeof *q); /* its padding too */
    }
    return &kept[place].plan;
}
