/* Attention. A task is some rows of queries of one head, so few that their scores stay in the cache.
 *
 * A task multiplies its queries by all keys of the head, replaces the scores by their softmax, rounds this to the type
 * of the values and multiplies it by the values; that is the result. All sequences have the same length, or they are
 * ragged: of any length, concatenated in one array.
 *
 * Ragged sequences may continue earlier ones: then keys and values, those of the new rows too, are rows of a cache, in
 * pages of a fixed number of rows. The cache has all rows of one head, then those of the next, so that a task reads
 * memory in order. A task copies the pages of a sequence side by side, unless they are neighbours already. If all
 * sequences have one new row, a task computes all heads of queries that share a head of keys.
 *
 * In near attention a query attends only to the keys from `before` rows before it to `after` rows after it. The queries
 * are cut into bands of 128. A task is a band, or an equal part of one, and multiplies the keys to which any query of
 * the band attends. So the time is linear in the length. With `after` = 0 attention is causal, and takes about half the
 * time of attention to all keys. */
#ifndef MP_ATTENTION_H
#define MP_ATTENTION_H

#include "library/product.h"
#include "library/random.h"

MP_SHARED_BEGIN

enum { MP_BAND = 128 }; /* near attention: queries that sum over the same keys; part of the numerics contract */

/* Bytes from one sequence, head or row to the next; 0 if that axis is broadcast. */
typedef struct {
    ptrdiff_t sequence, head, row;
} mp_head_strides;

/* Sequences of any length, one after the other. Those that continue earlier ones have their keys in pages. */
typedef struct {
    const int32_t *offsets; /* [sequences + 1] rows of queries at which sequences begin, and the end of the last one;
                               NULL: all sequences have the same length */
    const int32_t *past;    /* [sequences] rows of each sequence before its queries; NULL: keys are not in pages */
    const int32_t *pages;   /* the numbers of the pages of all sequences, one sequence after the other */
    const int32_t *starts;  /* [sequences + 1] where the pages of each sequence begin in `pages`, and the end */
    const int32_t *rows;    /* [1] rows of each head in the cache */
    ptrdiff_t page;         /* rows of a page */
} mp_ragged;

/* Which scores are used. */
typedef struct {
    const uint8_t *data; /* one byte for each score; NULL: all are */
    mp_head_strides by;
} mp_score_mask;

/* Weights are the softmax of outer * q k' or, if scores are capped (inner is not 0), the softmax of
 * outer * tanh(inner * q k'). */
typedef struct {
    float outer, inner;
} mp_score_scale;

/* How attention is cut into tasks, and the scratch of a task. */
typedef struct {
    ptrdiff_t block, blocks; /* queries in a task; tasks of a head */
    ptrdiff_t together;      /* heads of queries in a task: 1, or all that share keys if sequences have one query */
    ptrdiff_t narrowed;      /* offset in scratch of the weights, rounded to the type of the values */
    ptrdiff_t mask;          /* ... of the mask of near attention */
    ptrdiff_t work;          /* ... of the scratch of the two products */
    ptrdiff_t total;         /* bytes of scratch */
} mp_attention_cut;

typedef struct {
    mp_product scores, context;  /* of the first task; other tasks have other pointers and another m */
    mp_head_strides query, key, value, out, bias;
    mp_score_mask keep;
    mp_ragged ragged;
    mp_weight_dropout dropout;   /* of ragged sequences */
    mp_score_scale scale;
    ptrdiff_t sequences, heads, sharing; /* heads of queries; how many of these share a head of keys */
    ptrdiff_t targets, sources;  /* rows of queries and of keys in a sequence; ragged: in the longest one */
    ptrdiff_t before, after;     /* how many rows before and after its own a query attends to */
    mp_attention_cut cut;
    int status;                  /* has to be last: tasks copy the fields before it */
} mp_attention;

/* Some queries of one head, and the keys to which they attend: in near attention those of a band, else all keys. */
typedef struct {
    ptrdiff_t sequence, head;        /* the sequence (ragged: 0) */
    ptrdiff_t begin, keys_begin;     /* row 0 of the sequence in the arrays of queries and of keys (not ragged: 0) */
    ptrdiff_t first;                 /* the first query, as a row of the sequence */
    ptrdiff_t first_key, keys;
} mp_query_block;

/* Set the keys of a block whose first query is set. */
void mp_find_keys(const mp_attention *t, mp_query_block *q);

/* The most keys of a block. */
ptrdiff_t mp_most_keys(const mp_attention *t);

/* Plan the two products of cut.block queries and `keys` keys, and the layout of their scratch. */
void mp_plan_query_block(mp_attention *t, ptrdiff_t keys);

/* Compute the weights, the softmax of the scores, of a block for whose queries and keys `t` is planned: in float32 at
 * `work` or, if `format` is another type, rounded to it at work + cut.narrowed. `t` is a copy, which this changes. */
void mp_find_weights(mp_attention *t, const mp_query_block *q, int format, char *work);

/* Apply dropout to an array of the shape of a block's weights, in float32, in place. */
void mp_drop_block(const mp_attention *t, const mp_query_block *q, ptrdiff_t rows, float *weights);

/* The offset of a row, in bytes. */
static inline ptrdiff_t mp_offset_in(const mp_head_strides *by, ptrdiff_t sequence, ptrdiff_t head, ptrdiff_t row) {
    return sequence * by->sequence + head * by->head + row * by->row;
}

/* Set targets and sources to the most rows of queries and of keys of a ragged sequence. */
void mp_measure_sequences(mp_attention *t);

/* The number of multiplications. Ragged sequences are counted as if all were as long as the longest one. */
double mp_attention_work(const mp_attention *t);

/* The operation ATTENTION. Its rows are the sequences. */
ptrdiff_t mp_plan_attention(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_attention(void *context, ptrdiff_t task);
int mp_attention_is_large(const void *context);

MP_SHARED_END
#endif
