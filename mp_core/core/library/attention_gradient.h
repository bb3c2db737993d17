/* The gradients of attention. A task computes them for some heads of some sequences, one band of MP_BAND queries after
 * the other, and computes the weights of each band again. So every sum is computed by one task, and no array has the
 * weights of the whole batch. */
#ifndef MP_ATTENTION_GRADIENT_H
#define MP_ATTENTION_GRADIENT_H

#include "library/attention.h"

MP_SHARED_BEGIN

/* An array whose rows are contiguous, of all heads. */
typedef struct {
    char *data; /* NULL: do not compute it */
    mp_head_strides by;
} mp_head_array;

/* P are the weights of the forward pass. For each head and each band of queries:
 *     dP = d V'     S = P (dP - sum of P dP along the keys)     T = scale S, rounded to the type of the operands
 *     value += P' d     query = T K     key += T' Q     bias += S
 * If scores are capped, T is also multiplied by 1 - Y^2, Y = tanh(inner scale * Q K').
 * Dropout drops the elements of dP, and of P in `value`, that it dropped from the weights of the forward pass.
 * value and key are sums over bands in order, and over the heads that share them in order; then they are rounded. */
typedef struct {
    mp_attention forward;        /* the forward pass; context.out and out are not used */
    mp_head_array d;             /* the gradient of the result */
    mp_head_array query, key, value; /* the gradients: all three or, if `bias` is computed, none */
    mp_head_array bias;          /* its gradient: float32, zeros before the call; strides are 0 along axes of length
                                    1 */
    float scale;                 /* of the product of queries and keys. The scale of `forward` is something else: 1 if
                                    there is a bias, the cap if scores are capped */
    int sums_sequences, sums_heads; /* `bias` is a sum over all sequences, all heads: one task has them all */
    ptrdiff_t rows;              /* ragged: rows of the operands. The gradients of rows in no sequence are zeros */
    int status;
} mp_attention_gradient;

/* The operation ATTENTION_GRADIENT. Its rows are the sequences. */
ptrdiff_t mp_plan_attention_gradient(void *context, ptrdiff_t sequences, int threads, int reproducible);
void mp_run_attention_gradient(void *context, ptrdiff_t task);
int mp_attention_gradient_is_large(const void *context);

MP_SHARED_END
#endif
