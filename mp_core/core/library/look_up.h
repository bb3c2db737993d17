/* Rows of tables by their indices, and the indices of tokens in a table of positions. */
#ifndef MP_LOOK_UP_H
#define MP_LOOK_UP_H

#include "library/cast.h"
#include "library/operation.h"

MP_SHARED_BEGIN

/* The elements of a table that holds no floats. */
typedef struct {
    int kind;                  /* mp_code, once they are unpacked */
    int packed;                /* two codes lie in a byte */
    int is_signed;             /* ... and are signed */
    const float *scale;        /* NULL: the table holds floats */
    const int32_t *zero_point; /* or NULL: zeros */
    ptrdiff_t scales, group;   /* scales per row of the table, 0: all rows share one row of them; columns per scale */
} mp_table_codes;

/* out[i] = table[indices[i]], cast. */
typedef struct {
    mp_cast cast;              /* of one row */
    mp_table_codes codes;
    const char *table, *indices;
    int index_bytes;           /* 4 or 8 */
    char *out;
    ptrdiff_t rows, limit, row_bytes, share; /* indices; rows of the table; bytes between them; rows of a task */
    int status;
} mp_look_up;

/* The operation LOOK_UP. */
ptrdiff_t mp_plan_look_up(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_look_up(void *context, ptrdiff_t task);
int mp_look_up_is_large(const void *context);

/* places[i][j] = padding + the number of ids[i][0 .. j] that are not `padding`, or `padding` where ids[i][j] is it. */
typedef struct {
    const int32_t *ids;
    int32_t *places;
    ptrdiff_t rows, length;
    int32_t padding;
    int status;
} mp_places;

/* The operation PLACES: one task. */
ptrdiff_t mp_plan_places(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_places(void *context, ptrdiff_t task);
int mp_places_are_large(const void *context);

MP_SHARED_END
#endif
