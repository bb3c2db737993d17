/* Rotary positions: vectors that are rotated by the angles of their positions. */
#ifndef MP_ROTARY_H
#define MP_ROTARY_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* Rows of unit stride. */
typedef struct {
    char *data;
    int format;
    ptrdiff_t size, stride; /* bytes of an element, and from one row to the next */
} mp_row_array;

/* out[row, i] = the vector x[row, i], rotated by the angles of the row's position in its sequence. */
typedef struct {
    const mp_kernels *kernels;
    mp_row_array x, out;
    const float *angles;    /* [positions][2 half]: cosines, then sines */
    const int32_t *offsets; /* ragged: [sequences + 1] rows at which sequences begin, and the last one ends; or NULL */
    ptrdiff_t rows, length; /* length of each sequence, if not ragged */
    ptrdiff_t few;          /* ragged: sequences of at most so many rows turn by the first so many of the angles,
                             * longer ones by those behind; 0: all by the same */
    ptrdiff_t positions, half, vectors, share; /* vectors of a row, of 2 half elements; rows of a task */
    int status;             /* MP_NO_ROW: a sequence is longer than the table of angles */
} mp_rotary;

/* The operation ROTARY. */
ptrdiff_t mp_plan_rotary(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_rotary(void *context, ptrdiff_t task);
int mp_rotary_is_large(const void *context);

MP_SHARED_END
#endif
