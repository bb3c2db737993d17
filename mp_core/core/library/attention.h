/* Attention, by tasks of some rows of queries of one head: their scores stay in the cache until they are used.
 *
 * A task multiplies its rows of queries by all keys of the head, takes the softmax of the scores where they lie,
 * rounds it to the type of the values, and multiplies it by them, straight into the result. Sequences are of equal
 * length, or lie one behind the other in the rows of one array (ragged): then `offsets` says where each begins. Near
 * attention, of queries to keys at most `before` rows before them and `after` rows after them, takes the queries of a
 * band of 128 rows together with the keys that one of them reaches, so that its time is linear in the length. Causal
 * attention, where `after` is 0, takes about half the time of attention to all keys. */
#ifndef MP_ATTENTION_H
#define MP_ATTENTION_H

#include "library/product.h"
#include "library/random.h"

MP_SHARED_BEGIN

enum { MP_BAND = 128 }; /* near attention: queries whose sums run over the same keys; part of the numerics contract */

/* Bytes from one sequence, head, row to the next; 0 where an axis is broadcast. */
typedef struct {
    ptrdiff_t sequence, head, row;
} mp_head_strides;

/* Which scores are kept. */
typedef struct {
    const uint8_t *data; /* one byte for each score; NULL: all are */
    mp_head_strides by;
} mp_score_mask;

/* Weights are the softmax of outer * q k'; of capped scores, where inner is not 0, that of
 * outer * tanh(inner * q k'). */
typedef struct {
    float outer, inner;
} mp_score_scale;

/* How it is cut into tasks, and the scratch of one. */
typedef struct {
    ptrdiff_t block, blocks; /* rows of queries in a task; tasks of one head */
    ptrdiff_t narrowed;      /* where in scratch the scores are that are rounded to the type of the values */
    ptrdiff_t mask;          /* ... the mask of near attention */
    ptrdiff_t work;          /* ... and what the two products need */
    ptrdiff_t total;         /* bytes of scratch */
} mp_attention_cut;

typedef struct {
    mp_product scores, context;  /* of the first task; the pointers and m of the others differ */
    mp_head_strides query, key, value, out, bias;
    mp_score_mask keep;
    const int32_t *offsets;      /* ragged: [sequences + 1] rows at which sequences begin, the last one ends; or NULL */
    mp_weight_dropout dropout;   /* of ragged sequences */
    mp_score_scale scale;
    ptrdiff_t sequences, heads, sharing; /* heads of queries, and how many of these share one of keys */
    ptrdiff_t targets, sources;  /* of a sequence; ragged: of the longest */
    ptrdiff_t before, after;     /* how many rows before and after its own a query finds keys */
    mp_attention_cut cut;
    int status;                  /* the last one: tasks copy what is before it */
} mp_attention;

/* Queries of one head, and the keys that they meet: of one band of near attention, else any rows, and all keys. */
typedef struct {
    ptrdiff_t sequence, head, begin; /* the sequence (ragged: 0), and where its rows begin (not ragged: 0) */
    ptrdiff_t first;                 /* the first query, counted from the begin of the sequence */
    ptrdiff_t first_key, keys;
} mp_query_block;

/* Set the keys of a block whose first query is set. */
void mp_find_keys(const mp_attention *t, mp_query_block *q);

/* The keys of a block, at most. */
ptrdiff_t mp_most_keys(const mp_attention *t);

/* Plan the two products of blocks of cut.block queries with so many keys, and lay out their scratch. */
void mp_plan_query_block(mp_attention *t, ptrdiff_t keys);

/* Set `work` to the weights of a block that is planned for its queries and keys: the softmax of the scores, in float32
 * if `format` is that, else rounded to it where cut.narrowed says. `t` is a copy, which this changes. */
void mp_find_weights(mp_attention *t, const mp_query_block *q, int format, char *work);

/* Drop elements of an array like the float32 weights of a block, in place. */
void mp_drop_block(const mp_attention *t, const mp_query_block *q, ptrdiff_t rows, float *weights);

/* Bytes to a row of a head. */
static inline ptrdiff_t mp_offset_in(const mp_head_strides *by, ptrdiff_t sequence, ptrdiff_t head, ptrdiff_t row) {
    return sequence * by->sequence + head * by->head + row * by->row;
}

/* Set targets and sources of ragged sequences to the length of the longest. */
void mp_measure_sequences(mp_attention *t);

/* Multiplications; ragged: as if all sequences were as long as the longest. */
double mp_attention_work(const mp_attention *t);

/* The operation ATTENTION. Its rows are the sequences. */
ptrdiff_t mp_plan_attention(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_attention(void *context, ptrdiff_t task);
int mp_attention_is_large(const void *context);

MP_SHARED_END
#endif
