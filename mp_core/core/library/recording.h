/* A recording notes the operations that a thread runs, and which memory each of them reads and writes, so that replay.h
 * can run them again on other memory. */
#ifndef MP_RECORDING_H
#define MP_RECORDING_H

#include "library/operation.h"

MP_SHARED_BEGIN

/* Bytes of memory: [begin, end). */
typedef struct {
    const char *begin, *end;
} mp_span;

typedef struct {
    mp_span *at;
    ptrdiff_t count, room;
} mp_spans;

/* A pointer in a context that points into a buffer: it is set anew for each run. */
typedef struct {
    ptrdiff_t offset; /* of the pointer, in the context */
    ptrdiff_t buffer; /* the number of the buffer */
    ptrdiff_t delta;  /* the address to which it points, in bytes from the start of the buffer */
} mp_link;

/* What an operation costs, for profiles, and its number of rows. */
typedef struct {
    ptrdiff_t rows;    /* of the result, if their number may differ from run to run; else 0 */
    double operations; /* multiplications and additions */
    int arithmetic;    /* the mp_arithmetic of a product; MP_NO_ARITHMETIC: not a product */
    ptrdiff_t moved;   /* bytes read and written, weights included */
} mp_cost;
enum { MP_NO_ARITHMETIC = -1 };

typedef struct {
    const mp_operation *operation;
    void *context;     /* a copy */
    mp_cost cost;
    int link_count;
    mp_link links[MP_MOST_POINTERS];
} mp_note;

/* A recording knows two kinds of memory: buffers, whose contents change from run to run, and constants. An operation
 * that reads any other memory cannot be recorded: a part of the computation is missing. NULL pointers are allowed. */
typedef struct {
    mp_note *notes;
    ptrdiff_t count, room;
    mp_spans buffers, constants;
} mp_recording;

/* The address of the calling thread's pointer to its current recording, which is NULL if it has none. */
mp_recording **mp_recorder(void);

/* Add a buffer, a constant. Both return MP_DONE or MP_NO_MEMORY. */
mp_status mp_add_buffer(mp_recording *r, mp_span memory);
mp_status mp_add_constant(mp_recording *r, mp_span memory);

/* The number of the buffer that contains an address, the latest if several do; -1 if none does. */
ptrdiff_t mp_find_buffer(const mp_recording *r, const char *at);

/* Whether one of the constants contains an address. */
int mp_holds_constant(const mp_recording *r, const char *at);

/* Note an operation whose context is filled. MP_UNSEEN: it has a pointer to memory that is neither a buffer nor a
 * constant. */
mp_status mp_record(mp_recording *r, const mp_operation *operation, const void *context, mp_cost cost);

/* Free the memory of a recording. */
void mp_forget_recording(mp_recording *r);

MP_SHARED_END
#endif
