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

static _Thread_local struct {
    void *block;
    size_t bytes;
} scratch;

static mp_once once = MP_ONCE;
static mp_key scratch_key; /* its value is the block, so that free_scratch is called with it when the thread ends */
static int no_scratch_key;

/* Called when a thread ends, and again if another destructor of the thread has used scratch since, which allocates a
 * new block. */
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

static _Thread_local mp_listener *listener;

mp_listener *mp_listener_here(void) { return listener; }
void mp_set_listener(mp_listener *l) { listener = l; }

void mp_listen(mp_listener *l, int (*ask)(void *), void *context) {
    l->ask = ask, l->context = context, l->asker = &listener, l->next = 0;
    atomic_init(&l->stopped, 0);
    listener = l;
}

int mp_end_listening(mp_listener *l) {
    listener = NULL;
    return atomic_load_explicit(&l->stopped, memory_order_relaxed);
}

/* Call ask(). It may run operations, which get other scratch than the task that this thread runs. */
static void ask(mp_listener *l) {
    void *const block = scratch.block;
    const size_t bytes = scratch.bytes;
    listener = NULL, scratch.block = NULL, scratch.bytes = 0;
    if (l->ask(l->context)) atomic_store_explicit(&l->stopped, 1, memory_order_relaxed);
    if (scratch.block) {
        mp_release(scratch.block);
        mp_set_value(scratch_key, block);
    }
    listener = l, scratch.block = block, scratch.bytes = bytes;
    l->next = mp_milliseconds() + MP_ASKED_AFTER;
}

int mp_stopped(void) {
    mp_listener *const l = listener;
    if (!l) return 0;
    if (l->asker == &listener) {
        const int64_t now = mp_milliseconds();
        if (!l->next) l->next = now + MP_ASKED_AFTER;
        if (now >= l->next) ask(l);
    }
    return atomic_load_explicit(&l->stopped, memory_order_relaxed);
}

void mp_set_slots(mp_slots *slots, void *memory, ptrdiff_t bytes, int count) {
    slots->memory = memory, slots->bytes = bytes;
    for (int word = 0; word < MP_SLOT_WORDS; word++, count -= 64)
        atomic_init(&slots->free[word], count >= 64 ? ~(uint_least64_t)0
                                        : count > 0 ? ((uint_least64_t)1 << count) - 1
                                                    : 0);
}

/* Take a free slot of one word; NULL if there is none. */
static char *take_of_word(mp_slots *slots, int word) {
    uint_least64_t free = atomic_load_explicit(&slots->free[word], memory_order_relaxed);
    while (free)
        if (atomic_compare_exchange_weak_explicit(&slots->free[word], &free, free & (free - 1), memory_order_acquire,
                                                  memory_order_relaxed))
            return slots->memory + (64 * word + __builtin_ctzll(free)) * slots->bytes;
    return NULL;
}

char *mp_take_slot(mp_slots *slots) {
    for (;;) { /* a slot is free, or another thread will give one back */
        for (int word = 0; word < MP_SLOT_WORDS; word++) {
            char *slot = take_of_word(slots, word);
            if (slot) return slot;
        }
    }
}

void mp_give_slot(mp_slots *slots, const char *slot) {
    const ptrdiff_t number = (slot - slots->memory) / slots->bytes;
    atomic_fetch_or_explicit(&slots->free[number / 64], (uint_least64_t)1 << number % 64, memory_order_release);
}
