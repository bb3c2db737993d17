/* Running what a recording has noted: copies of the contexts, whose pointers lead to the memory of a run. A replay
 * serves one run at a time. */
#ifndef MP_REPLAY_H
#define MP_REPLAY_H

#include "library/recording.h"
#include "library/runtime.h"

MP_SHARED_BEGIN

typedef struct mp_replay mp_replay;

/* What a run is given: the address of each buffer, its sizes (numbers of rows), how many threads run it, and the order
 * of sums. */
typedef struct {
    char *const *buffers;
    const ptrdiff_t *rows;
    int threads;
    int reproducible;
} mp_run;

/* Make a replay of the notes of a recording, which it does not need any longer; NULL if there is no memory. follows[i]
 * says which of the sizes of a run is the number of rows of note i; -1: it has as many as when it was recorded. */
mp_replay *mp_make_replay(const mp_recording *r, const int *follows);
void mp_free_replay(mp_replay *replay);

/* Run all operations, with a barrier between one and the next; on this thread alone if a second one pays for none. */
void mp_run_replay(mp_replay *replay, const mp_run *run);

/* For timing: mp_plan_replay leads the pointers to the memory of a run and plans all operations, cut for as many
 * threads as the run says. mp_run_noted then runs one of them on `threads` threads and returns how many tasks that
 * were. */
void mp_plan_replay(mp_replay *replay, const mp_run *run);
ptrdiff_t mp_run_noted(mp_replay *replay, ptrdiff_t number, int threads);

/* The status of the first operation that failed since this was last called, and its number; MP_DONE if none did. */
mp_status mp_replay_status(mp_replay *replay, ptrdiff_t *number);

/* Passes: runs side by side, each on one thread, as many at a time as there are replays. All buffers of a replay keep
 * their addresses from pass to pass but those that are given. */
typedef struct {
    mp_replay *const *replays;
    int replay_count;           /* at most MP_MOST_THREADS */
    char **buffers;             /* [replay_count][buffer_count] */
    ptrdiff_t buffer_count;
    const int *given;           /* the numbers of the buffers that differ from pass to pass */
    ptrdiff_t given_count;
    char *const *addresses;     /* [passes][given_count]: these */
    const ptrdiff_t *rows;      /* [passes][size_count] */
    ptrdiff_t size_count;
    int reproducible;
    mp_slots slots;             /* the rows of `buffers`; mp_run_passes sets it */
} mp_passes;

void mp_run_passes(mp_passes *p, ptrdiff_t passes);

/* What Python gives to C as a plan (include/mp_core.h). */
struct mp_core_plan {
    mp_replay *replay;
    char **buffers;         /* their addresses; the first ones are the inputs */
    const int *results;     /* the numbers of the buffers of the outputs */
    int inputs, outputs;
    const ptrdiff_t *bytes; /* [inputs + outputs]: those of each array */
};

MP_SHARED_END
#endif
