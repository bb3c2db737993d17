#include "library/noted_product.h"

#include <string.h>

void mp_describe_noted_product(mp_noted_product *s, const mp_product *p, ptrdiff_t matrices) {
    memset(s, 0, sizeof *s);
    s->product = *p, s->m = p->m, s->matrices = matrices, s->common = p->common, s->sums = p->b.sums;
    memcpy(s->batch, p->batch, (size_t)p->batch_axes * sizeof *s->batch);
    if (p->a.windows) s->has_windows = 1, s->windows = *p->a.windows;
    if (p->k == 0) s->product.a.data = s->product.b.data = NULL; /* nothing is read, and they may point to no memory */
    if (p->a.quantized_here && !p->a.scales && p->a.row_scale) {
        s->one_scale = 1, s->scale = p->a.row_scale[0];
        s->product.a.row_scale = NULL;
    }
}

ptrdiff_t mp_plan_noted_product(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_noted_product *s = context;
    mp_product *p = &s->product;
    p->m = rows < 0 ? s->m : rows;
    p->batch = s->batch, p->b.sums = s->sums, p->common = s->common;
    if (s->has_windows) p->a.windows = &s->windows;
    if (s->one_scale) p->a.row_scale = &s->scale;
    p->kernels = mp_active(), p->reproducible = reproducible, p->status = MP_DONE;
    mp_plan_product(p, s->matrices, threads);
    return mp_product_tasks(p, s->matrices);
}

void mp_run_noted_product(void *context, ptrdiff_t task) {
    mp_noted_product *s = context;
    mp_run_product_task(&s->product, task);
    const int status = __atomic_load_n(&s->product.status, __ATOMIC_RELAXED);
    if (status) mp_fail(&s->status, (mp_status)status);
}

int mp_noted_product_is_large(const void *context) {
    const mp_noted_product *s = context;
    return (double)s->matrices * (double)s->m * (double)s->product.n * (double)mp_max(s->product.k, 1)
           >= mp_this_machine()->tuning->thread_work;
}
