#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic(const mp_kernels *) active;

const mp_kernels *mp_active(void) { return atomic_load_explicit(&active, memory_order_acquire); }
void mp_activate(const mp_kernels *kernels) { atomic_store_explicit(&active, kernels, memory_order_release); }

static atomic_int team_started, team_lost;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key;

static void after_fork_in_child(void) { atomic_store(&team_lost, atomic_load(&team_started)); }

static void set_up(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
    pthread_key_create(&scratch_key, free);
}

int mp_enter_team(void) {
    pthread_once(&once, set_up);
    if (atomic_load(&team_lost)) return 0;
    atomic_store(&team_started, 1);
    return 1;
}

static _Thread_local struct {
    void *block;
    size_t bytes;
} scratch;

void *mp_scratch(size_t bytes) {
    if (scratch.block && bytes <= scratch.bytes) return scratch.block;
    pthread_once(&once, set_up);
    const size_t rounded = (bytes / 4096 + 1) * 4096;
    void *block = aligned_alloc(64, rounded);
    if (!block) return NULL;
    free(scratch.block);
    scratch.block = block;
    scratch.bytes = rounded;
    pthread_setspecific(scratch_key, block);
    return block;
}
