/* The update of a variable on several threads. */
#ifndef MP_UPDATE_H
#define MP_UPDATE_H

#include "library/random.h"
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

/* A variable of any float format up to f32, with its slots of the same format. Outputs do not overlap other arrays.
 * Narrow arrays are widened, the rule is computed in f32, and its results are rounded: to nearest, or stochastically if
 * rounding.key is not NULL. Then stream[1] is the number of the array: 0 for the variable, 1 + i for slot i.
 *
 * If the update is compensated, the value of the variable is w + rest, added in f32. Let y be its new value: w_out is y
 * rounded to nearest, and rest_out is y - w_out, rounded as above with the number 0; 0 if w_out is not finite. */
typedef struct {
    mp_update rule;                  /* all except its arrays */
    int format, g_format;            /* of the variable; of its gradient */
    const char *w, *g, *rest;        /* rest: NULL unless the update is compensated */
    char *w_out, *rest_out;
    const char *slot[MP_MOST_SLOTS]; /* NULL after the last one */
    char *slot_out[MP_MOST_SLOTS];
    mp_rounding rounding;            /* without stream[1] and format, which are set for each array */
} mp_stored_update;

/* Update `count` elements on up to `threads` threads; return whether their gradients are all finite. */
int mp_run_update(const mp_stored_update *u, ptrdiff_t count, int threads);

MP_SHARED_END
#endif
