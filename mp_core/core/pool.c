/* The threads that run the tasks of large operations. Callers work too, and wait for nobody who has not begun: a helper
 * that gets no CPU costs nothing. One pool serves all callers; its threads sleep when there is nothing to do, and never
 * end. */
#if defined(__linux__)
#define _GNU_SOURCE /* sched_getcpu and its like */
#include <sched.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "runtime.h"

enum {
    MOST_RANGES = 64,
    MOST_PLACED = 64, /* helpers that are told where to run */
    TURNS = 1000, /* of waiting awake, 10 to 50 microseconds, before a thread sleeps */
    TURNS_KEPT = 50 * TURNS, /* the same of helpers for whom a caller will have tasks: about a millisecond */
    STACK = 1 << 20, /* bytes, whatever the process gives its threads: kernels have tables of 66 KB on it */
};

typedef struct {
    _Alignas(64) atomic_ptrdiff_t next; /* in a cache line of its own */
} range;

typedef struct job {
    range own[MOST_RANGES];
    ptrdiff_t tasks;
    int ranges;
    unsigned rounding;  /* the caller's MXCSR: its helpers round as it does */
    void (*run)(void *context, ptrdiff_t index);
    void *context;
    int places;         /* for helpers who may still come; guarded, like `next` */
    atomic_int running; /* helpers at work; changed under the lock */
    struct job *next;
} job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Guarded: the jobs that helpers may join; how many helpers there are, and sleep; who they are. */
static job *jobs;
static int helpers, asleep;
static pthread_t threads_of[MOST_PLACED];
static atomic_uint posted; /* changes with every job */
static atomic_int callers; /* that will have more tasks */

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#if defined(__SSE__)
static unsigned get_rounding(void) { return _mm_getcsr(); }
static void set_rounding(unsigned rounding) { _mm_setcsr(rounding); }
#else
static unsigned get_rounding(void) { return 0; }
static void set_rounding(unsigned rounding) { (void)rounding; }
#endif

static void take_tasks(job *j, int me) {
    for (int turn = 0; turn < j->ranges; turn++) {
        const int r = (me + turn) % j->ranges;
        const ptrdiff_t end = (r + 1) * j->tasks / j->ranges;
        for (ptrdiff_t i; (i = atomic_fetch_add_explicit(&j->own[r].next, 1, memory_order_relaxed)) < end;)
            j->run(j->context, i);
    }
}

void mp_keep_awake(int change) { atomic_fetch_add_explicit(&callers, change, memory_order_relaxed); }

/* Waits awake for another job than those that were `seen`. */
static void wait_for_job(unsigned seen) {
    for (int turn = 0; atomic_load_explicit(&posted, memory_order_relaxed) == seen; turn++) {
        if (turn >= (atomic_load_explicit(&callers, memory_order_relaxed) > 0 ? TURNS_KEPT : TURNS)) return;
        pause_a_little();
    }
}

static job *open_job(void) {
    job *j = jobs;
    while (j && !j->places) j = j->next;
    return j;
}

static void *help(void *number) {
    pthread_mutex_lock(&lock);
    for (;;) {
        job *j = open_job();
        if (j) {
            j->places--;
            atomic_fetch_add(&j->running, 1);
            pthread_mutex_unlock(&lock);
            set_rounding(j->rounding);
            take_tasks(j, (int)(intptr_t)number);
            pthread_mutex_lock(&lock);
            if (atomic_fetch_sub(&j->running, 1) == 1) pthread_cond_broadcast(&done); /* j may be gone now */
            continue;
        }
        const unsigned seen = atomic_load(&posted);
        pthread_mutex_unlock(&lock);
        wait_for_job(seen);
        pthread_mutex_lock(&lock);
        if (atomic_load(&posted) != seen) continue;
        asleep++;
        pthread_cond_wait(&work, &lock);
        asleep--;
    }
    return NULL;
}

/* The child of a fork() has the caller's thread only, and none that could give the lock back. */
static void forget_helpers(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&work, NULL);
    pthread_cond_init(&done, NULL);
    jobs = NULL;
    helpers = asleep = 0;
}

static int alone;
static void set_up(void) { alone = pthread_atfork(NULL, NULL, forget_helpers) != 0; }

/* Under the lock. Helpers block all signals but those of their own faults. Where a thread cannot be created, those that
 * exist do the work. */
static void engage(int wanted) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t all, before;
    pthread_attr_t detached;
    pthread_t thread;
    if (helpers >= wanted || pthread_attr_init(&detached)) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&detached, STACK);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (helpers < wanted && !pthread_create(&thread, &detached, help, (void *)(intptr_t)(helpers + 1))) {
        if (helpers < MOST_PLACED) threads_of[helpers] = thread;
        helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

/* Called under the lock, before helpers are woken: lets them run on every CPU on which the caller may run, except the one
 * on which it runs now. Without this, Linux often wakes a helper on the CPU of the thread that wakes it, where the helper
 * waits until the caller's time slice ends. Mean time of a call on two threads, without -> with:
 *   bfloat16 product 64x768x768, after 0.3 ms of sleep   368 -> 211 us, after 5 ms 413 -> 241 us
 *   cast of 2^18 float32 to bfloat16, back to back        29 ->  14 us
 * Products of a millisecond, back to back, take as long either way (Zen 4, 2 CPUs, 2 x 9 interleaved rounds of 200 calls,
 * November 2026). */
static void keep_away(int wanted) {
#if defined(__linux__)
    cpu_set_t allowed;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_CLR(here, &allowed);
    for (int h = 0; CPU_COUNT(&allowed) && h < wanted && h < helpers && h < MOST_PLACED; h++)
        pthread_setaffinity_np(threads_of[h], sizeof allowed, &allowed);
#else
    (void)wanted;
#endif
}

int mp_allowed_cpus(void) {
#if defined(__linux__)
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed)) return CPU_COUNT(&allowed);
#endif
    return 0;
}

static void post(job *j) {
    pthread_mutex_lock(&lock);
    engage(j->places);
    j->next = jobs;
    jobs = j;
    atomic_fetch_add(&posted, 1);
    if (asleep) keep_away(j->places);
    if (asleep > j->places)
        for (int i = 0; i < j->places; i++) pthread_cond_signal(&work);
    else if (asleep)
        pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
}

static void withdraw(job *j) {
    pthread_mutex_lock(&lock);
    job **at = &jobs;
    while (*at != j) at = &(*at)->next;
    *at = j->next;
    pthread_mutex_unlock(&lock);
    for (int turn = 0; turn < TURNS && atomic_load(&j->running); turn++) pause_a_little();
    if (!atomic_load(&j->running)) return;
    pthread_mutex_lock(&lock);
    while (atomic_load(&j->running)) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
}

void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *, ptrdiff_t), void *context) {
    if (threads > tasks) threads = (int)tasks;
    if (threads > 1) pthread_once(&once, set_up);
    if (threads < 2 || alone) {
        for (ptrdiff_t index = 0; index < tasks; index++) run(context, index);
        return;
    }
    job j = {.tasks = tasks, .run = run, .context = context, .places = threads - 1, .rounding = get_rounding()};
    j.ranges = threads < MOST_RANGES ? threads : MOST_RANGES;
    for (int r = 0; r < j.ranges; r++) atomic_init(&j.own[r].next, r * tasks / j.ranges);
    post(&j);
    take_tasks(&j, 0);
    withdraw(&j);
}
