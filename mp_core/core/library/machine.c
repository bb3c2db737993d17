/* The properties of this machine on which plans depend. */
#include <stdatomic.h>

#include "library/plan.h"
#include "library/system.h"

/* The largest power of two that is at most n. With such cache sizes, ranges of K divide K blocks. */
static ptrdiff_t power_of_two(ptrdiff_t n) {
    ptrdiff_t power = 1;
    while (2 * power <= n) power *= 2;
    return power;
}

mp_machine mp_machine_of(mp_cpu_family family, ptrdiff_t l1d, ptrdiff_t l2) {
    return (mp_machine){&mp_tunings[family], power_of_two(l1d), power_of_two(l2)};
}

static mp_machine here;
static mp_once once = MP_ONCE;

static atomic_int seen;

static void look(void) {
    here = mp_machine_of(mp_cpu_family_here(), mp_cpu_cache_bytes(1), mp_cpu_cache_bytes(2));
    atomic_store_explicit(&seen, 1, memory_order_release);
}

const mp_machine *mp_this_machine(void) {
    if (!atomic_load_explicit(&seen, memory_order_acquire)) mp_do_once(&once, look);
    return &here;
}
