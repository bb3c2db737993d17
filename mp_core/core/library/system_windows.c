/* system.h for Windows, from Windows 7 on. */
#include <windows.h>
#include <malloc.h>
#include <process.h>
#include <stdlib.h>

#include "library/system.h"

_Static_assert(sizeof(mp_lock) == sizeof(SRWLOCK) && sizeof(mp_condition) == sizeof(CONDITION_VARIABLE)
               && sizeof(mp_once) == sizeof(INIT_ONCE) && sizeof(mp_thread) == sizeof(HANDLE)
               && sizeof(mp_key) == sizeof(DWORD), "system.h declares the same without windows.h");

/* SRWLOCK_INIT, CONDITION_VARIABLE_INIT and INIT_ONCE_STATIC_INIT are all zeros. */
void mp_take(mp_lock *lock) { AcquireSRWLockExclusive((SRWLOCK *)lock); }
void mp_give(mp_lock *lock) { ReleaseSRWLockExclusive((SRWLOCK *)lock); }
void mp_wait(mp_condition *condition, mp_lock *lock) {
    SleepConditionVariableSRW((CONDITION_VARIABLE *)condition, (SRWLOCK *)lock, INFINITE, 0);
}
void mp_wait_at_most(mp_condition *condition, mp_lock *lock, int milliseconds) {
    SleepConditionVariableSRW((CONDITION_VARIABLE *)condition, (SRWLOCK *)lock, (DWORD)milliseconds, 0);
}
int64_t mp_milliseconds(void) { return (int64_t)GetTickCount64(); }
void mp_wake_one(mp_condition *condition) { WakeConditionVariable((CONDITION_VARIABLE *)condition); }
void mp_wake_all(mp_condition *condition) { WakeAllConditionVariable((CONDITION_VARIABLE *)condition); }
void mp_yield(void) { SwitchToThread(); }

static BOOL CALLBACK run_once(INIT_ONCE *once, void *run, void **context) {
    (void)once, (void)context;
    (*(void (**)(void))run)();
    return TRUE;
}

void mp_do_once(mp_once *once, void (*run)(void)) { InitOnceExecuteOnce((INIT_ONCE *)once, run_once, &run, NULL); }

int mp_after_fork(void (*run)(void)) { return (void)run, 0; } /* Windows has no fork */

/* ---- threads */

typedef struct {
    void *(*run)(void *);
    void *argument;
} start;

static unsigned __stdcall begin(void *given) {
    const start s = *(start *)given;
    free(given);
    s.run(s.argument);
    return 0;
}

int mp_start_thread(mp_thread *thread, void *(*run)(void *), void *argument, size_t stack) {
    start *s = malloc(sizeof *s);
    if (!s) return 1;
    *s = (start){run, argument};
    *thread = (HANDLE)_beginthreadex(NULL, (unsigned)stack, begin, s, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
    if (!*thread) free(s);
    return !*thread;
}

/* The CPUs of the group (of up to 64) in which the process runs; if it has several groups, Windows does not report
 * them. */
int mp_allowed_cpus(void) {
    DWORD_PTR process, machine;
    if (!GetProcessAffinityMask(GetCurrentProcess(), &process, &machine)) return 0;
    return __builtin_popcountll(process);
}

int mp_all_cpus(void) {
    const DWORD cpus = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return cpus ? (int)cpus : 1;
}

void mp_keep_away(const mp_thread *threads, int count) { (void)threads, (void)count; } /* not measured on Windows */

int mp_make_key(mp_key *key, void (*at_end)(void *)) {
    *key = FlsAlloc((PFLS_CALLBACK_FUNCTION)at_end);
    return *key == FLS_OUT_OF_INDEXES;
}

int mp_set_value(mp_key key, void *value) { return !FlsSetValue(key, value); }
void *mp_get_value(mp_key key) { return FlsGetValue(key); }

/* ---- memory */

void *mp_allocate(size_t bytes) { return _aligned_malloc(bytes, 64); }
void mp_release(void *block) { _aligned_free(block); }

/* ---- the CPU */

ptrdiff_t mp_system_cache_bytes(int level) { return 0 * level; } /* CPUID reports them on all CPUs here */

int mp_ask_for_tiles(void) { return 0; }
