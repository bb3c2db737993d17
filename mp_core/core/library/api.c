/* The public functions, except products and quantization: the library, casts, rows, plans, and the table of all. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "library/api.h"
#include "library/cast.h"
#include "library/replay.h"
#include "library/rows.h"
#include "library/system.h"

const char *mp_core_version(void) { return MP_CORE_VERSION; }

const char *mp_core_status_text(int status) {
    static const char *const texts[] = {
        [MP_CORE_OK] = "it is done",
        [MP_CORE_INVALID] = "an argument is not allowed; mp_core.h says what is",
        [MP_CORE_NO_MEMORY] = "there is no memory for scratch",
        [MP_CORE_BAD_ISA] = "the instruction set is unknown, or this machine cannot use it",
        [MP_CORE_BAD_ORDER] = "MP_CORE_REPRODUCIBLE is neither 0 nor 1",
        [MP_CORE_NO_ROW] = "an index is outside of the table in which it is looked up",
    };
    return status >= 0 && status <= MP_CORE_BAD_ORDER ? texts[status] : "an unknown status";
}

/* ---- the instruction set */

/* Use the instruction set `name`; if it is NULL, the best one. */
static int use(const char *name) {
    const uint32_t have = mp_cpu_features();
    for (const mp_isa *isa = mp_isas; isa->name; isa++) {
        if (isa->needs & ~have || (name && strcmp(name, isa->name) != 0)) continue;
        mp_activate(isa->kernels);
        return MP_CORE_OK;
    }
    return MP_CORE_BAD_ISA;
}

const mp_kernels *mp_kernels_in_use(void) {
    if (!mp_active()) {
        const char *name = getenv("MP_CORE_ISA");
        if (use(name && *name ? name : NULL)) return NULL;
    }
    return mp_active();
}

const char *mp_core_isa(void) {
    const mp_kernels *kernels = mp_kernels_in_use();
    return kernels ? kernels->isa : NULL;
}

int mp_core_set_isa(const char *name) { return name ? use(name) : MP_CORE_INVALID; }

int mp_core_set_reproducible(int reproducible) {
    if (reproducible != 0 && reproducible != 1) return MP_CORE_INVALID;
    mp_set_reproducible(reproducible);
    return MP_CORE_OK;
}

int mp_core_is_reproducible(void) { return mp_is_reproducible(); }

int mp_core_cpus(void) {
    const int cpus = mp_allowed_cpus();
    return cpus > 0 ? cpus : mp_all_cpus();
}

/* ---- casts */

static float to_float(double x, int saturate) {
    const float y = (float)x;
    return saturate && isinf(y) ? copysignf(FLT_MAX, y) : y;
}

int mp_core_cast(ptrdiff_t n, int src_type, const void *src, int dst_type, void *dst, int saturate, int threads) {
    static const int sizes[] = {4, 2, 2, 1, 1, 8};
    const int is_double = src_type == MP_CORE_FLOAT64;
    mp_cast c = {.kernels = mp_kernels_in_use(), .src = src, .dst = dst, .n = n, .src_format = src_type,
                 .dst_format = dst_type, .mode = saturate ? MP_SATURATE : 0};
    if (!c.kernels) return MP_CORE_BAD_ISA;
    if (!mp_is_count(n) || !(mp_is_float(src_type) || is_double) || !mp_is_float(dst_type) || !mp_are_threads(threads)
        || (n && (!src || !dst)))
        return MP_CORE_INVALID;
    c.src_size = sizes[src_type], c.dst_size = sizes[dst_type];
    if (!is_double) {
        mp_run_cast(&c, threads);
    } else if (dst_type != MP_CORE_FLOAT32) {
        c.src_format = MP_F64;
        mp_run_cast(&c, threads);
    } else {
        for (ptrdiff_t i = 0; i < n; i++) ((float *)dst)[i] = to_float(((const double *)src)[i], saturate);
    }
    return MP_CORE_OK;
}

/* ---- rows */

