/* The loops of loops.c for one instruction set. */
#ifndef MP_LOOPS_H
#define MP_LOOPS_H

#include "kernels.h"

enum { MP_LOOP_VECTORS = 32 }; /* at least the accumulators of a product on any instruction set */

/* multiply: do the multiply-adds of a product `rounds` times, from two vectors of operands into MP_LOOP_VECTORS vectors
 * of sums; return the number of operations. multiply_tiles: the same with AMX tiles, or NULL. read_all: read all whole
 * blocks of 256 bytes of x; return the exclusive or of their words. */
typedef struct {
    double (*multiply[MP_ARITHMETICS])(const float *operands, ptrdiff_t rounds, float *sums);
    double (*multiply_tiles[MP_ARITHMETICS])(const float *operands, ptrdiff_t rounds, float *sums);
    uint32_t (*read_all)(const void *x, ptrdiff_t bytes);
} mp_loops;

/* The loops of an instruction set, from the object files that isa.def gives for its integer products and its tiles. */
typedef struct {
    const char *isa;
    const mp_loops *vectors, *tiles; /* without AMX, all members of `tiles` are NULL */
} mp_loops_row;
extern const mp_loops_row mp_all_loops[]; /* the rows of isa.def, then one whose isa is NULL */

#endif
