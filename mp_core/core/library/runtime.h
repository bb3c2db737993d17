/* What a process has once: the kernels in use, the threads, scratch memory. */
#ifndef MP_RUNTIME_H
#define MP_RUNTIME_H

#include <stdatomic.h>
#include <stddef.h>

#include "kernels.h"

MP_SHARED_BEGIN

const mp_kernels *mp_active(void);
void mp_activate(const mp_kernels *kernels);

/* Whether products in pairs are added in the order that every CPU can compute, even if there are AMX tiles. This
 * applies to the whole process. Before the first mp_set_reproducible it is the value of the environment variable
 * MP_CORE_REPRODUCIBLE, read at the first call: -1 if that is neither 0 nor 1. */
int mp_is_reproducible(void);
void mp_set_reproducible(int reproducible);

/* Call run(context, index) for every index from 0 to tasks - 1, on up to `threads` threads, including the caller's.
 * Each thread starts with its own range of indices. Equal arguments give equal ranges, so that a thread may find data
 * of an earlier call in its caches. A thread that has completed its range takes indices from the ranges of others. */
void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *context, ptrdiff_t index), void *context);

/* A step: run(context, index) for every index from 0 to tasks - 1, in any order. */
typedef struct {
    void (*run)(void *context, ptrdiff_t index);
    void *context;
    ptrdiff_t tasks;
} mp_step;

/* The progress of the threads in a step: `next`, for each range, the first task that has not been started; `ended`, how
 * many tasks are complete. Each has its own cache line. */
enum { MP_MOST_RANGES = 64 };
typedef struct {
    struct { _Alignas(64) atomic_ptrdiff_t next; } own[MP_MOST_RANGES];
    _Alignas(64) atomic_ptrdiff_t ended;
} mp_progress;

/* Run steps one after the other on up to `threads` threads, including the caller's, with a barrier after each step, at
 * which threads do not sleep. `progress` is an array of `count` elements, which need not be initialized. */
void mp_run_steps(int threads, const mp_step *steps, ptrdiff_t count, mp_progress *progress);

/* ---- ending early
 *
 * Between mp_listen and mp_end_listening, a thread that runs operations calls ask(context) from time to time, at least
 * MP_ASKED_AFTER milliseconds apart: between two tasks, between two blocks of a product, and while it waits for its
 * helpers. Once ask returns nonzero, no thread starts another task or block. The operation returns when the running
 * ones have ended, and its results are undefined. ask() may run operations itself. */
enum { MP_ASKED_AFTER = 50 };
typedef struct {
    int (*ask)(void *context);
    void *context;
    /* The other fields are set by the library. */
    const void *asker; /* the thread that calls ask() */
    int64_t next;      /* the time of the next call, in milliseconds; 0: not known yet */
    atomic_int stopped;
} mp_listener;

void mp_listen(mp_listener *listener, int (*ask)(void *context), void *context);
int mp_end_listening(mp_listener *listener); /* whether ask() has returned nonzero */

/* Whether the operation that runs on this thread has to stop. On the listening thread this may call ask(). */
int mp_stopped(void);

/* The listener of the operation that runs on this thread, or NULL. Helpers have that of the caller. */
mp_listener *mp_listener_here(void);
void mp_set_listener(mp_listener *listener);

/* ---- helpers and memory */

/* Add `change` to the number of callers that will run more tasks soon. While it is positive, helpers wait for tasks for
 * about a millisecond before they sleep, otherwise for some microseconds. */
void mp_keep_awake(int change);

/* At least `bytes` bytes of scratch, aligned to 64, for the calling thread until its next call of this; NULL if there
 * is no memory. A thread reuses its block, which grows if needed and is freed when the thread ends. */
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

/* Take a free slot (there is one for each thread); give it back. */
char *mp_take_slot(mp_slots *slots);
void mp_give_slot(mp_slots *slots, const char *slot);

/* Buffers on the stack, so small that they stay in L1. They are aligned to cache lines, so that no vector store crosses
 * one: otherwise dequantizing int4 took 1.25 times as long (4096x8192, Zen 4, November 2026). */
enum { MP_CHUNK = 4096 }; /* elements in a buffer */
typedef struct { _Alignas(64) float at[MP_CHUNK]; } mp_chunk_floats;
typedef struct { _Alignas(64) uint8_t at[MP_CHUNK]; } mp_chunk_codes;

MP_SHARED_END
#endif