static int run_rows(const mp_core_rows *rows, mp_row_call *r, int threads) {
    const ptrdiff_t keep_stride = r->mask.stride[0];
    r->kernels = mp_kernels_in_use();
    if (!r->kernels) return MP_CORE_BAD_ISA;
    if (!rows || rows->size != sizeof(*rows) || !mp_is_float(rows->type) || !mp_are_rows(rows->rows, rows->n, rows->ldx)
        || !mp_are_rows(rows->rows, rows->n, rows->ldo) || !mp_are_threads(threads))
        return MP_CORE_INVALID;
    if (r->mask.keep && keep_stride && !mp_are_rows(rows->rows, rows->n, keep_stride)) return MP_CORE_INVALID;
    if (rows->rows == 0 || rows->n == 0) return MP_CORE_OK;
    if (!rows->x || !rows->out) return MP_CORE_INVALID;
    r->format = rows->type, r->size = (int)mp_element_bytes[rows->type];
    r->rows = rows->rows, r->length = rows->n, r->ldx = rows->ldx, r->ldo = rows->ldo;
    r->x = rows->x, r->out = rows->out, r->mask.shape[0] = rows->rows;
    return mp_do(&mp_operations[MP_OPERATION_ROWS], r, threads, 0) ? MP_CORE_NO_MEMORY : MP_CORE_OK;
}

int mp_core_softmax(const mp_core_rows *rows, float scale, const uint8_t *keep, ptrdiff_t keep_stride, int threads) {
    mp_row_call r = {.what = MP_SOFTMAX, .scale = scale, .mask = {.keep = keep, .axes = 1, .stride = {keep_stride}}};
    return run_rows(rows, &r, threads);
}

int mp_core_layer_norm(const mp_core_rows *rows, const void *residual, const float *gamma, const float *beta,
                       float epsilon, int threads) {
    mp_row_call r = {.what = MP_LAYER_NORM, .residual = residual, .gamma = gamma, .beta = beta, .epsilon = epsilon};
    return run_rows(rows, &r, threads);
}

int mp_core_rms_norm(const mp_core_rows *rows, const float *gamma, float epsilon, int threads) {
    mp_row_call r = {.what = MP_RMS_NORM, .gamma = gamma, .epsilon = epsilon};
    return run_rows(rows, &r, threads);
}

int mp_core_activate(const mp_core_rows *rows, int activation, int threads) {
    mp_row_call r = {.what = MP_ACTIVATE, .activation = (mp_activation)activation};
    if (activation <= MP_CORE_LINEAR || activation > MP_CORE_TANH) return MP_CORE_INVALID;
    return run_rows(rows, &r, threads);
}

/* ---- plans */

ptrdiff_t mp_core_plan_bytes(const mp_core_plan *plan, int is_output, int index) {
    if (!plan || index < 0 || index >= (is_output ? plan->outputs : plan->inputs)) return -1;
    return plan->bytes[(is_output ? plan->inputs : 0) + index];
}

/* Set the buffers of inputs and outputs to the arrays of a call; return 0 if one of these is NULL. */
static int set_buffers(mp_core_plan *plan, const void *const *inputs, void *const *outputs) {
    for (int i = 0; i < plan->inputs; i++) {
        if (!inputs || !inputs[i]) return 0;
        plan->buffers[i] = (char *)inputs[i];
    }
    for (int i = 0; i < plan->outputs; i++) {
        if (!outputs || !outputs[i]) return 0;
        plan->buffers[plan->results[i]] = outputs[i];
    }
    return 1;
}

int mp_core_run_plan(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads) {
    static const int statuses[] = {
        [MP_DONE] = MP_CORE_OK, [MP_NO_MEMORY] = MP_CORE_NO_MEMORY, [MP_NO_ROW] = MP_CORE_NO_ROW};
    ptrdiff_t number;
    if (!plan || !mp_are_threads(threads) || !set_buffers(plan, inputs, outputs)) return MP_CORE_INVALID;
    const mp_run run = {plan->buffers, NULL, threads, mp_is_reproducible()};
    mp_run_replay(plan->replay, &run);
    return statuses[mp_replay_status(plan->replay, &number)];
}

/* ---- the table */

const mp_core_table *mp_core_functions(void) {
    static const mp_core_table table = {
        MP_CORE_ABI_VERSION, MP_CORE_API_VERSION,
        mp_core_version, mp_core_status_text, mp_core_isa, mp_core_set_isa, mp_core_cpus,
        mp_core_cast, mp_core_packed_bytes, mp_core_pack, mp_core_product_scratch, mp_core_multiply,
        mp_core_quantize, mp_core_dequantize,
        mp_core_softmax, mp_core_layer_norm, mp_core_rms_norm, mp_core_activate, mp_core_run_plan,
        mp_core_plan_bytes, mp_core_set_reproducible, mp_core_is_reproducible,
    };
    return &table;
}
