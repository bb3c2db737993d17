/* The constants of a product's plan that were found by measurement, one set per CPU family (kernels/cpu.h).
 *
 * What is a share of a cache is no constant: plan.c takes it from the size of the cache that the machine reports. The
 * values were found in November 2026, those of AMX tiles on a Xeon, the others on Zen 4, some on Zen 5; which ones is
 * not recorded, and none was measured again later. What the special cases that use them gain on Zen 5 and Zen 3, and
 * the command that measures it, is in docs/performance.md.
 *
 * In the names, `packed` is a PackedMatrix whose panels are multiplied as they are, `made` a panel that is packed on
 * the fly or decoded, `memory` a B that is taken to come from memory: one larger than half of L2. MR stands for
 * MP_ROWS, its largest value, on every set. */
#ifndef MP_TUNING_H
#define MP_TUNING_H

#include "kernels.h"
#include "kernels/cpu.h"

/* Of products by AMX tiles. */
typedef struct {
    ptrdiff_t packed_m;         /* rows of A from which AMX tiles multiply integers, if B is a PackedMatrix */
    ptrdiff_t made_m;           /* rows of A from which AMX tiles multiply integers, if B is packed on the fly */
    ptrdiff_t range_bytes;      /* KC, in bytes of a panel: what AMX tiles take where vectors take L2 / 4 */
} mp_tuning_amx;

typedef struct {
    /* Tasks. */
    ptrdiff_t packed_mc;        /* MC at most, in rows of A, of packed panels: these rows over one range of K, and the
                                   panel's range (L2 / 4), fit L2 */
    ptrdiff_t repacked_mc;      /* MC at most, in rows of A, of made panels: beside so many rows, making a panel costs
                                   1/100 of its product. plan.c doubles it for integers if all of K is one range, and
                                   halves it if panels become micro-panels, of which a range of K is longer */
    ptrdiff_t small_mc;         /* rows of A in a task up to which a range of K is sized for L1, if no micro-panels hold
                                   it: see range_bytes */
    double thread_work;         /* multiplications from which a second thread pays: about 20 us on one core */
    int least_tasks, most_tasks; /* tasks per thread are multiplications / thread_work, kept between these bounds */
    ptrdiff_t few_rows[2];      /* most rows of A beside which [0] float16 and [1] int4 beside integers are decoded in
                                   registers, where few_rows of the instruction set (kernels.h) allows more */
    ptrdiff_t copy_bytes;       /* bytes of a_copy (mp_task_scratch), at most, unless MR rows are more */
    /* Ways. In arrays by arithmetic: wide, pairs, quads. */
    ptrdiff_t in_place_mc[MP_ARITHMETICS]; /* most rows of A in a task for which row-major B is multiplied in place */
    ptrdiff_t in_place_l2_mc;   /* the same of wide, if B fits L2 / 4 and its rows are whole vectors */
    /* ... for which transposed B is multiplied piece by piece, and not packed */
    ptrdiff_t transposed_mc[MP_ARITHMETICS];
    ptrdiff_t transposed_quads_k; /* transposed_mc[MP_QUADS] rows are allowed only from this K on, for a shorter K at
                                     most MR rows: each sum of quads is spread over 16 lanes, and adding these at its
                                     end takes time that only a long K hides */
    /* Prefetching packed B from memory: rows of A in a task from which the next range of K is prefetched. With
     * fewer rows the multiplications would end before the prefetches do. */
    ptrdiff_t prefetch_mc[2];      /* ... [0] of panels in the format that the arithmetic multiplies, [1] in another
                                      format, decoded in registers or into scratch */
    /* KC of row-major B, in rows of B, beside at most small_mc rows of A: */
    ptrdiff_t packing_k;        /* ... packed on the fly, or in place beside one row of A */
    ptrdiff_t packing_memory_k; /* ... packed on the fly from memory beside more than MR rows of A; not for AMX tiles,
                                   which take packing_k */
    ptrdiff_t in_place_k;       /* ... in place beside 2 to MR rows of A, which read B once */
    ptrdiff_t in_place_memory_k; /* ... the same, of floats from memory */
    ptrdiff_t in_place_reread_k; /* ... in place beside more than MR rows, which read the range once per MR rows */
    ptrdiff_t memory_row_bytes; /* NC of B from memory beside more than MR rows: bytes of NC columns of a row of B */
    mp_tuning_amx amx;
} mp_tuning;

#define MP_MEASURED_ON_ZEN_4 \
    .packed_mc = 192, .repacked_mc = 1032, .small_mc = 48, \
    .thread_work = 1 << 20, .least_tasks = 2, .most_tasks = 16, .copy_bytes = 8 << 20, \
    .in_place_mc = {24, 18, 6}, .in_place_l2_mc = 192, .transposed_mc = {24, 24, 12}, .transposed_quads_k = 512, \
    .prefetch_mc = {10, 8}, \
    .packing_k = 512, .packing_memory_k = 128, .in_place_k = 32, .in_place_memory_k = 16, .in_place_reread_k = 64, \
    .memory_row_bytes = 1 << 10

/* One core of a shared Intel Xeon with AMX (48 KiB of L1d, 2 MiB of L2), November 2026. */
#define MP_MEASURED_WITH_AMX .amx = {.packed_m = 6, .made_m = 12, .range_bytes = 64 << 10}

/* A CPU takes the constants of Zen 4 unless its family has a set of its own here. None was measured on Zen 5, on Zen 3,
 * or on AArch64, where they are predicted to fit: register blocks have as many rows and columns as those of AVX2, and a
 * Neoverse N1, V1 or V2 core has 64 KiB of L1d and 512 KiB to 2 MiB of L2.
 *
 * few_rows of Intel: widening float16 in registers costs 14 % of the peak there (llvm-mca, sapphirerapids), since
 * it competes with multiply-adds for two ports. On the Xeon above float16 had 0.86 to 0.94 of the speed of float32 from
 * 64x768x768 to 1024x1024x1024, and 0.99 at 2048x2048x2048. On AVX2 (Zen 3) widening a panel first costs about as much
 * as multiplying it by six rows of A: so 64 rows gain 3 %.
 *
 * few_rows of Intel: decoding int4 competes with vpdpbusd for two ports, so that a panel is better decoded once. */
static const mp_tuning mp_tunings[MP_CPU_FAMILIES] = {
    [MP_CPU_ZEN4] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX, .few_rows = {PTRDIFF_MAX, PTRDIFF_MAX}},
    [MP_CPU_INTEL_AMX] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX, .few_rows = {64, 4}},
};

#endif
