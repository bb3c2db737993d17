#include "runtime.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "system.h"

static _Atomic(const mp_kernels *) active;

const mp_kernels *mp_active(void) { return atomic_load_explicit(&active, memory_order_acquire); }
void mp_activate(const mp_kernels *kernels) { atomic_store_explicit(&active, kernels, memory_order_release); }

enum { UNREAD = -1 };
static atomic_int reproducible = UNREAD;

void mp_set_reproducible(int value) { atomic_store_explicit(&reproducible, value, memory_order_relaxed); }

static int read_order(void) {
    const char *text = getenv("MP_CORE_REPRODUCIBLE");
    if (text && text[0] && ((text[0] != '0' && text[0] != '1') || text[1])) return UNREAD;
    int before = UNREAD;
    const int value = text && text[0] == '1';
    return atomic_compare_exchange_strong(&reproducible, &before, value) ? value : before;
}

int mp_is_reproducible(void) {
    const int value = atomic_load_explicit(&reproducible, memory_order_relaxed);
    return value == UNREAD ? read_order() : value;
}

static _Thread_local void *recording;
void **mp_recording(void) { return &recording; }

static _Thread_local struct {
    void *block;
    size_t bytes;
} scratch;

static mp_once once = MP_ONCE;
static mp_key scratch_key; /* its value is the block: then free_scratch gets it when the thread ends */
static int no_scratch_key;

/* Runs when a thread ends. If another destructor of the thread computes later, it gets a new block, and this runs again. */
static void free_scratch(void *block) {
    mp_release(block);
    scratch.block = NULL;
    scratch.bytes = 0;
}

static void set_up(void) { no_scratch_key = mp_make_key(&scratch_key, free_scratch); }

void *mp_scratch(size_t bytes) {
    if (scratch.block && bytes <= scratch.bytes) return scratch.block;
    mp_do_once(&once, set_up);
    const size_t rounded = (bytes / 4096 + 1) * 4096;
    void *block = mp_allocate(rounded);
    if (!block || no_scratch_key || mp_set_value(scratch_key, block)) {
        mp_release(block);
        return NULL;
    }
    mp_release(scratch.block);
    scratch.block = block;
    scratch.bytes = rounded;
    return block;
}

char *mp_take_slot(mp_slots *slots) {
    uint_least64_t free = atomic_load_explicit(&slots->free, memory_order_relaxed);
    for (;;) { /* one is free, or another thread gives one back */
        const uint_least64_t lowest = free & -free;
        if (!lowest) free = atomic_load_explicit(&slots->free, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(&slots->free, &free, free ^ lowest, memory_order_acquire,
                                                       memory_order_relaxed))
            return slots->memory + __builtin_ctzll(lowest) * slots->bytes;
    }
}

void mp_give_slot(mp_slots *slots, const char *slot) {
    const ptrdiff_t number = (slot - slots->memory) / slots->bytes;
    atomic_fetch_or_explicit(&slots->free, (uint_least64_t)1 << number, memory_order_release);
}
