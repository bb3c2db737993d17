/* The measured constants of plans of products: one set for each CPU family (kernels/cpu.h).
 *
 * Sizes that are a share of a cache are not here: plan.c computes them from the cache sizes that the machine reports.
 * The constants of AMX tiles were measured on a Xeon, the others on Zen 4, some of them on Zen 5 (which ones is not
 * recorded), all in November 2026 and not again since. docs/performance.md says what the special cases that use them
 * gain on Zen 5 and Zen 3, and which command measures it.
 *
 * In the names, `packed` means a PackedMatrix whose panels are multiplied as they are; `made`, panels that are packed
 * on the fly or decoded; `memory`, a B that is assumed to be in memory since it is larger than half of L2. MR is the
 * largest MP_ROWS of any instruction set. */
#ifndef MP_TUNING_H
#define MP_TUNING_H

#include "kernels.h"
#include "kernels/cpu.h"

/* For products by AMX tiles. */
typedef struct {
    ptrdiff_t packed_m;         /* least rows of A for which tiles multiply integers, if B is a PackedMatrix */
    ptrdiff_t made_m;           /* ... if B is packed on the fly */
    ptrdiff_t range_bytes;      /* KC, in bytes of a panel (vectors have L2 / 4) */
} mp_tuning_amx;

typedef struct {
    /* Tasks. */
    ptrdiff_t packed_mc;        /* largest MC, in rows of A, with packed panels: these rows over one range of K fit L2
                                   together with that range of a panel (L2 / 4) */
    ptrdiff_t repacked_mc;      /* largest MC, in rows of A, with made panels: for this many rows, making a panel takes
                                   1/100 of the time of multiplying it. plan.c doubles it for integers if all of K is
                                   one range, and halves it for micro-panels, which have longer ranges of K */
    ptrdiff_t small_mc;         /* most rows of A in a task for which a range of K has to fit L1 (except in
                                   micro-panels: see range_bytes) */
    double thread_work;         /* the fewest multiplications for which a second thread pays: about 20 us on one core */
    int least_tasks, most_tasks; /* tasks per thread: multiplications / thread_work, clipped to these bounds */
    ptrdiff_t few_rows[2];      /* upper bounds of few_rows of the instruction set (kernels.h): [0] for float16, [1] for
                                   int4 times integers */
    ptrdiff_t copy_bytes;       /* largest a_copy (mp_task_scratch), in bytes, or MR rows if these are more */
    /* In which form B is read. Arrays are by arithmetic: wide, pairs, quads. */
    ptrdiff_t in_place_mc[MP_ARITHMETICS]; /* most rows of A in a task for which row-major B is multiplied in place */
    ptrdiff_t in_place_l2_mc;   /* the same for wide, if B fits L2 / 4 and its rows are whole vectors */
    ptrdiff_t transposed_mc[MP_ARITHMETICS]; /* most rows of A in a task for which transposed B is not packed */
    ptrdiff_t transposed_quads_k; /* the least K for transposed_mc[MP_QUADS] rows; for a smaller one MR rows are the
                                     most: each sum of quads is spread over 16 lanes, and only with a large K does
                                     adding these lanes take little of the time */
    /* Prefetching packed B from memory: the fewest rows of A in a task for which the next range of K is prefetched.
     * With fewer, the multiplications would end before the prefetches do. */
    ptrdiff_t prefetch_mc[2];      /* [0] for panels in the format that the arithmetic multiplies, [1] for others, which
                                      are decoded in registers or into scratch */
    /* KC for row-major B, in rows of B, in tasks of at most small_mc rows of A: */
    ptrdiff_t packing_k;        /* ... packed on the fly, or in place for one row of A */
    ptrdiff_t packing_memory_k; /* ... packed on the fly from memory for more than MR rows of A; AMX tiles use
                                   packing_k here too */
    ptrdiff_t in_place_k;       /* ... in place for 2 to MR rows of A, so that B is read once */
    ptrdiff_t in_place_memory_k; /* ... the same, floats from memory */
    ptrdiff_t in_place_reread_k; /* ... in place for more than MR rows of A: each MR rows read the range again */
    ptrdiff_t memory_row_bytes; /* NC for B from memory and more than MR rows of A: bytes of NC columns of a row */
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

/* Every CPU uses the constants of Zen 4 unless its family has its own set here. They were not measured on Zen 5, Zen 3
 * or AArch64. On AArch64 they should fit: register blocks have as many rows and columns as on AVX2, and a Neoverse N1,
 * V1 or V2 core has 64 KiB of L1d and 512 KiB to 2 MiB of L2.
 *
 * few_rows[0] of Intel: widening float16 in registers costs 14 % of the peak speed (llvm-mca, sapphirerapids), since it
 * uses the two ports of the multiply-adds. On the Xeon above float16 had 0.86 to 0.94 of the speed of float32 from
 * 64x768x768 to 1024x1024x1024, and 0.99 at 2048x2048x2048. On AVX2 (Zen 3) widening a panel first takes as long as
 * multiplying it by about six rows of A, so that it gains 3 % with 64 rows.
 *
 * few_rows[1] of Intel: decoding int4 uses the two ports of vpdpbusd, so it is better to decode a panel once. */
static const mp_tuning mp_tunings[MP_CPU_FAMILIES] = {
    [MP_CPU_ZEN4] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX, .few_rows = {PTRDIFF_MAX, PTRDIFF_MAX}},
    [MP_CPU_INTEL_AMX] = {MP_MEASURED_ON_ZEN_4, MP_MEASURED_WITH_AMX, .few_rows = {64, 4}},
};

#endif
