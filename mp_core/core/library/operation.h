/* Operations: what a plan can record. Each is a row of a table (operations.def). Calls from Python and from C take the
 * same three steps:
 *
 *     describe   the caller fills the context, a struct: pointers, shapes, formats
 *     plan       cut the operation into tasks, for a number of rows and of threads
 *     run        run each task, on any thread
 *
 * XNNPACK names these create, reshape and run. Products, casts, fills and sums use the table only in recordings: calls
 * of them run the functions of their rows, or faster ones. Quantization cannot be recorded and is not in the table. */
#ifndef MP_OPERATION_H
#define MP_OPERATION_H

#include "kernels.h"

MP_SHARED_BEGIN

/* Whether an operation succeeded: `status` of its context. The caller sets it to MP_DONE in advance. */
typedef enum {
    MP_DONE,
    MP_NO_MEMORY, /* for scratch */
    MP_NO_ROW,    /* an index is outside of its table */
    MP_UNSEEN,    /* recording.h: a pointer to memory that the recording does not know */
} mp_status;

enum {
    MP_OWN_ROWS = -1,      /* as `rows` of `plan`: those of the last plan with a number, else of the context */
    MP_MOST_POINTERS = 16, /* in a context */
};

typedef struct {
    const char *name;          /* in error messages */
    size_t size;               /* bytes of the context */
    /* Choose the kernels and cut the operation into tasks; return the number of tasks. A context may be planned again,
     * for another number of rows or threads, or another order of sums. */
    ptrdiff_t (*plan)(void *context, ptrdiff_t rows, int threads, int reproducible);
    void (*run)(void *context, ptrdiff_t task);
    int (*is_large)(const void *context); /* whether a second thread pays, if the operation runs outside of a plan */
    ptrdiff_t status;          /* offset of `int status` in the context */
    const ptrdiff_t *pointers; /* offsets of the context's pointers to operands and results; the last one is -1 */
} mp_operation;

/* The numbers of the operations, in the order of operations.def: MP_OPERATION_CAST and so on. */
typedef enum {
#define MP_OPERATION(NAME, ...) MP_OPERATION_##NAME,
#include "library/operations.def"
    MP_OPERATIONS,
} mp_operation_number;

extern const mp_operation mp_operations[MP_OPERATIONS];

/* The address of the status in a context. */
static inline int *mp_status_of(const mp_operation *operation, void *context) {
    return (int *)((char *)context + operation->status);
}

/* Set the status of a context in one of its tasks. Other tasks may do so at the same time: the last one wins. */
static inline void mp_fail(int *status, mp_status failure) {
    __atomic_store_n(status, (int)failure, __ATOMIC_RELAXED);
}

/* Plan and run an operation whose context is filled; return its status. */
mp_status mp_do(const mp_operation *operation, void *context, int threads, int reproducible);

MP_SHARED_END
#endif
