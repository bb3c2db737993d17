/* The update of a variable by an optimizer, in float32. Each operation rounds; there are no fused multiply-adds. */
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

/* Outputs do not overlap any other array. First g = g / divisor, g = g * factor, g clipped to [-limit, limit] and w = w
 * - w * decay, each only if it changes something. Then the rule. */
typedef struct {
    mp_update_rule rule;
    const float *w, *g;                    /* the variable and its gradient */
    float *w_out;
    const float *slot[MP_MOST_SLOTS];      /* the arrays that are kept for the variable */
    float *slot_out[MP_MOST_SLOTS];
    float number[MP_UPDATE_NUMBERS];       /* the constants of the rule */
    float divisor, factor, limit, decay;
} mp_update;

/* Update the elements from `first` to `end`; return whether their gradients, before scaling, are all finite. */
typedef int mp_update_function(const mp_update *u, ptrdiff_t first, ptrdiff_t end);

mp_update_function *mp_update_of(const mp_kernels *kernels);

MP_SHARED_END
#endif
