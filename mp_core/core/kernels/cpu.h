/* The features of the CPU that the operating system lets a process use; the kernels of each instruction set. */
#ifndef MP_CPU_H
#define MP_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

MP_SHARED_BEGIN

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
extern const char *const mp_left_out; /* names, with spaces between, of the sets for which no kernels were compiled */

/* These depend on the architecture: cpu_x86.c, cpu_aarch64.c or cpu_other.c. */
uint32_t mp_cpu_features(void);

/* CPUs that share tuned constants (core/library/tuning.h): those of Zen 4, unless a family has constants of its own. */
typedef enum { MP_CPU_ZEN4, MP_CPU_INTEL_AMX, MP_CPU_FAMILIES } mp_cpu_family;

mp_cpu_family mp_cpu_family_here(void);

/* The size of the data cache of a level (1, 2, 3) in bytes; 0 if the CPU does not report it. */
ptrdiff_t mp_cpu_cache_by_itself(int level);

/* The size of the data cache of a level (1, 2, 3) in bytes, as the current CPU reports it (CPUID) or else the operating
 * system (Linux: for CPU 0). If neither does: 32 KiB, 512 KiB, 8 MiB. */
ptrdiff_t mp_cpu_cache_bytes(int level);

MP_SHARED_END
#endif
