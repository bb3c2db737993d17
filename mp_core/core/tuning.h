/* The constants of a product's plan that were found by measurement, one set per CPU family (kernels/cpu.h).
 *
 * What is a share of a cache is no constant: plan.pyx takes it from the size of the cache that the machine reports.
 * "Gain" is the time without the case divided by the time with it, in the row of asv_bench/peers.py that gains most;
 * docs/tuning.md has the table and the command. Gains are of one Zen 4 core (AMD EPYC, 32 KiB of L1d, 1 MiB of L2, 32 MiB
 * of L3), November 2026. The values themselves were found on Zen 4 and Zen 5 earlier that month, those of AMX on a Xeon,
 * and were not measured again when they came here, unless a line says so. */
#ifndef MP_TUNING_H
#define MP_TUNING_H

#include "mp_core.h"
#include "kernels/cpu.h"

/* Of products by AMX tiles. */
typedef struct {
    ptrdiff_t packed_m, made_m; /* rows of A from which AMX tiles multiply integers; if B is packed on the fly */
    ptrdiff_t range_bytes;      /* of a panel's range of K: KC beside more than small_mc rows */
} mp_tuning_amx;

typedef struct {
    /* Tasks. */
    ptrdiff_t packed_mc;        /* MC, rows of A: of panels multiplied as they are, so that MC rows and a range of K (L2 / 4) stay in L2 */
    ptrdiff_t made_mc;          /* ... packed on the fly or decoded, which costs 1/100 of the product; plan.pyx may double it */
    ptrdiff_t small_mc;         /* up to so many rows of A in a task, a range of K is sized for L1 instead of L2 */
    double thread_work;         /* multiplications from which a second thread pays: about 20 us on one core */
    int least_tasks, most_tasks; /* tasks per thread, if they are not longer than thread_work */
    ptrdiff_t copy_bytes;       /* bytes of A converted or made contiguous in scratch at a time, at most */
    /* Ways. By arithmetic: wide, pairs, quads. */
    ptrdiff_t in_place_mc[MP_ARITHMETICS]; /* most rows of A in a task for which row-major B is multiplied in place */
    ptrdiff_t in_place_l2_mc;   /* the same of wide, if B fits into L2 / 4 */
    ptrdiff_t transposed_mc[MP_ARITHMETICS]; /* most rows of A in a task for which transposed B is multiplied as it lies */
    ptrdiff_t transposed_quads_k; /* of quads only from this K on, beside more than MR rows: their sums end in 16 lanes */
    /* Prefetching packed B from memory: rows of A in a task from which the next range of K is prefetched. Fewer rows take
     * less time than the prefetches. First of panels that are multiplied as they are, then of decoded or widened ones. */
    ptrdiff_t prefetch_mc, prefetch_decoded_mc;
    /* KC of row-major B, in rows of B: */
    ptrdiff_t packing_k;        /* ... packed on the fly, or in place beside one row of A */
    ptrdiff_t packing_memory_k; /* ... packed on the fly from memory beside more than MR rows of A */
    ptrdiff_t in_place_k;       /* ... in place beside 2 to MR rows of A, which read B once */
    ptrdiff_t in_place_memory_k; /* ... the same, of floats from memory */
    ptrdiff_t in_place_again_k; /* ... in place beside more than MR rows, which read the range once per MR rows */
    ptrdiff_t memory_row_bytes; /* NC of row-major B from memory beside more than MR rows: bytes of one row of B */
    mp_tuning_amx amx;
} mp_tuning;

#define MP_MEASURED_ON_ZEN_4 \
    .packed_mc = 192, .made_mc = 1032, .small_mc = 48, \
    .thread_work = 1 << 20, .least_tasks = 2, .most_tasks = 16, .copy_bytes = 8 << 20, \
    .in_place_mc = {24, 18, 6}, .in_place_l2_mc = 192, .transposed_mc = {24, 24, 12}, .transposed_quads_k = 512, \
    .prefetch_mc = 10, .prefetch_decoded_mc = 8, \
    .packing_k = 512, .packing_memory_k = 128, .in_place_k = 32, .in_place_memory_k = 16, .in_place_again_k = 64, \
    .memory_row_bytes = 1 << 10

/* One core of a shared Intel Xeon with AMX (48 KiB of L1d, 2 MiB of L2), November 2026. */
#define MP_MEASURED_WITH_AMX .amx = {.packed_m = 6, .made_m = 12, .range_bytes = 64 << 10}

/* A family takes the constants of the nearest measured one. All have the same ones so far: whether Zen 5 or Intel want
 * others has not been measured. */
static const mp_tuning mp_tunings[MP_CPU_FAMILIES] = {
    [MP_CPU_ZEN4] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX},
    [MP_CPU_ZEN5] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX},
    [MP_CPU_INTEL_AMX] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX},
    [MP_CPU_OTHER] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX},
};

#endif
