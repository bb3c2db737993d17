/* What the library asks of the operating system. system_linux.c, system_macos.c and system_windows.c answer, each alone
 * or with system_posix.c; the other files use the C standard library only. */
#ifndef MP_SYSTEM_H
#define MP_SYSTEM_H

#include <stddef.h>
#include <stdint.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "kernels.h"

MP_SHARED_BEGIN

/* ---- locks. Each begins as MP_LOCK, MP_CONDITION or MP_ONCE, and is never given up. */
#if defined(_WIN32)
typedef struct { void *state; } mp_lock, mp_condition, mp_once;  /* SRWLOCK, CONDITION_VARIABLE, INIT_ONCE */
typedef void *mp_thread;                                        /* HANDLE */
typedef unsigned long mp_key;                                   /* of fiber-local storage, which has destructors */
#define MP_LOCK {NULL}
#define MP_CONDITION {NULL}
#define MP_ONCE {NULL}
#else
typedef pthread_mutex_t mp_lock;
typedef pthread_cond_t mp_condition;
typedef pthread_once_t mp_once;
typedef pthread_t mp_thread;
typedef pthread_key_t mp_key;
#define MP_LOCK PTHREAD_MUTEX_INITIALIZER
#define MP_CONDITION PTHREAD_COND_INITIALIZER
#define MP_ONCE PTHREAD_ONCE_INIT
#endif

void mp_take(mp_lock *lock);
void mp_give(mp_lock *lock);

/* Give the lock, wait until the condition is signalled (or, rarely, for nothing), and take the lock again. */
void mp_wait(mp_condition *condition, mp_lock *lock);
void mp_wait_at_most(mp_condition *condition, mp_lock *lock, int milliseconds);
void mp_wake_one(mp_condition *condition);
void mp_wake_all(mp_condition *condition);

/* Call run() in the first call with this `once`; later calls return after it has ended. */
void mp_do_once(mp_once *once, void (*run)(void));

/* ---- threads */

/* Start a thread that nobody waits for and that no signal interrupts, except by its own faults. `stack` is in bytes.
 * Return nonzero if it cannot be created. */
int mp_start_thread(mp_thread *thread, void *(*run)(void *), void *argument, size_t stack);

/* Milliseconds since some moment, by a clock that costs little to read and may be 16 ms late. */
int64_t mp_milliseconds(void);

/* Let others run. */
void mp_yield(void);

/* The number of CPUs on which the calling thread may run; 0 where threads are not bound to CPUs, or if the operating
 * system does not say. And the number of all. */
int mp_allowed_cpus(void);
int mp_all_cpus(void);

/* Before threads are woken: let them run on every CPU on which the caller may run, except the one on which it runs now.
 * Without this, Linux often wakes a thread on the CPU of the one that wakes it, where it waits until the caller's time
 * slice ends. Mean time of a call on two threads, without -> with:
 *   bfloat16 product 64x768x768, after 0.3 ms of sleep   368 -> 211 us, after 5 ms 413 -> 241 us
 *   cast of 2^18 float32 to bfloat16, back to back        29 ->  14 us
 * Products of a millisecond, back to back, take as long either way (Zen 4, 2 CPUs, 2 x 9 interleaved rounds of 200
 * calls, November 2026). It does nothing on macOS, which binds no thread, and on Windows. */
void mp_keep_away(const mp_thread *threads, int count);

/* Have run() called in the child of every fork(). Return nonzero if that cannot be promised. */
int mp_after_fork(void (*run)(void));

/* Values of which each thread has its own. When a thread ends, at_end gets its value, unless that is NULL. The first
 * two return nonzero where there is no room. */
int mp_make_key(mp_key *key, void (*at_end)(void *));
int mp_set_value(mp_key key, void *value);
void *mp_get_value(mp_key key); /* NULL if the thread has set none */

/* ---- memory */

/* `bytes` bytes that begin with a cache line, or NULL. */
void *mp_allocate(size_t bytes);
void mp_release(void *block);

/* ---- the CPU */

/* Bytes of the data cache of a level (1, 2, 3) as the operating system knows them; 0 if it does not say. */
ptrdiff_t mp_system_cache_bytes(int level);

/* Whether this process may use AMX tiles from now on: their state is 8 KiB for each thread, so one has to ask. */
int mp_ask_for_tiles(void);

MP_SHARED_END
#endif
