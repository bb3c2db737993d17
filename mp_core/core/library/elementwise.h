/* Functions of one, two or three arrays, element by element. Elements are converted to float32; results are computed in
 * float32 and rounded once. Functions of integers, booleans and float64 are computed in 64 bits (numbers.h). */
#ifndef MP_ELEMENTWISE_H
#define MP_ELEMENTWISE_H

#include "library/cast.h"
#include "library/operation.h"
#include "library/rows.h" /* MP_MOST_AXES */

MP_SHARED_BEGIN

enum {
    MP_BOOL = -2,          /* a format: bytes that are 0 or 1 */
    MP_I16 = MP_F64 + 1, MP_U16, MP_U32, MP_I64, MP_U64, /* the formats of integers that kernels lack */
    MP_MOST_OPERANDS = 3,
    /* The fewest elements for which a second thread pays, if two arrays are read and one is written (November 2026; the
     * CPU is not recorded). */
    MP_ELEMENTWISE_WORK = 1 << 17,
};

/* The type in which elements are computed: float32, int64, uint64 or float64. */
typedef enum { MP_SINGLE, MP_SIGNED, MP_UNSIGNED, MP_DOUBLE } mp_wide;

typedef enum {
#define MP_ELEMENTWISE(NAME, WORD, OPERANDS) MP_##NAME,
#include "library/elementwise.def"
} mp_elementwise_function;

/* How many of the functions are kernels. These come first. */
enum {
    MP_KERNEL_FUNCTIONS = 0
#define MP_ARITHMETIC(NAME, WORD, FUNCTION) + 1
#define MP_BINARY(NAME, WORD, FUNCTION) + 1
#define MP_UNARY(NAME, WORD, FUNCTION) + 1
#define MP_IN_DOUBLE(NAME, WORD, FUNCTION, BOUND) + 1
#define MP_QUICK(NAME, WORD, QUICK, FUNCTION, BOUND) + 1
#include "functions.def"
};

/* The names of the functions, then NULL; how many operands they have. */
static const char *const mp_elementwise_names[] = {
#define MP_ELEMENTWISE(NAME, WORD, OPERANDS) WORD,
#include "library/elementwise.def"
    NULL,
};
static const int mp_elementwise_operands[] = {
#define MP_ELEMENTWISE(NAME, WORD, OPERANDS) OPERANDS,
#include "library/elementwise.def"
};

typedef struct {
    const char *data;
    int format, size;                /* MP_SINGLE takes floats, and MP_BOOL for masks; bytes of an element */
    ptrdiff_t stride[MP_MOST_AXES];  /* in bytes; 0 along an axis that is broadcast */
} mp_operand;

/* out = function(operands). `out` is C-contiguous, and all lengths are at least 1. Operands do not overlap `out`,
 * except that an element of `out` may be in the place of the elements from which it is computed. */
typedef struct {
    const mp_kernels *kernels;
    mp_elementwise_function function;
    mp_activation activation;       /* applied to the first operand before the function, if `wide` is MP_SINGLE */
    mp_wide wide;
    int axes;                       /* at least 1 */
    ptrdiff_t shape[MP_MOST_AXES];
    mp_operand operand[MP_MOST_OPERANDS];
    char *out;
    int out_format, out_size;
    ptrdiff_t lines, pieces, share; /* lines along the last axis; pieces in a line; pieces in a task */
    int status;                     /* always MP_DONE */
} mp_elementwise;

/* From axis `from` on, merge axes that are contiguous with each other in all arrays, and leave out axes of length 1.
 * `from` is 1 if the length of the first axis may differ from run to run, else 0. */
void mp_join_axes(mp_elementwise *e, int from);

/* The operation ELEMENTWISE. Its rows are the indices of the first axis. */
ptrdiff_t mp_plan_elementwise(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_elementwise(void *context, ptrdiff_t task);
int mp_elementwise_is_large(const void *context);

MP_SHARED_END
#endif
