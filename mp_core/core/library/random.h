/* Random numbers that are counted: number i of a draw depends on the key of the draw and on i alone. They are the words
 * of Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in the order
 * of numpy.random.Philox(key=[seed, draw]).random_raw(). */
#ifndef MP_RANDOM_H
#define MP_RANDOM_H

#include "library/operation.h"
#include "library/rows.h" /* MP_MOST_AXES */

MP_SHARED_BEGIN

typedef enum {
    MP_DROPOUT,  /* x * factor where word i >> 11 is at least `least`, else +0 */
    MP_UNIFORM,  /* float32 from 0 to below 1: 2^-24 times word i >> 40 */
    MP_NORMAL,   /* float32, by the polar method of Marsaglia: see random.c */
    MP_NEXT_KEY, /* (seed, draw + 1) */
} mp_random_kind;

typedef struct {
    const mp_kernels *kernels;
    mp_random_kind kind;
    const uint32_t *key;       /* [2]: seed and draw, read when it runs */
    const int32_t *rows_before; /* [1]: indices of the first axis that come before those of `out`; NULL: none do */
    const char *x;             /* of dropout: C-contiguous, in the format and shape of `out`; else NULL */
    char *out;                 /* C-contiguous */
    int format, size;          /* of x and `out`; bytes of an element */
    uint64_t least;
    float factor;
    int axes;                  /* of `out`, at least one */
    ptrdiff_t shape[MP_MOST_AXES];
    ptrdiff_t step[MP_MOST_AXES]; /* numbers from one index to the next; 0 where an axis shares them */
    ptrdiff_t share;           /* lines of a task: a line is the last axis */
    int status;
} mp_random;

/* Dropout of the weights of attention. The weight of a target (a row of the queries), a head and source i of its
 * sequence is kept, times `factor`, where word i % 4 of the Philox block of the counter (i / 4 + 1, head, target, 2) is
 * at least `least` after >> 11, else it is +0. */
typedef struct {
    const uint32_t *key; /* [2]: seed and draw, read when it runs; NULL: all weights stay as they are */
    uint64_t least;
    float factor;
} mp_weight_dropout;

/* Drop weights of n sources from `first` on, in place. */
void mp_drop_weights(const mp_weight_dropout *d, ptrdiff_t target, ptrdiff_t head, ptrdiff_t first, ptrdiff_t n,
                     float *weights);

/* The operation RANDOM. */
ptrdiff_t mp_plan_random(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_random(void *context, ptrdiff_t task);
int mp_random_is_large(const void *context);

MP_SHARED_END
#endif
