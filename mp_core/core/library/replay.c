#include "library/replay.h"

#include <string.h>

#include "library/plan.h"
#include "library/system.h"

/* A pointer in a context that points into a buffer. */
typedef struct {
    char **pointer;
    ptrdiff_t buffer, delta;
} fixup;

struct mp_replay {
    ptrdiff_t count;
    mp_step *steps;
    mp_progress *progress;
    const mp_operation **operations;
    int *follows;           /* for each step, the index of its number of rows among the sizes of a run, or -1 */
    char *contexts;         /* each is aligned to a cache line */
    fixup *fixups;
    ptrdiff_t fixup_count;
};

/* Zeroed memory, aligned to a cache line; NULL if there is none. */
static void *zeroed(size_t bytes) {
    void *block = mp_allocate(bytes / 64 * 64 + 64);
    if (block) memset(block, 0, bytes);
    return block;
}

static int make_room(mp_replay *p, ptrdiff_t context_bytes) {
    const size_t count = (size_t)p->count;
    p->steps = zeroed(count * sizeof *p->steps);
    p->progress = zeroed(count * sizeof *p->progress);
    p->operations = zeroed(count * sizeof *p->operations);
    p->follows = zeroed(count * sizeof *p->follows);
    p->contexts = zeroed((size_t)context_bytes);
    p->fixups = zeroed((size_t)p->fixup_count * sizeof *p->fixups);
    return p->steps && p->progress && p->operations && p->follows && p->contexts && p->fixups;
}

/* Copy the context of a note to `to`, and write its links as fixups; return the address after them. */
static fixup *copy_context(const mp_note *note, char *to, fixup *next) {
    memcpy(to, note->context, note->operation->size);
    for (int i = 0; i < note->link_count; i++) {
        const mp_link *link = &note->links[i];
        *next++ = (fixup){(char **)(to + link->offset), link->buffer, link->delta};
    }
    return next;
}

mp_replay *mp_make_replay(const mp_recording *r, const int *follows) {
    mp_replay *p = zeroed(sizeof *p);
    ptrdiff_t bytes = 0;
    if (!p) return NULL;
    p->count = r->count;
    for (ptrdiff_t i = 0; i < r->count; i++) {
        bytes += mp_round_up((ptrdiff_t)r->notes[i].operation->size, 64);
        p->fixup_count += r->notes[i].link_count;
    }
    if (!make_room(p, bytes)) {
        mp_free_replay(p);
        return NULL;
    }
    char *context = p->contexts;
    fixup *next = p->fixups;
    for (ptrdiff_t i = 0; i < r->count; i++) {
        const mp_note *note = &r->notes[i];
        next = copy_context(note, context, next);
        p->steps[i] = (mp_step){note->operation->run, context, 0};
        p->operations[i] = note->operation;
        p->follows[i] = follows[i];
        context += mp_round_up((ptrdiff_t)note->operation->size, 64);
    }
    return p;
}

void mp_free_replay(mp_replay *p) {
    if (!p) return;
    void *const parts[] = {p->steps, p->progress, p->operations, p->follows, p->contexts, p->fixups};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) mp_release(parts[i]);
    mp_release(p);
}

void mp_plan_replay(mp_replay *p, const mp_run *run) {
    for (ptrdiff_t i = 0; i < p->fixup_count; i++)
        *p->fixups[i].pointer = run->buffers[p->fixups[i].buffer] + p->fixups[i].delta;
    for (ptrdiff_t i = 0; i < p->count; i++) {
        const ptrdiff_t rows = p->follows[i] < 0 ? MP_OWN_ROWS : run->rows[p->follows[i]];
        p->steps[i].tasks = p->operations[i]->plan(p->steps[i].context, rows, run->threads, run->reproducible);
    }
}

/* Whether a second thread pays for at least one of the operations. Otherwise waking it, and waiting for it after each
 * operation, takes more time than it saves. */
static int is_large(const mp_replay *p) {
    for (ptrdiff_t i = 0; i < p->count; i++)
        if (p->steps[i].tasks > 1 && p->operations[i]->is_large(p->steps[i].context)) return 1;
    return 0;
}

void mp_run_replay(mp_replay *p, const mp_run *run) {
    mp_plan_replay(p, run);
    mp_run_steps(run->threads > 1 && is_large(p) ? run->threads : 1, p->steps, p->count, p->progress);
}

ptrdiff_t mp_run_noted(mp_replay *p, ptrdiff_t number, int threads) {
    mp_run_steps(threads, &p->steps[number], 1, p->progress);
    return p->steps[number].tasks;
}

mp_status mp_replay_status(mp_replay *p, ptrdiff_t *number) {
    mp_status first = MP_DONE;
    for (ptrdiff_t i = 0; i < p->count; i++) {
        int *status = mp_status_of(p->operations[i], p->steps[i].context);
        if (*status && !first) first = (mp_status)*status, *number = i;
        *status = MP_DONE;
    }
    return first;
}

/* Run a task: a pass on this thread, by a replay that no other thread is using. */
static void run_pass(void *context, ptrdiff_t index) {
    mp_passes *p = context;
    char *slot = mp_take_slot(&p->slots), **buffers = (char **)slot;
    for (ptrdiff_t i = 0; i < p->given_count; i++) buffers[p->given[i]] = p->addresses[index * p->given_count + i];
    const mp_run run = {buffers, p->rows + index * p->size_count, 1, p->reproducible};
    mp_run_replay(p->replays[(buffers - p->buffers) / p->buffer_count], &run);
    mp_give_slot(&p->slots, slot);
}

void mp_run_passes(mp_passes *p, ptrdiff_t passes) {
    mp_set_slots(&p->slots, p->buffers, p->buffer_count * (ptrdiff_t)sizeof *p->buffers, p->replay_count);
    mp_parallel_for(p->replay_count, passes, run_pass, p);
}
