#include "library/update.h"

#include "library/plan.h"
#include "library/runtime.h"

typedef struct {
    const mp_update *update;
    mp_update_function *function;
    ptrdiff_t count;
    atomic_int others; /* whether a task has found an element of the gradient that is not finite */
} update_call;

static void run_task(void *context, ptrdiff_t task) {
    update_call *const c = context;
    const ptrdiff_t first = task * MP_UPDATE_SHARE, end = mp_min(first + MP_UPDATE_SHARE, c->count);
    if (!c->function(c->update, first, end)) atomic_store(&c->others, 1);
}

int mp_run_update(const mp_update *u, ptrdiff_t count, int threads) {
    update_call c = {.update = u, .function = mp_update_of(mp_active()), .count = count};
    if (count < MP_UPDATE_WORK) return c.function(u, 0, count);
    mp_parallel_for(threads, mp_ceil_div(count, MP_UPDATE_SHARE), run_task, &c);
    return !atomic_load(&c.others);
}
