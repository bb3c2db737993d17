/* Functions of one float16 or bfloat16, as tables of their 65,536 results. */
#ifndef MP_TABLES_H
#define MP_TABLES_H

#include "library/elementwise.h"

MP_SHARED_BEGIN

/* Return the correctly rounded results of a function, in the order of the codes of its operand, which has the format of
 * the result. NULL if the function has no table, or the format is not MP_F16 or MP_BF16: then kernels compute it. */
const uint16_t *mp_table_of_activation(mp_activation activation, int format);
const uint16_t *mp_table_of_function(mp_elementwise_function function, int format);

/* Write the entries of n codes, `stride` bytes apart, to out, which may be x. */
void mp_map(const uint16_t *table, const void *x, ptrdiff_t stride, ptrdiff_t n, uint16_t *out);

MP_SHARED_END
#endif
