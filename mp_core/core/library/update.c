#include "library/update.h"

#include <math.h>

#include "library/plan.h"
#include "library/runtime.h"

enum { PIECE = 512 }; /* elements that are widened at a time; their nine arrays are 18 KiB of the L1 cache */

typedef struct {
    const mp_stored_update *update;
    const mp_kernels *kernels;
    mp_update_function *function;
    ptrdiff_t count;
    atomic_int others; /* whether a task has found an element of the gradient that is not finite */
} update_call;

/* f32 arrays of one piece. */
typedef struct {
    float w[PIECE], g[PIECE], slot[MP_MOST_SLOTS][PIECE], w_out[PIECE], slot_out[MP_MOST_SLOTS][PIECE];
} piece;

/* Widen n elements from element `at` of `from` on. */
static void widen(const mp_casts *casts, int format, const char *from, ptrdiff_t at, ptrdiff_t n, float *to) {
    casts->widen[format](from + at * mp_element_bytes[format], to, n, 0);
}

/* Round n elements of the array with this number and write them to `to`, from element `at` on. */
static void store(const update_call *c, int number, ptrdiff_t at, ptrdiff_t n, const float *from, char *to) {
    const mp_stored_update *const u = c->update;
    const mp_casts *casts = c->kernels->casts;
    char *const out = to + at * mp_element_bytes[u->format];
    mp_rounding rounding = u->rounding;
    rounding.stream[1] = (uint64_t)number, rounding.format = u->format;
    if (rounding.key && u->format != MP_F32) mp_round_stochastically(casts, &rounding, at, n, from, out);
    else casts->narrow[u->format](from, out, n, 0);
}

/* Write the nearest numbers to p->w_out, and the differences. */
static void store_compensated(const update_call *c, ptrdiff_t at, ptrdiff_t n, piece *p) {
    const mp_stored_update *const u = c->update;
    c->kernels->casts->narrow[u->format](p->w_out, u->w_out + at * mp_element_bytes[u->format], n, 0);
    widen(c->kernels->casts, u->format, u->w_out, at, n, p->w);
    for (ptrdiff_t i = 0; i < n; i++) p->w[i] = isfinite(p->w[i]) ? p->w_out[i] - p->w[i] : 0.0f;
    store(c, 0, at, n, p->w, u->rest_out);
}

static int run_piece(const update_call *c, ptrdiff_t at, ptrdiff_t n, piece *p) {
    const mp_stored_update *const u = c->update;
    const mp_casts *casts = c->kernels->casts;
    mp_update f = u->rule;
    f.w = p->w, f.g = p->g, f.w_out = p->w_out;
    widen(casts, u->format, u->w, at, n, p->w);
    widen(casts, u->g_format, u->g, at, n, p->g);
    if (u->rest) {
        widen(casts, u->format, u->rest, at, n, p->w_out);
        for (ptrdiff_t i = 0; i < n; i++) p->w[i] += p->w_out[i];
    }
    for (int i = 0; i < MP_MOST_SLOTS && u->slot[i]; i++) {
        widen(casts, u->format, u->slot[i], at, n, p->slot[i]);
        f.slot[i] = p->slot[i], f.slot_out[i] = p->slot_out[i];
    }
    const int finite = c->function(&f, 0, n);
    for (int i = 0; i < MP_MOST_SLOTS && u->slot[i]; i++) store(c, 1 + i, at, n, p->slot_out[i], u->slot_out[i]);
    if (u->rest) store_compensated(c, at, n, p);
    else store(c, 0, at, n, p->w_out, u->w_out);
    return finite;
}

/* Update the elements from `first` to `end`, without copies if all arrays are f32. */
static int run_range(const update_call *c, ptrdiff_t first, ptrdiff_t end) {
    const mp_stored_update *const u = c->update;
    if (u->format == MP_F32 && u->g_format == MP_F32) {
        mp_update f = u->rule;
        f.w = (const float *)u->w, f.g = (const float *)u->g, f.w_out = (float *)u->w_out;
        for (int i = 0; i < MP_MOST_SLOTS; i++)
            f.slot[i] = (const float *)u->slot[i], f.slot_out[i] = (float *)u->slot_out[i];
        return c->function(&f, first, end);
    }
    piece p;
    int finite = 1;
    for (ptrdiff_t at = first; at < end; at += PIECE) finite &= run_piece(c, at, mp_min(end - at, PIECE), &p);
    return finite;
}

static void run_task(void *context, ptrdiff_t task) {
    update_call *const c = context;
    const ptrdiff_t first = task * MP_UPDATE_SHARE, end = mp_min(first + MP_UPDATE_SHARE, c->count);
    if (!run_range(c, first, end)) atomic_store(&c->others, 1);
}

int mp_run_update(const mp_stored_update *u, ptrdiff_t count, int threads) {
    const mp_kernels *kernels = mp_active();
    update_call c = {.update = u, .kernels = kernels, .function = mp_update_of(kernels), .count = count};
    if (count < MP_UPDATE_WORK) return run_range(&c, 0, count);
    mp_parallel_for(threads, mp_ceil_div(count, MP_UPDATE_SHARE), run_task, &c);
    return !atomic_load(&c.others);
}
