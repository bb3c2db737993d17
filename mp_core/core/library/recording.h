/* A recording: operations noted while a thread runs them, each with the memory that it reads and writes, so that
 * replay.h can run them again on other memory. */
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

/* A pointer of a context that leads into a buffer, whose memory moves between two runs. */
typedef struct {
    ptrdiff_t offset; /* of the pointer in the context */
    ptrdiff_t buffer; /* its number */
    ptrdiff_t delta;  /* bytes from the buffer's begin to where the pointer leads */
} mp_link;

/* What an operation costs, for profiles, and which rows it follows. */
typedef struct {
    ptrdiff_t rows;    /* of its result, which may differ from run to run; 0: they do not */
    double operations; /* multiplications and additions */
    int arithmetic;    /* in which it does them, an mp_arithmetic; MP_NO_ARITHMETIC: it does other things */
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

/* Memory is of two kinds: buffers, whose contents change from run to run, and constants. An operation that reads any
 * other memory reads what somebody has computed behind the back of the recording: mp_record refuses it. Pointers that
 * are NULL lead nowhere. */
typedef struct {
    mp_note *notes;
    ptrdiff_t count, room;
    mp_spans buffers, constants;
} mp_recording;

/* The address of the calling thread's pointer to the recording that it makes; that pointer is NULL if it makes none. */
mp_recording **mp_recorder(void);

/* Add memory. Both return MP_DONE or MP_NO_MEMORY. */
mp_status mp_add_buffer(mp_recording *r, mp_span memory);
mp_status mp_add_constant(mp_recording *r, mp_span memory);

/* The number of the buffer that holds an address, the latest if several do; -1 if none does. */
ptrdiff_t mp_find_buffer(const mp_recording *r, const char *at);

/* Whether one of the constants holds an address. */
int mp_holds_constant(const mp_recording *r, const char *at);

/* Note an operation that is described. MP_UNSEEN: a pointer leads to memory that is neither a buffer nor a constant. */
mp_status mp_record(mp_recording *r, const mp_operation *operation, const void *context, mp_cost cost);

/* Free what a recording holds. */
void mp_forget_recording(mp_recording *r);

MP_SHARED_END
#endif
