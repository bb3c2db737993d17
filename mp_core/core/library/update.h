/* The update of a variable on several threads. */
#ifndef MP_UPDATE_H
#define MP_UPDATE_H

#include "updates/updates.h"

MP_SHARED_BEGIN

/* The names of the update rules, then NULL; how many arrays a rule keeps for each variable. */
static const char *const mp_update_names[] = {
#define MP_UPDATE(NAME, WORD, SLOTS) #WORD,
#include "updates/updates.def"
    NULL,
};
static const int mp_update_slots[] = {
#define MP_UPDATE(NAME, WORD, SLOTS) SLOTS,
#include "updates/updates.def"
};

/* The fewest elements for which a second thread pays; the most elements of a task: those of four arrays fit the L2
 * cache of every CPU. */
enum { MP_UPDATE_WORK = 1 << 16, MP_UPDATE_SHARE = 1 << 14 };

/* Update `count` elements on up to `threads` threads; return whether their gradients are all finite. */
int mp_run_update(const mp_update *u, ptrdiff_t count, int threads);

MP_SHARED_END
#endif
