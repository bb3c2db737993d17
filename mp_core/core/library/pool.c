/* The thread pool: helpers that run tasks of large operations together with the caller. The caller waits only for
 * helpers that have joined the operation, so that a helper without a CPU does not delay it. All callers share the pool.
 * Helpers sleep while there are no tasks, and never end. */
#include <stdatomic.h>
#include <stdint.h>

#include "environment.h"
#include "runtime.h"
#include "system.h"

enum {
    MOST_PLACED = 64, /* the most helpers for which mp_keep_away is called */
    TURNS = 1000, /* polls of a thread before it sleeps: 10 to 50 microseconds (Zen 4, November 2026) */
    TURNS_KEPT = 50 * TURNS, /* ... after mp_keep_awake(1): about a millisecond */
    STACK = 1 << 20, /* bytes, not the default of the process: the buffers of quantization need 66 KB */
};

typedef struct job {
    const mp_step *steps;
    mp_progress *progress; /* of each step */
    ptrdiff_t count;
    int ranges;
    /* Copied from the caller to its helpers: the floating-point environment (rounding, flushing); its listener. */
    uint64_t rounding;
    mp_listener *listener;
    int places;         /* how many more helpers may join; protected by the lock, like `next` */
    atomic_int running; /* how many helpers have joined and not left; changed under the lock */
    struct job *next;
} job;

static mp_lock lock = MP_LOCK;
static mp_condition work = MP_CONDITION, done = MP_CONDITION;
static mp_once once = MP_ONCE;
/* Protected by the lock: the jobs that helpers may join, the number of helpers, how many of them sleep, and their
 * threads. */
static job *jobs;
static int helpers, asleep;
static mp_thread threads_of[MOST_PLACED];
static atomic_uint posted; /* changes with every job */
static atomic_int callers; /* the sum of all changes of mp_keep_awake */
static _Thread_local int own_calls; /* the sum of those of this thread */
static int forks; /* since the process that loaded this library */

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most CPUs */
#endif
}

/* Run tasks of a step until all have been started, or the operation has to stop; return how many. */
static ptrdiff_t take_tasks(const mp_step *step, mp_progress *progress, int ranges, int me) {
    ptrdiff_t taken = 0;
    for (int turn = 0; turn < ranges; turn++) {
        const int r = (me + turn) % ranges;
        const ptrdiff_t end = (r + 1) * step->tasks / ranges;
        for (ptrdiff_t i; (i = atomic_fetch_add_explicit(&progress->own[r].next, 1, memory_order_relaxed)) < end;
             taken++) {
            if (taken > 0 && mp_stopped()) return taken;
            step->run(step->context, i);
        }
    }
    return taken;
}

/* The barrier after a step: wait until all its tasks have ended. Return 0 if the operation has to stop. Threads poll,
 * since the rest of a task is short, and yield, so that a preempted thread with a task gets a CPU again. */
static int wait_for_end(const mp_step *step, mp_progress *progress) {
    for (int turn = 0; atomic_load_explicit(&progress->ended, memory_order_acquire) < step->tasks; turn++)
        if (turn < TURNS) pause_a_little();
        else if (mp_stopped()) return 0;
        else mp_yield();
    return 1;
}

/* Run tasks of all steps of a job. For a thread that joins late the first steps are over. A thread returns when all
 * tasks of the last step have been started. Others may still run some of them: withdraw() waits for these. */
static void take_part(job *j, int me) {
    for (ptrdiff_t s = 0; s < j->count; s++) {
        const ptrdiff_t taken = take_tasks(&j->steps[s], &j->progress[s], j->ranges, me);
        if (s + 1 == j->count) return;
        atomic_fetch_add_explicit(&j->progress[s].ended, taken, memory_order_release);
        if (!wait_for_end(&j->steps[s], &j->progress[s])) return;
    }
}

/* Poll for a new job: until `posted` is no longer `seen`, for a limited time. */
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
    mp_take(&lock);
    for (;;) {
        job *j = open_job();
        if (j) {
            j->places--;
            atomic_fetch_add(&j->running, 1);
            mp_give(&lock);
            mp_set_environment(j->rounding);
            mp_set_listener(j->listener);
            take_part(j, (int)(intptr_t)number);
            mp_take(&lock);
            if (atomic_fetch_sub(&j->running, 1) == 1) mp_wake_all(&done); /* j may not exist any more */
            continue;
        }
        const unsigned seen = atomic_load(&posted);
        mp_give(&lock);
        wait_for_job(seen);
        mp_take(&lock);
        if (atomic_load(&posted) != seen) continue;
        asleep++;
        mp_wait(&work, &lock);
        asleep--;
    }
    return NULL;
}

