/* What all callers share in one process: the kernel tables in use, the threads, and scratch memory. */
#ifndef MP_RUNTIME_H
#define MP_RUNTIME_H

#include <stdatomic.h>
#include <stddef.h>

#include "kernels.h"

MP_SHARED_BEGIN

const mp_kernels *mp_active(void);
void mp_activate(const mp_kernels *kernels);

/* Whether products in pairs are added in the order that every CPU can compute, also where there are AMX tiles for them:
 * the setting of the process, which MP_CORE_REPRODUCIBLE makes at the first call unless mp_set_reproducible did before.
 * -1 if that variable is neither 0 nor 1. */
int mp_is_reproducible(void);
void mp_set_reproducible(int reproducible);

/* Call run(context, index) for every index from 0 to tasks - 1, on up to `threads` threads, the caller's among them.
 * Each thread begins with its own range of indices, the same for equal arguments, so that its caches may still hold
 * what it used; a thread that is done takes indices from the ranges of others. */
void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *context, ptrdiff_t index), void *context);

/* One operation: calls of run(context, index) for the indices from 0 to tasks - 1, in any order. */
typedef struct {
    void (*run)(void *context, ptrdiff_t index);
    void *context;
    ptrdiff_t tasks;
} mp_step;

/* How far the threads are in a step. `next` is the first task of a range that nobody has begun; `ended` counts the
 * tasks that are done. Each has a cache line of its own. */
enum { MP_MOST_RANGES = 64 };
typedef struct {
    struct { _Alignas(64) atomic_ptrdiff_t next; } own[MP_MOST_RANGES];
    _Alignas(64) atomic_ptrdiff_t ended;
} mp_progress;

/* Run steps one after the other on up to `threads` threads, the caller's among them. They stay together from the first
 * step to the last: between two steps there is a barrier, and nobody sleeps. `progress` is room for the state of each
 * step; its contents do not matter. */
void mp_run_steps(int threads, const mp_step *steps, ptrdiff_t count, mp_progress *progress);

/* ---- ending early
 *
 * While a thread runs operations between mp_listen and mp_end_listening, it calls ask(context) from time to time, at
 * least MP_ASKED_AFTER milliseconds apart: between two tasks, between two blocks of a product, or while it waits for
 * its helpers. Once that returns nonzero, no thread begins another task or block of the operation, which returns as
 * soon as those that run have ended; what it was to write is undefined. ask() may run operations of its own. */
enum { MP_ASKED_AFTER = 50 };
typedef struct {
    int (*ask)(void *context);
    void *context;
    /* What follows is the library's. */
    const void *asker; /* which thread calls ask() */
    int64_t next;      /* when it does so next, in milliseconds; 0: not known yet */
    atomic_int stopped;
} mp_listener;

void mp_listen(mp_listener *listener, int (*ask)(void *context), void *context);
int mp_end_listening(mp_listener *listener); /* whether ask() has returned nonzero */

/* Whether the operation that runs on this thread is to return. The thread that listens asks, if it is time to. */
int mp_stopped(void);

/* The listener of the operation that runs on this thread, or NULL. Helpers take over that of the caller. */
mp_listener *mp_listener_here(void);
void mp_set_listener(mp_listener *listener);

/* ---- helpers and memory */

/* Changes by `change` how many callers are about to run more tasks. While there are any, helpers wait for tasks awake,
 * up to about a millisecond each time, instead of some microseconds. */
void mp_keep_awake(int change);

/* At least `bytes` bytes of scratch, aligned to 64, for the calling thread until it calls this again; NULL if there is
 * no memory. The block of a thread grows, is reused, and is freed when the thread ends. */
void *mp_scratch(size_t bytes);

/* Memory cut into slots: one for each of the threads that may run tasks at the same time. */
enum { MP_MOST_THREADS = 1024, MP_SLOT_WORDS = MP_MOST_THREADS / 64 };
typedef struct {
    char *memory;
    ptrdiff_t bytes; /* of a slot */
    atomic_uint_least64_t free[MP_SLOT_WORDS]; /* bit i of word w: slot 64 w + i is free */
} mp_slots;

/* Cut memory into `count` slots of `bytes` bytes, at most MP_MOST_THREADS. */
void mp_set_slots(mp_slots *slots, void *memory, ptrdiff_t bytes, int count);

/* Take a slot, of which there is one for each thread, and give it back. */
char *mp_take_slot(mp_slots *slots);
void mp_give_slot(mp_slots *slots, const char *slot);

/* Buffers on the stack, in L1. Each begins with a cache line, so that no vector store crosses two: int4 codes to
 * numbers took 1.25 times as long where stores did (4096x8192, Zen 4, November 2026). */
enum { MP_CHUNK = 4096 }; /* elements that pass through a buffer at a time */
typedef struct { _Alignas(64) float at[MP_CHUNK]; } mp_chunk_floats;
typedef struct { _Alignas(64) uint8_t at[MP_CHUNK]; } mp_chunk_codes;

MP_SHARED_END
#endif
