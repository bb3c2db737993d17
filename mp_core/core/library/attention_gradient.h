/* The gradients of attention. A task has the queries of some heads of some sequences, in bands of MP_BAND rows, whose
 * weights it computes again; so no sum runs over several tasks, and the weights of the batch are never in memory. */
#ifndef MP_ATTENTION_GRADIENT_H
#define MP_ATTENTION_GRADIENT_H

#include "library/attention.h"

MP_SHARED_BEGIN

/* Rows of unit stride, of all heads. */
typedef struct {
    char *data; /* NULL: not wanted */
    mp_head_strides by;
} mp_head_array;

/* Weights P and scores are those of the forward pass. For each head and band of queries:
 *     dP = d V'     S = P (dP - sum of P dP along the keys)     T = scale S, rounded to the type of the operands
 *     value += P' d     query = T K     key += T' Q     bias += S
 * Of capped scores, T is also multiplied by 1 - Y^2, Y = tanh(inner scale * Q K').
 * With dropout, dP and the P of `value` are dropped like the weights of the forward pass.
 * value and key add bands in order, and the heads that share them in order; then they are rounded. */
typedef struct {
    mp_attention forward;        /* except context.out and out */
    mp_head_array d;             /* the gradient of the result */
    mp_head_array query, key, value; /* the gradients: all three, or none of them */
    mp_head_array bias;          /* float32, set to 0 before; strides are 0 along axes of length 1; or not wanted. Only
                                    one of this and those three is wanted in one call */
    float scale;                 /* of the product of queries and keys; that of `forward` is 1 beside a bias, and the
                                    cap of capped scores */
    int sums_sequences, sums_heads; /* `bias` sums over sequences, over heads: a task has all of these */
    ptrdiff_t rows;              /* ragged: of the operands; those that are in no sequence get zeros */
    int status;
} mp_attention_gradient;

/* The operation ATTENTION_GRADIENT. Its rows are the sequences. */
ptrdiff_t mp_plan_attention_gradient(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_attention_gradient(void *context, ptrdiff_t task);
int mp_attention_gradient_is_large(const void *context);

MP_SHARED_END
#endif
