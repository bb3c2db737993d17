/* What the CPU can do and the operating system lets us use. */
#ifndef MP_CPU_H
#define MP_CPU_H

#include <stdint.h>

#include "mp_core.h"

/* The features that isa.def lists, in its order: number i is bit 1 << i. */
enum {
#define MP_FEATURE(NAME, WORD) MP_CPU_NUMBER_##NAME,
#include "isa.def"
};
enum mp_cpu_feature {
#define MP_FEATURE(NAME, WORD) MP_CPU_##NAME = 1 << MP_CPU_NUMBER_##NAME,
#include "isa.def"
};
extern const char *const mp_feature_names[]; /* by number, then NULL */

typedef struct {
    const char *name;
    uint32_t needs;
    const mp_kernels *kernels;
} mp_isa;

extern const mp_isa mp_isas[]; /* the rows of isa.def, best first, then one with name NULL */

uint32_t mp_cpu_features(void);

#endif
