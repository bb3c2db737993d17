#include "runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic(const mp_kernels *) active;

const mp_kernels *mp_active(void) { return atomic_load_explicit(&active, memory_order_acquire); }
void mp_activate(const mp_kernels *kernels) { atomic_store_explicit(&active, kernels, memory_order_release); }

static _Thread_local void *recording;
void **mp_recording(void) { return &recording; }

static _Thread_local struct {
    void *block;
    size_t bytes;
} scratch;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key; /* its value is the block: then free_scratch gets it when the thread ends */
static int no_scratch_key;

/* Runs when a thread ends. If another destructor of the thread computes later, it gets a new block, and this runs again. */
static void free_scratch(void *block) {
    free(block);
    scratch.block = NULL;
    scratch.bytes = 0;
}

static void set_up(void) { no_scratch_key = pthread_key_create(&scratch_key, free_scratch); }

void *mp_scratch(size_t bytes) {
    if (scratch.block && bytes <= scratch.bytes) return scratch.block;
    pthread_once(&once, set_up);
    const size_t rounded = (bytes / 4096 + 1) * 4096;
    void *block = aligned_alloc(64, rounded);
    if (!block || no_scratch_key || pthread_setspecific(scratch_key, block)) {
        free(block);
        return NULL;
    }
    free(scratch.block);
    scratch.block = block;
    scratch.bytes = rounded;
    return block;
}
