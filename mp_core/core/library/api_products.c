/* The public functions for packed matrices and products (../include/mp_core.h). */
#include <string.h>

#include "library/api.h"
#include "library/contract.h"
#include "library/packing.h"
#include "library/product.h"

/* ---- packed matrices: the panels, MP_SLACK bytes and, for int8, the sums of the columns */

/* The format of panels of a type; -1 if it has none. */
static int panel_format(int type) {
    if (mp_is_float(type)) return type;
    return type == MP_CORE_INT8 ? MP_I8 : type == MP_CORE_INT4 ? MP_I4 : type == MP_CORE_FLOAT4_E2M1FN ? MP_F4 : -1;
}

/* The size of the panels in bytes: the offset of the sums of columns. */
static ptrdiff_t panels_bytes(int format, ptrdiff_t k, ptrdiff_t n) {
    return mp_round_up(mp_column_bytes(format, k) * n + MP_SLACK, 64);
}

ptrdiff_t mp_core_packed_bytes(int type, ptrdiff_t k, ptrdiff_t n) {
    const int format = panel_format(type);
    ptrdiff_t bytes;
    if (format < 0 || !mp_is_count(k) || !mp_is_count(n)
        || __builtin_mul_overflow(mp_column_bytes(format, k) + 4, n, &bytes) || bytes > PTRDIFF_MAX / 2)
        return -1;
    return panels_bytes(format, k, n) + (format == MP_I8 ? n * 4 : 0);
}

int mp_core_pack(int type, ptrdiff_t k, ptrdiff_t n, const void *b, ptrdiff_t rs, ptrdiff_t cs, void *packed,
                 int threads) {
    const ptrdiff_t bytes = mp_core_packed_bytes(type, k, n);
    mp_packed_matrix p = {
        .kernels = mp_kernels_in_use(), .format = panel_format(type), .k = k, .n = n, .src = b, .dst = packed};
    if (!p.kernels) return MP_CORE_BAD_ISA;
    if (bytes < 0 || !packed || (!b && k && n) || !mp_reaches(k, rs) || !mp_reaches(n, cs) || !mp_are_threads(threads))
        return MP_CORE_INVALID;
    const ptrdiff_t panels = panels_bytes(p.format, k, n), used = mp_column_bytes(p.format, k) * n;
    p.rs = rs * mp_element_bytes[p.format], p.cs = cs * mp_element_bytes[p.format];
    memset(p.dst + used, 0, (size_t)(bytes - used));
    if (p.format == MP_I8) p.sums = (int32_t *)(p.dst + panels);
    if (k) mp_pack_matrix(&p, threads);
    return MP_CORE_OK;
}

/* ---- products */

/* Whether the types of a product are valid. */
static int types_are_known(const mp_core_product *q) {
    const int a_is_code = q->a_type == MP_CORE_INT8 || q->a_type == MP_CORE_UINT8;
    return (mp_is_float(q->a_type) || a_is_code) && panel_format(q->b_type) >= 0
           && (mp_is_float(q->out_type) || q->out_type == MP_CORE_INT32)
           && (!q->residual || mp_is_float(q->residual_type))
           && q->activation >= MP_CORE_LINEAR && q->activation <= MP_CORE_TANH;
}

static int sizes_are_allowed(const mp_core_product *q) {
    return mp_are_rows(q->m, q->k, q->lda) && mp_are_rows(q->m, q->n, q->ldo) && mp_reaches(q->k, q->n)
           && (!q->residual || mp_are_rows(q->m, q->n, q->ldr))
           && (!q->b || (mp_reaches(q->k, q->b_rs) && mp_reaches(q->n, q->b_cs)));
}

/* Whether sizes, types and pointers are valid, so that `describe` may be called. */
static int is_described(const mp_core_product *q) {
    if (!q || q->size != sizeof(*q) || !sizes_are_allowed(q) || !types_are_known(q)) return 0;
    const int empty = q->m == 0 || q->n == 0, has_b = q->b || q->packed;
    return (empty || (q->out && (q->k == 0 || (q->a && has_b)))) && (panel_format(q->b_type) < MP_I4 || !q->b)
           && (!q->quantize_a || !q->a_scale || q->a_shared) && (!q->b_group || (q->b_scale && q->b_group % 8 == 0));
}

