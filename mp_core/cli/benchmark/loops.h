/* The loops of loops.c, of one instruction set. */
#ifndef MP_LOOPS_H
#define MP_LOOPS_H

#include "kernels.h"

enum { MP_LOOP_VECTORS = 32 }; /* at least the accumulators of a product on any instruction set */

/* multiply: `rounds` times the multiply-adds of a product, from two vectors of operands into MP_LOOP_VECTORS vectors of
 * sums; returns how many operations that were. multiply_tiles: likewise by AMX tiles, or NULL. read_all: reads every
 * whole 256 bytes of x; returns the exclusive or of their words. */
typedef struct {
    double (*multiply[MP_ARITHMETICS])(const float *operands, ptrdiff_t rounds, float *sums);
    double (*multiply_tiles[MP_ARITHMETICS])(const float *operands, ptrdiff_t rounds, float *sums);
    uint32_t (*read_all)(const void *x, ptrdiff_t bytes);
} mp_loops;

/* The loops of an instruction set: those of the object files that isa.def names for its integer products and its
 * tiles. */
typedef struct {
    const char *isa;
    const mp_loops *vectors, *tiles; /* without AMX tiles, all of `tiles` is NULL */
} mp_loops_row;
extern const mp_loops_row mp_all_loops[]; /* the rows of isa.def, then one whose isa is NULL */

#endif
