/* Which products are accepted: this is decided only here. The callers fill a product (product.h) and ask why it would
 * be refused; each makes its own error of the reason, or converts the operands. */
#ifndef MP_CONTRACT_H
#define MP_CONTRACT_H

#include "library/product.h"

MP_SHARED_BEGIN

typedef enum {
    MP_ACCEPTED,
    MP_BAD_TYPES,  /* no kernel multiplies elements of these two types */
    MP_BAD_SCALES, /* scales or zero points cannot be applied to the sums of this product */
    MP_TOO_DEEP,   /* k is so large that a sum of products of integers may overflow int32 */
    MP_BAD_RESULT, /* the result cannot have this type, or an integer result has an epilogue */
    MP_REFUSALS,
} mp_refusal;

/* Whether kernels multiply these types without a cast. quantized: A is float; the product quantizes it to int8. */
int mp_types_multiply(int a_format, int b_format, int quantized);

/* The largest k for which no sum of products can overflow int32. unsigned_a: codes of A are unsigned. shifted_b: B has
 * zero points; a code minus a zero point has 9 bits, and a magnitude of at most 255. */
ptrdiff_t mp_most_exact_k(int unsigned_a, int shifted_b);

/* Why a product is refused, or MP_ACCEPTED. Shapes, strides and memory have been checked by the caller. */
mp_refusal mp_refusal_of(const mp_product *p);

MP_SHARED_END
#endif
