/* Counter-based random numbers: number i of a draw depends only on the key of the draw and on i. The words are those of
 * Philox4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in the order of
 * numpy.random.Philox(key=[seed, draw]).random_raw(). */
#ifndef MP_RANDOM_H
#define MP_RANDOM_H

#include "library/operation.h"
#include "library/rows.h" /* MP_MOST_AXES */

MP_SHARED_BEGIN

typedef enum {
    MP_DROPOUT,  /* x * factor if word i >> 11 is at least `least`, else +0 */
    MP_UNIFORM,  /* float32 from 0, less than 1: 2^-24 times word i >> 40 */
    MP_NORMAL,   /* float32, by the polar method of Marsaglia: see random.c */
    MP_ROUND_RANDOMLY, /* x rounded stochastically: see mp_rounding */
    MP_NEXT_KEY, /* (seed, draw + 1) */
} mp_random_kind;

/* Stochastic rounding to a narrow format (casts/stochastic.h). With b = mp_random_bits(format), the random integer of
 * number i is element i of the words, read as little-endian integers of b bits. Word 4 j + k is word k of the Philox
 * block with the counter (j + 1, stream[0], stream[1], stream[2]). */
typedef struct {
    const uint32_t *key; /* [2]: seed and draw */
    uint64_t stream[3];
    int format;
    int mode;            /* MP_SATURATE or 0 */
} mp_rounding;

/* Round n numbers, of which the first is number `first`. x and out do not overlap. */
void mp_round_stochastically(const mp_casts *casts, const mp_rounding *r, ptrdiff_t first, ptrdiff_t n, const float *x,
                             char *out);

typedef struct {
    const mp_kernels *kernels;
    mp_random_kind kind;
    const uint32_t *key;       /* [2]: seed and draw, read when it runs */
    const int32_t *rows_before; /* [1]: the first axis of `out` starts at this index of the draw; NULL: at 0 */
    const char *x;             /* dropout and rounding: C-contiguous, of the shape of `out`; else NULL */
    char *out;                 /* C-contiguous */
    int format, size;          /* of x, and of `out` unless x is rounded; bytes of an element. Of x also MP_F64 */
    int out_size;
    mp_rounding rounding;      /* its key is the one above */
    uint64_t least;
    float factor;
    int axes;                  /* of `out`, at least one */
    ptrdiff_t shape[MP_MOST_AXES];
    ptrdiff_t step[MP_MOST_AXES]; /* how much i grows from one index to the next; 0 if all indices share numbers */
    int is_flat;               /* no indices share numbers, so that all elements are one line, which tasks divide */
    ptrdiff_t share;           /* lines, or if flat elements, in a task; a line is along the last axis */
    int status;
} mp_random;

/* Dropout of the weights of attention. There is a weight for each target (a row of the queries), head, and source i of
 * the sequence. It is multiplied by `factor` if (word i % 4 of the Philox block with the counter
 * (i / 4 + 1, head, target, 2)) >> 11 is at least `least`; else it becomes +0. */
typedef struct {
    const uint32_t *key; /* [2]: seed and draw, read when it runs; NULL: no dropout */
    uint64_t least;
    float factor;
} mp_weight_dropout;

/* Apply dropout to the weights of n sources from `first` on, in place. */
void mp_drop_weights(const mp_weight_dropout *d, ptrdiff_t target, ptrdiff_t head, ptrdiff_t first, ptrdiff_t n,
                     float *weights);

/* The operation RANDOM. */
ptrdiff_t mp_plan_random(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_random(void *context, ptrdiff_t task);
int mp_random_is_large(const void *context);

MP_SHARED_END
#endif
