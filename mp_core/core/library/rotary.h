/* Rotary positions: each vector is rotated by angles that depend on its position in the sequence. */
#ifndef MP_ROTARY_H
#define MP_ROTARY_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* An array whose rows are contiguous. */
typedef struct {
    char *data;
    int format;
    ptrdiff_t size, stride; /* bytes of an element, and from one row to the next */
} mp_row_array;

/* out[row, i] = the vector x[row, i], rotated by the angles for the row's position in its sequence. */
typedef struct {
    const mp_kernels *kernels;
    mp_row_array x, out;
    const float *angles;    /* [positions][2 half]: cosines, then sines */
    const int32_t *offsets; /* ragged: [sequences + 1] rows at which sequences begin, and the end of the last one; else
                               NULL */
    const int32_t *past;    /* ragged: [sequences] rows of each sequence before those of x; NULL: none */
    ptrdiff_t rows, length; /* rows of x; length of each sequence, if not ragged */
    ptrdiff_t few;          /* ragged, > 0: `angles` has two tables: first `few` positions for sequences of at most
                             * `few` rows, then those for longer sequences; 0: one table for all */
    ptrdiff_t positions, half, vectors, share; /* vectors in a row, each of 2 half elements; rows in a task */
    int status;             /* MP_NO_ROW: a sequence is longer than the table of angles */
} mp_rotary;

/* The operation ROTARY. */
ptrdiff_t mp_plan_rotary(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_rotary(void *context, ptrdiff_t task);
int mp_rotary_is_large(const void *context);

MP_SHARED_END
#endif
