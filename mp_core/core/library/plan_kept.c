/* A cache of plans, one for each thread.
 *
 * Programs multiply the same few shapes again and again, and making a plan takes a large part of the time of a small
 * product. The cache is a hash table: a plan is kept until another problem has the same place. (Without it, calls from
 * Python of 1x64x64, 4x16x16 and 16x64x64 take 1.02 to 1.27 times as long: "kept plans" of special_cases.py; Zen 5,
 * November 2026.) */
#include <string.h>

#include "library/plan.h"
#include "library/system.h"

enum { PLACE_BITS = 6, PLACES = 1 << PLACE_BITS }; /* 23 KiB in all */

typedef struct {
    mp_problem problem; /* if the place is free, its kernels are NULL */
    mp_plan plan;
} place;

/* The value is the table of a thread, which is freed when the thread ends. A thread-local variable would use stack in
 * every thread of a program, and would end the process if there were no memory for it. */
static mp_key key;
static mp_once once = MP_ONCE;
static int no_key;

static void set_up(void) { no_key = mp_make_key(&key, mp_release); }

/* The table of this thread, or NULL if there is no memory. */
static place *places(void) {
    mp_do_once(&once, set_up);
    if (no_key) return NULL;
    place *kept = mp_get_value(key);
    if (kept) return kept;
    kept = mp_allocate(PLACES * sizeof *kept);
    if (kept) memset(kept, 0, PLACES * sizeof *kept);
    if (kept && !mp_set_value(key, kept)) return kept;
    mp_release(kept);
    return NULL;
}

/* The place of a problem in the table: the upper bits of a sum of M, N, K, both formats and the row stride of B, each
 * times an odd constant (multiplicative hashing). Problems that are equal in these share a place. */
static size_t number_of(const mp_problem *q) {
    const uint64_t types = (uint64_t)(q->a.format << 8 | q->b.format);
    const uint64_t sum = (uint64_t)q->m * 0x9E3779B97F4A7C15u + (uint64_t)q->n * 0xC2B2AE3D27D4EB4Fu
                         + (uint64_t)q->k * 0x165667B19E3779F9u + types * 0x27D4EB2F165667C5u
                         + (uint64_t)q->b.rs * 0x85EBCA77C2B2AE63u;
    return sum >> (64 - PLACE_BITS);
}

void mp_find_plan(const mp_problem *q, mp_plan *p) {
    place *kept = places();
    if (!kept) {
        mp_make_plan(q, p);
        return;
    }
    kept += number_of(q);
    if (memcmp(q, &kept->problem, sizeof *q)) {
        mp_make_plan(q, &kept->plan);
        memcpy(&kept->problem, q, sizeof *q); /* with its padding */
    }
    *p = kept->plan;
}
