/* The threads that run the tasks of large operations. A caller runs tasks too, and waits only for helpers that have
 * joined it: one that gets no CPU costs it nothing. One pool serves all callers; its threads sleep when there is
 * nothing to do, and never end. */
#include <stdatomic.h>
#include <stdint.h>

#include "environment.h"
#include "runtime.h"
#include "system.h"

enum {
    MOST_PLACED = 64, /* helpers whose CPUs mp_keep_away chooses; others run where the operating system puts them */
    TURNS = 1000, /* of waiting awake before a thread sleeps: 10 to 50 microseconds (Zen 4, November 2026) */
    TURNS_KEPT = 50 * TURNS, /* the same of helpers for whom a caller will have tasks: about a millisecond */
    STACK = 1 << 20, /* bytes, whatever the process gives its threads: the buffers of quantization take 66 KB of it */
};

typedef struct job {
    const mp_step *steps;
    mp_progress *progress; /* of each step */
    ptrdiff_t count;
    int ranges;
    /* The caller's, which its helpers take over: the environment (rounding, flushing), and the listener or NULL. */
    uint64_t rounding;
    mp_listener *listener;
    int places;         /* how many more helpers may join; read and written under the lock, like `next` */
    atomic_int running; /* helpers at work; changed under the lock */
    struct job *next;
} job;

static mp_lock lock = MP_LOCK;
static mp_condition work = MP_CONDITION, done = MP_CONDITION;
static mp_once once = MP_ONCE;
/* Read and written under the lock: the jobs that helpers may join, the number of helpers, how many of them sleep, and
 * the threads that they are. */
static job *jobs;
static int helpers, asleep;
static mp_thread threads_of[MOST_PLACED];
static atomic_uint posted; /* changes with every job */
static atomic_int callers; /* the number of mp_keep_awake(1) that no mp_keep_awake(-1) has undone yet */
static _Thread_local int own_calls; /* how many of these this thread made */
static int forks; /* between the process that loaded this library and the present one */

static void pause_a_little(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb"); /* `yield` does nothing on most CPUs */
#endif
}

/* Runs tasks of a step until none is left to begin, or the operation is to end; returns how many. */
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

/* Waits until all tasks of a step have ended: the barrier between two steps. Returns 0 if the operation is to end
 * before. Those who wait have nothing else to do, and the rest of a task is short; a thread that was taken off its CPU
 * in a task gets it back soonest if they yield theirs. */
static int wait_for_end(const mp_step *step, mp_progress *progress) {
    for (int turn = 0; atomic_load_explicit(&progress->ended, memory_order_acquire) < step->tasks; turn++)
        if (turn < TURNS) pause_a_little();
        else if (mp_stopped()) return 0;
        else mp_yield();
    return 1;
}

/* Takes part in all steps of a job. Whoever comes late finds the first ones done. A thread leaves the
 * last step when no task is left to begin, although others may still run tasks of it: withdraw() waits for them. */
static void take_part(job *j, int me) {
    for (ptrdiff_t s = 0; s < j->count; s++) {
        const ptrdiff_t taken = take_tasks(&j->steps[s], &j->progress[s], j->ranges, me);
        if (s + 1 == j->count) return;
        atomic_fetch_add_explicit(&j->progress[s].ended, taken, memory_order_release);
        if (!wait_for_end(&j->steps[s], &j->progress[s])) return;
    }
}

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
            if (atomic_fetch_sub(&j->running, 1) == 1) mp_wake_all(&done); /* j may be gone now */
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

/* In the child of a fork() only the thread that called it exists. If another thread held the lock, nobody would give it
 * back, so the lock is made anew. */
static void forget_helpers(void) {
    for (job *j = jobs; j; j = j->next) atomic_store(&j->running, 0); /* the fork may have come in the midst of one */
    lock = (mp_lock)MP_LOCK;
    work = done = (mp_condition)MP_CONDITION;
    jobs = NULL;
    helpers = asleep = 0;
    forks++;
    atomic_store(&callers, own_calls);
}

/* Nonzero if mp_after_fork cannot promise to renew the pool in children: then every operation stays on its caller. */
static int alone;
static void set_up(void) { alone = mp_after_fork(forget_helpers) != 0; }

void mp_keep_awake(int change) {
    mp_do_once(&once, set_up);
    own_calls += change;
    atomic_fetch_add_explicit(&callers, change, memory_order_relaxed);
}

/* Under the lock. Where a thread cannot be created, those that exist do the work. */
static void engage(int wanted) {
    mp_thread thread;
    while (helpers < wanted && !mp_start_thread(&thread, help, (void *)(intptr_t)(helpers + 1), STACK)) {
        if (helpers < MOST_PLACED) threads_of[helpers] = thread;
        helpers++;
    }
}

/* Under the lock, before helpers are woken. */
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
    if (*at) *at = j->next; /* it is not there in a child that was forked while it ran */
    mp_give(&lock);
    for (int turn = 0; turn < TURNS && atomic_load(&j->running); turn++) pause_a_little();
    if (!atomic_load(&j->running)) return;
    mp_take(&lock);
    while (atomic_load(&j->running)) {
        mp_wait_at_most(&done, &lock, MP_ASKED_AFTER);
        mp_give(&lock);
        mp_stopped();
        if (forks != before) return; /* in the child of a fork that ask() has made: it has no helpers */
        mp_take(&lock);
    }
    mp_give(&lock);
}

/* It is asked whether to end between the tasks of a step, and between every BETWEEN steps: many have one task that
 * takes less time than reading the clock. */
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
