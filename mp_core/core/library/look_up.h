/* Looking up rows of a table by their indices, and the positions of tokens as indices into a table. */
#ifndef MP_LOOK_UP_H
#define MP_LOOK_UP_H

#include "library/cast.h"
#include "library/operation.h"

MP_SHARED_BEGIN

/* How the codes of a quantized table are stored. */
typedef struct {
    int kind;                  /* an mp_code: that of unpacked codes */
    int packed;                /* a byte has two codes */
    int is_signed;             /* ... which are signed */
    int panels;                /* the table is the transpose of a packed matrix of codes of 8 bits or, if `packed`, of
                                  int4; then the element g of its row r has the scale [g / group][r], and int4 also
                                  that zero point, which is int8 */
    const float *scale;        /* NULL: the elements of the table are floats */
    const int32_t *zero_point; /* NULL: zeros */
    ptrdiff_t scales, group;   /* scales for each row of the table, or 0 if all rows share their scales; columns per
                                  scale */
} mp_table_codes;

/* out[i] = table[indices[i]], cast to the type of out. */
typedef struct {
    mp_cast cast;              /* of one row */
    mp_table_codes codes;
    const char *table, *indices;
    int index_bytes;           /* 4 or 8 */
    char *out;
    ptrdiff_t rows, limit, row_bytes, share; /* number of indices; rows of the table; bytes from one of these to the
                                                next; indices in a task */
    int status;
} mp_look_up;

/* The operation LOOK_UP. */
ptrdiff_t mp_plan_look_up(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_look_up(void *context, ptrdiff_t task);
int mp_look_up_is_large(const void *context);

/* to[head][places[i]] = x[i][head]: rows of a cache are replaced by the rows of x; places are different ones. */
typedef struct {
    const char *x;
    const int32_t *places, *head_rows; /* [1] rows of each head in the cache */
    char *to;
    ptrdiff_t rows, heads, bytes, share;   /* rows and heads of x; bytes of a row of a head; rows of a task */
    ptrdiff_t x_row, x_head;               /* bytes from one row of x to the next, from one head to the next */
    int status;
} mp_store;

/* The operation STORE. */
ptrdiff_t mp_plan_store(void *context, ptrdiff_t rows, int threads, int reproducible);
void mp_run_store(void *context, ptrdiff_t task);
int mp_store_is_large(const void *context);

/* places[i][j] = padding + the number of ids[i][0 .. j] that are not `padding`, or `padding` if ids[i][j] is it. */
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
