/* What the library needs from the operating system. It is implemented in system_linux.c and system_macos.c, each
 * together with system_posix.c, and in system_windows.c; all other files use only the C standard library. */
#ifndef MP_SYSTEM_H
#define MP_SYSTEM_H

#include <stddef.h>
#include <stdint.h>
#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "kernels.h"

MP_SHARED_BEGIN

/* ---- locks. Each is initialized by MP_LOCK, MP_CONDITION or MP_ONCE, and never destroyed. */
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

/* Release the lock, wait until the condition is signalled (rarely, return without a signal), take the lock again. */
void mp_wait(mp_condition *condition, mp_lock *lock);
void mp_wait_at_most(mp_condition *condition, mp_lock *lock, int milliseconds);
void mp_wake_one(mp_condition *condition);
void mp_wake_all(mp_condition *condition);

/* Call run() once for each `once`. Other calls wait until it has returned. */
void mp_do_once(mp_once *once, void (*run)(void));

/* ---- threads */

/* Start a detached thread that gets no signals except those of its own faults. `stack` is the size of its stack in
 * bytes. Return nonzero if it cannot be created. */
int mp_start_thread(mp_thread *thread, void *(*run)(void *), void *argument, size_t stack);

/* A time in milliseconds, from a clock that is cheap to read and may be 16 ms late. */
int64_t mp_milliseconds(void);

/* Let other threads run. */
void mp_yield(void);

/* The number of CPUs on which the calling thread may run (0 if the operating system cannot bind threads to CPUs, or
 * does not report it), and the number of all CPUs. */
int mp_allowed_cpus(void);
int mp_all_cpus(void);

/* Let threads run on every CPU of the caller except the one on which it runs now; call this before they are woken.
 * Otherwise Linux often wakes a thread on the caller's CPU, where it waits until the caller's time slice ends. Mean
 * time of a call on two threads, without and with this:
 *   bfloat16 product 64x768x768, after 0.3 ms of sleep   368, 211 us; after 5 ms 413, 241 us
 *   cast of 2^18 float32 to bfloat16, without a pause     29,  14 us
 * Products of a millisecond without a pause take as long either way (Zen 4, 2 CPUs, 2 x 9 interleaved rounds of 200
 * calls, November 2026). It does nothing on macOS, where threads cannot be bound to CPUs, and on Windows. */
void mp_keep_away(const mp_thread *threads, int count);

/* Have run() called in the child of every fork(). Return nonzero if that fails. */
int mp_after_fork(void (*run)(void));

/* Thread-local values. When a thread ends, at_end is called with its value, unless that is NULL. The first two
 * functions return nonzero on failure. */
int mp_make_key(mp_key *key, void (*at_end)(void *));
int mp_set_value(mp_key key, void *value);
void *mp_get_value(mp_key key); /* NULL if the thread has set none */

/* ---- memory */

/* Allocate `bytes` bytes, aligned to a cache line; NULL if there is no memory. */
void *mp_allocate(size_t bytes);
void mp_release(void *block);

/* ---- the CPU */

/* The size of the data cache of a level (1, 2, 3) in bytes; 0 if the operating system does not report it. */
ptrdiff_t mp_system_cache_bytes(int level);

/* Ask the operating system for AMX tiles, whose state is 8 KiB for each thread; return whether this process may use
 * them. */
int mp_ask_for_tiles(void);

MP_SHARED_END
#endif
