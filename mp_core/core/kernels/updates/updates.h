/* The update of a variable by an optimizer, in float32: each operation rounds on its own, and nothing is fused. */
#ifndef MP_UPDATES_H
#define MP_UPDATES_H

#include "kernels.h"

MP_SHARED_BEGIN

enum { MP_MOST_SLOTS = 3, MP_UPDATE_NUMBERS = 5 };

typedef enum {
#define MP_UPDATE(NAME, WORD, SLOTS) MP_UPDATE_##NAME,
#include "updates/updates.def"
    MP_UPDATES,
} mp_update_rule;

/* Outputs overlap nothing. First g = g / divisor, g = g * factor, g between -limit and limit, w = w - w * decay; each
 * of these only if it changes something. Then the rule. */
typedef struct {
    mp_update_rule rule;
    const float *w, *g;                    /* the variable and its gradient */
    float *w_out;
    const float *slot[MP_MOST_SLOTS];      /* what is kept of the variable */
    float *slot_out[MP_MOST_SLOTS];
    float number[MP_UPDATE_NUMBERS];       /* those of the rule */
    float divisor, factor, limit, decay;
} mp_update;

/* Update the elements from `first` to `end`; return whether their gradients, as they came, are all finite. */
typedef int mp_update_function(const mp_update *u, ptrdiff_t first, ptrdiff_t end);

mp_update_function *mp_update_of(const mp_kernels *kernels);

MP_SHARED_END
#endif
