/* Operations: what a plan can record, each a row of one table (operations.def). Calls of Python and C go the same way:
 *
 *     describe   whoever calls fills the context, a struct: pointers, shapes, formats
 *     plan       cut it into tasks, for so many rows and threads
 *     run        each task, on any thread
 *
 * XNNPACK names these create, reshape and run. Calls of products, casts, fills and sums do not need the table: they run
 * the functions of their rows, or faster ones, directly. Quantization cannot be recorded and has no row. */
#ifndef MP_OPERATION_H
#define MP_OPERATION_H

#include "kernels.h"

MP_SHARED_BEGIN

/* What has become of an operation: `status` of its context, which whoever describes it sets to MP_DONE. */
typedef enum {
    MP_DONE,
    MP_NO_MEMORY, /* for scratch */
    MP_NO_ROW,    /* an index is outside of its table */
    MP_UNSEEN,    /* recording.h: a pointer leads into memory that the recording does not know */
} mp_status;

enum {
    MP_OWN_ROWS = -1,      /* as the rows of a plan: those of the context, or of the last plan that was given any */
    MP_MOST_POINTERS = 16, /* of a context */
};

typedef struct {
    const char *name;          /* in errors */
    size_t size;               /* bytes of the context */
    /* Choose the kernels and cut the operation into tasks; return their number. A context may be planned again, for
     * other rows, threads or another order of sums. */
    ptrdiff_t (*plan)(void *context, ptrdiff_t rows, int threads, int reproducible);
    void (*run)(void *context, ptrdiff_t task);
    int (*is_large)(const void *context); /* whether a second thread pays, in a call that is no part of a plan */
    ptrdiff_t status;          /* offset of `int status` in the context */
    const ptrdiff_t *pointers; /* offsets of the pointers to what it reads and writes; -1 ends them */
} mp_operation;

/* Their numbers, in the order of operations.def: MP_OPERATION_CAST and so on. */
typedef enum {
#define MP_OPERATION(NAME, ...) MP_OPERATION_##NAME,
#include "library/operations.def"
    MP_OPERATIONS,
} mp_operation_number;

extern const mp_operation mp_operations[MP_OPERATIONS];

/* The status in a context. */
static inline int *mp_status_of(const mp_operation *operation, void *context) {
    return (int *)((char *)context + operation->status);
}

/* Set the status of a context in one of its tasks: others may do the same meanwhile. Of several the last one stays. */
static inline void mp_fail(int *status, mp_status failure) {
    __atomic_store_n(status, (int)failure, __ATOMIC_RELAXED);
}

/* Plan an operation that is described, and run it; return its status. */
mp_status mp_do(const mp_operation *operation, void *context, int threads, int reproducible);

MP_SHARED_END
#endif