/* In the child of a fork() only the thread that called it exists. Another thread may have held the lock, and would
 * never release it, so the lock is initialized again. */
static void forget_helpers(void) {
    for (job *j = jobs; j; j = j->next) atomic_store(&j->running, 0); /* the fork may have happened during a job */
    lock = (mp_lock)MP_LOCK;
    work = done = (mp_condition)MP_CONDITION;
    jobs = NULL;
    helpers = asleep = 0;
    forks++;
    atomic_store(&callers, own_calls);
}

/* Nonzero if mp_after_fork failed, so that children could not reset the pool: then callers run all tasks themselves. */
static int alone;
static void set_up(void) { alone = mp_after_fork(forget_helpers) != 0; }

void mp_keep_awake(int change) {
    mp_do_once(&once, set_up);
    own_calls += change;
    atomic_fetch_add_explicit(&callers, change, memory_order_relaxed);
}

/* Wake or create helpers. The lock is held. If a thread cannot be created, there are fewer helpers. */
static void engage(int wanted) {
    mp_thread thread;
    while (helpers < wanted && !mp_start_thread(&thread, help, (void *)(intptr_t)(helpers + 1), STACK)) {
        if (helpers < MOST_PLACED) threads_of[helpers] = thread;
        helpers++;
    }
}

/* Choose the CPUs of the helpers. The lock is held, and helpers have not been woken. */
static void place(int wanted) {
    const int count = wanted < helpers ? wanted : helpers;
    mp_keep_away(threads_of, count < MOST_PLACED ? count : MOST_PLACED);
}

static void post(job *j) {
    mp_take(&lock);
    engage(j->places);
    j->next = jobs;
    jobs = j;
    atomic_fetch_add(&posted, 1);
    if (asleep) place(j->places);
    if (asleep > j->places)
        for (int i = 0; i < j->places; i++) mp_wake_one(&work);
    else if (asleep)
        mp_wake_all(&work);
    mp_give(&lock);
}

static void withdraw(job *j) {
    const int before = forks;
    mp_take(&lock);
    job **at = &jobs;
    while (*at && *at != j) at = &(*at)->next;
    if (*at) *at = j->next; /* in a child that was forked during the job, it is not in the list */
    mp_give(&lock);
    for (int turn = 0; turn < TURNS && atomic_load(&j->running); turn++) pause_a_little();
    if (!atomic_load(&j->running)) return;
    mp_take(&lock);
    while (atomic_load(&j->running)) {
        mp_wait_at_most(&done, &lock, MP_ASKED_AFTER);
        mp_give(&lock);
        mp_stopped();
        if (forks != before) return; /* ask() has called fork(), and this is the child: it has no helpers */
        mp_take(&lock);
    }
    mp_give(&lock);
}

/* Run steps on this thread. mp_stopped is called between the tasks of a step. Between steps it is called only once in
 * BETWEEN steps, since many steps have one task, which takes less time than reading the clock. */
static void run_alone(const mp_step *steps, ptrdiff_t count) {
    enum { BETWEEN = 64 };
    for (ptrdiff_t s = 0; s < count; s++)
        for (ptrdiff_t index = 0; index < steps[s].tasks; index++) {
            if ((index > 0 || s % BETWEEN == BETWEEN - 1) && mp_stopped()) return;
            steps[s].run(steps[s].context, index);
        }
}

void mp_run_steps(int threads, const mp_step *steps, ptrdiff_t count, mp_progress *progress) {
    if (threads > 1) mp_do_once(&once, set_up);
    if (threads < 2 || alone) {
        run_alone(steps, count);
        return;
    }
    job j = {
        .steps = steps, .progress = progress, .count = count, .places = threads - 1, .rounding = mp_get_environment(),
        .listener = mp_listener_here()};
    j.ranges = threads < MP_MOST_RANGES ? threads : MP_MOST_RANGES;
    for (ptrdiff_t s = 0; s < count; s++) {
        for (int r = 0; r < j.ranges; r++) atomic_init(&progress[s].own[r].next, r * steps[s].tasks / j.ranges);
        atomic_init(&progress[s].ended, 0);
    }
    post(&j);
    take_part(&j, 0);
    withdraw(&j);
}

void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *, ptrdiff_t), void *context) {
    const mp_step step = {run, context, tasks};
    mp_progress progress;
    mp_run_steps(threads < tasks ? threads : (int)tasks, &step, 1, &progress);
}
