/* A replay runs the operations of a recording on other memory: it has copies of their contexts, and sets the pointers
 * in them for each run. It can make one run at a time. */
#ifndef MP_REPLAY_H
#define MP_REPLAY_H

#include "library/recording.h"
#include "library/runtime.h"

MP_SHARED_BEGIN

typedef struct mp_replay mp_replay;

/* The arguments of a run. */
typedef struct {
    char *const *buffers;  /* the address of each buffer */
    const ptrdiff_t *rows; /* its sizes, which are numbers of rows */
    int threads;
    int reproducible;      /* the order of sums: see mp_problem */
} mp_run;

/* Make a replay of a recording, which may be freed afterwards; NULL if there is no memory. follows[i] is the index, in
 * `rows` of a run, of the number of rows of note i; -1: as many rows as when it was recorded. */
mp_replay *mp_make_replay(const mp_recording *r, const int *follows);
void mp_free_replay(mp_replay *replay);

/* Run all operations, with a barrier after each; on this thread alone if a second thread pays for none of them. */
void mp_run_replay(mp_replay *replay, const mp_run *run);

/* For timing: mp_plan_replay sets the pointers for a run and plans all operations, for run->threads threads.
 * mp_run_noted then runs operation `number` on `threads` threads and returns the number of its tasks. */
void mp_plan_replay(mp_replay *replay, const mp_run *run);
ptrdiff_t mp_run_noted(mp_replay *replay, ptrdiff_t number, int threads);

/* The status and the number of the first operation that failed since the last call of this; MP_DONE if none did. */
mp_status mp_replay_status(mp_replay *replay, ptrdiff_t *number);

/* Passes: runs at the same time, each on one thread and with a replay of its own. From one pass of a replay to the next
 * only the addresses of the `given` buffers change. */
typedef struct {
    mp_replay *const *replays;
    int replay_count;           /* at most MP_MOST_THREADS */
    char **buffers;             /* [replay_count][buffer_count] */
    ptrdiff_t buffer_count;
    const int *given;           /* the numbers of the buffers whose addresses differ from pass to pass */
    ptrdiff_t given_count;
    char *const *addresses;     /* [passes][given_count]: their addresses */
    const ptrdiff_t *rows;      /* [passes][size_count] */
    ptrdiff_t size_count;
    int reproducible;
    mp_slots slots;             /* the rows of `buffers`; mp_run_passes sets it */
} mp_passes;

void mp_run_passes(mp_passes *p, ptrdiff_t passes);

/* A plan that Python passes to C (include/mp_core.h). */
struct mp_core_plan {
    mp_replay *replay;
    char **buffers;         /* the addresses of all buffers, inputs first */
    const int *results;     /* the buffer numbers of the outputs */
    int inputs, outputs;
    const ptrdiff_t *bytes; /* [inputs + outputs]: the size of each array */
};

MP_SHARED_END
#endif
