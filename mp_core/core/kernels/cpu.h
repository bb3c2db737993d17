/* What the CPU can do and the operating system lets us use. */
#ifndef MP_CPU_H
#define MP_CPU_H

#include <stdint.h>

#include "mp_core.h"

enum mp_cpu_feature {
    MP_CPU_AVX2 = 1,          /* AVX2, FMA and F16C: x86-64 level 3 */
    MP_CPU_AVX512 = 2,        /* AVX-512 F, BW, DQ, VL on top: level 4 */
    MP_CPU_AVX512_VNNI = 4,
    MP_CPU_AVX512_BF16 = 8,
    MP_CPU_AVX512_VBMI = 32,
    MP_CPU_AVX_VNNI = 16,     /* on 256-bit registers, without AVX-512 */
    MP_CPU_AMX_INT8 = 64,
    MP_CPU_AMX_BF16 = 128,
};

typedef struct {
    const char *name;
    uint32_t needs;
    const mp_kernels *kernels;
} mp_isa;

extern const mp_isa mp_isas[]; /* the rows of isa.def, best first, then one with name NULL */

uint32_t mp_cpu_features(void);

#endif
