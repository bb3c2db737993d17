/* What a product accepts: the only place that says it. Entry points describe a product (product.h) and ask why it
 * would be refused; each turns the reason into its own error, or turns the operands into others. */
#ifndef MP_CONTRACT_H
#define MP_CONTRACT_H

#include "library/product.h"

MP_SHARED_BEGIN

typedef enum {
    MP_ACCEPTED,
    MP_BAD_TYPES,  /* no kernel multiplies elements of these two types */
    MP_BAD_SCALES, /* scales or zero points cannot be applied to the sums of this product */
    MP_TOO_DEEP,   /* k is so large that a sum of products of integers may exceed int32 */
    MP_BAD_RESULT, /* the result cannot be of this type, or integers with an epilogue */
    MP_REFUSALS,
} mp_refusal;

/* Whether elements of A and B multiply without a cast. quantized: A is float, and becomes int8 during the product. */
int mp_types_multiply(int a_format, int b_format, int quantized);

/* The largest k for which every sum of products fits int32: of signed or unsigned codes of A, and of B with zero points
 * or without. Codes less a zero point have 9 bits: their magnitude is at most 255. */
ptrdiff_t mp_most_exact_k(int unsigned_a, int shifted_b);

/* Why the kernels refuse a product that is described; MP_ACCEPTED if they do not. Shapes, strides and memory are the
 * caller's to check. */
mp_refusal mp_refusal_of(const mp_product *p);

MP_SHARED_END
#endif