static void describe_left(const mp_core_product *q, mp_left *a, mp_epilogue *e) {
    a->data = q->a;
    a->format = q->a_type == MP_CORE_INT8 ? MP_I8 : q->a_type == MP_CORE_UINT8 ? (int)MP_U8 : q->a_type;
    a->size = mp_element_bytes[a->format], a->rs = q->lda * a->size, a->cs = a->size;
    a->quantized_here = q->quantize_a, a->row_scale = q->a_scale, a->row_zero = q->a_zero_point;
    e->row_stride = (q->a_scale || q->a_zero_point) && !q->a_shared;
}

static void describe_right(const mp_core_product *q, mp_right *b) {
    b->format = panel_format(q->b_type), b->packed = !q->b, b->zero_point = q->b_zero_point;
    b->data = q->b ? q->b : q->packed;
    if (q->b) b->rs = q->b_rs * mp_element_bytes[b->format], b->cs = q->b_cs * mp_element_bytes[b->format];
    else if (q->packed && b->format == MP_I8) b->sums = (const int32_t *)(b->data + panels_bytes(MP_I8, q->k, q->n));
    if (!q->b_group) b->scale = q->b_scale;
    else b->group_scale = q->b_scale, b->group = q->b_group;
}

/* Fill p, whose kernels and reproducible are set; return 0 if an argument is invalid. */
static int describe(const mp_core_product *q, mp_product *p) {
    if (!is_described(q)) return 0;
    mp_epilogue *e = &p->common.epilogue;
    p->m = q->m, p->n = q->n, p->k = q->k, p->bias = q->bias;
    describe_left(q, &p->a, e);
    describe_right(q, &p->b);
    e->out_format = q->out_type == MP_CORE_INT32 ? MP_I32 : (mp_format)q->out_type;
    e->activation = (mp_activation)q->activation;
    p->out.data = q->out, p->out.size = q->out_type == MP_CORE_INT32 ? 4 : mp_element_bytes[q->out_type];
    p->out.rs = q->ldo * p->out.size;
    if (q->residual) {
        e->residual_format = (mp_format)q->residual_type;
        p->residual.data = (char *)q->residual, p->residual.size = mp_element_bytes[q->residual_type];
        p->residual.rs = q->ldr * p->residual.size;
    }
    if (mp_refusal_of(p)) return 0;
    p->b.group = mp_min(p->b.group, mp_round_up(q->k, 8));
    if (!p->b.group) p->b.group_scale = NULL; /* even if K is 0 */
    return 1;
}

/* Plan a product; return the largest number of threads that run its tasks. */
static int plan(mp_product *p, int threads) {
    mp_column_as_row(p);
    mp_plan_product(p, 1, threads);
    return p->plan.small ? 1 : (int)mp_min(p->threads, mp_product_tasks(p, 1));
}

ptrdiff_t mp_core_product_scratch(const mp_core_product *q, int threads) {
    const mp_kernels *kernels = mp_kernels_in_use();
    ptrdiff_t most = 0;
    if (!kernels || !mp_are_threads(threads)) return -1;
    /* Both orders: the setting may change before the product is computed. */
    for (int reproducible = 0; reproducible <= 1; reproducible++) {
        mp_product p = {.kernels = kernels, .reproducible = reproducible};
        if (!describe(q, &p)) return -1;
        if (q->m == 0 || q->n == 0) return 0;
        const int used = plan(&p, threads);
        most = mp_max(most, used * mp_round_up(p.plan.scratch.total, 64));
    }
    return most;
}

int mp_core_multiply(const mp_core_product *q, void *scratch, int threads) {
    mp_product p = {.kernels = mp_kernels_in_use(), .reproducible = mp_is_reproducible()};
    if (!p.kernels) return MP_CORE_BAD_ISA;
    if (p.reproducible < 0) return MP_CORE_BAD_ORDER;
    if (!describe(q, &p) || !mp_are_threads(threads)) return MP_CORE_INVALID;
    if (q->m == 0 || q->n == 0) return MP_CORE_OK;
    const int used = plan(&p, threads);
    mp_slots slots;
    if (scratch && p.plan.scratch.total) {
        mp_set_slots(&slots, scratch, mp_round_up(p.plan.scratch.total, 64), used);
        p.slots = &slots;
    }
    mp_parallel_for(used, mp_product_tasks(&p, 1), mp_run_product_task, &p);
    return p.status ? MP_CORE_NO_MEMORY : MP_CORE_OK;
}
