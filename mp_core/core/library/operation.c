#include "library/operation.h"

#include "library/array_cast.h"
#include "library/attention.h"
#include "library/attention_gradient.h"
#include "library/depthwise.h"
#include "library/elementwise.h"
#include "library/indexed.h"
#include "library/look_up.h"
#include "library/noted_product.h"
#include "library/order.h"
#include "library/pooling.h"
#include "library/random.h"
#include "library/rotary.h"
#include "library/row_gradients.h"
#include "library/row_sums.h"
#include "library/rows.h"
#include "library/runtime.h"
#include "library/sums.h"
#include "library/taken_rows.h"
#include "library/window_pooling.h"
#include "library/windows.h"

const mp_operation mp_operations[MP_OPERATIONS] = {
#define MP_OPERATION(NAME, TEXT, CONTEXT, PLAN, RUN, IS_LARGE, ...)                                    \
    [MP_OPERATION_##NAME] = {                                                                          \
        .name = TEXT, .size = sizeof(CONTEXT), .plan = PLAN, .run = RUN, .is_large = IS_LARGE,         \
        .status = offsetof(CONTEXT, status), .pointers = (const ptrdiff_t[]){__VA_ARGS__, -1},         \
    },
#include "library/operations.def"
};

#define MP_OPERATION(NAME, TEXT, CONTEXT, PLAN, RUN, IS_LARGE, ...) \
    _Static_assert(sizeof((ptrdiff_t[]){__VA_ARGS__}) / sizeof(ptrdiff_t) <= MP_MOST_POINTERS, \
                   TEXT ": too many pointers");
#include "library/operations.def"

mp_status mp_do(const mp_operation *operation, void *context, int threads, int reproducible) {
    const ptrdiff_t tasks = operation->plan(context, MP_OWN_ROWS, threads, reproducible);
    mp_parallel_for(threads, tasks, operation->run, context);
    return (mp_status)*mp_status_of(operation, context);
}
