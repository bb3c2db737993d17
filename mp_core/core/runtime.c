#include "runtime.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic(const mp_kernels *) active;

const mp_kernels *mp_active(void) { return atomic_load_explicit(&active, memory_order_acquire); }
void mp_activate(const mp_kernels *kernels) { atomic_store_explicit(&active, kernels, memory_order_release); }

static atomic_int team_started, team_lost;

static _Thread_local struct {
    void *block;
    size_t bytes;
} scratch;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t scratch_key; /* its value is the block, so that the thread's end frees it */
static int no_scratch_key;

static void after_fork_in_child(void) { atomic_store(&team_lost, atomic_load(&team_started)); }

/* Other destructors of the thread may still compute: they get a new block, and this runs again. */
static void free_scratch(void *block) {
    free(block);
    scratch.block = NULL;
    scratch.bytes = 0;
}

static void set_up(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
    no_scratch_key = pthread_key_create(&scratch_key, free_scratch);
}

/* GNU OpenMP cannot run a team in the child of a process that has run one: after fork() the child must not try. */
static int enter_team(void) {
    pthread_once(&once, set_up);
    if (atomic_load(&team_lost)) return 0;
    atomic_store(&team_started, 1);
    return 1;
}

enum { MOST_RANGES = 64 };

typedef struct {
    _Alignas(64) atomic_ptrdiff_t next; /* in a cache line of its own */
} range;

void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *, ptrdiff_t), void *context) {
#ifdef _OPENMP
    if (threads > tasks) threads = (int)tasks;
    if (threads > 1 && enter_team()) {
        const int ranges = threads < MOST_RANGES ? threads : MOST_RANGES;
        range own[MOST_RANGES];
        for (int r = 0; r < ranges; r++) atomic_init(&own[r].next, r * tasks / ranges);
#pragma omp parallel num_threads(threads)
        for (int turn = 0, me = omp_get_thread_num(); turn < ranges; turn++) {
            const int r = (me + turn) % ranges;
            const ptrdiff_t end = (r + 1) * tasks / ranges;
            for (ptrdiff_t i; (i = atomic_fetch_add_explicit(&own[r].next, 1, memory_order_relaxed)) < end;)
                run(context, i);
        }
        return;
    }
#else
    (void)threads;
    (void)enter_team;
#endif
    for (ptrdiff_t index = 0; index < tasks; index++) run(context, index);
}

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
