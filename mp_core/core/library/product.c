/* Running a product: mp_run_product asks plan_kept.c for its plan, and the pool's threads run its tasks.
 *
 * A task (run_task) takes MC rows of A, copies them into scratch if the kernels cannot read them as they lie, and goes
 * through its panels: NC columns at a time, KC elements of K at a time, one call of a kernel for each panel, or for each
 * micro-panel of one that was decoded. (Where B is multiplied in place by at most MR rows, one call takes all NC columns;
 * where it is transposed, one takes all of K.) */
#include <string.h>

#include "library/runtime.h"

#include "library/product.h"
#include "library/product_rows.h"
#include "library/product_loops.h"

/* One task: MC rows of A by some panels of B, of one matrix of the batch; `work` has plan.scratch.total bytes. */
static void run_task(const mp_product *p, ptrdiff_t index, char *work) {
    const mp_plan *plan = &p->plan;
    const ptrdiff_t first_panel = index % plan->panel_tasks * plan->task_panels, rest = index / plan->panel_tasks;
    const ptrdiff_t row = rest % plan->row_tasks * plan->mc, matrix = rest / plan->row_tasks;
    const ptrdiff_t end = mp_min(p->n, (first_panel + plan->task_panels) * MP_PANEL), nc = plan->nc_panels * MP_PANEL;
    mp_gemm g = p->common;
    task_place at = place_of(p, matrix, row);
    g.shape.m = mp_min(plan->mc, p->m - row);
    work = prepare_rows(p, &g, &at, matrix * p->m + row, work);
    for (ptrdiff_t column = first_panel * MP_PANEL; column < end; column += nc) {
        const columns c = {column, mp_min(column + nc, end)};
        if (plan->way == MP_IN_PLACE) run_in_place(p, &g, &at, c, work);
        else run_panels(p, &g, &at, c, work);
    }
}

void mp_run_here(const mp_product *p, char *work) {
    const ptrdiff_t tasks = mp_ceil_div(p->m, p->plan.mc) * p->plan.panel_tasks;
    for (ptrdiff_t index = 0; index < tasks; index++) run_task(p, index, work);
}

/* A small plan: one task, one range of K, no accumulators in scratch. */
static void run_small(mp_product *p, char *work) {
    mp_gemm *g = &p->common;
    task_place at = {p->a.data, p->b.data, p->b.sums, p->residual.data, p->out.data};
    g->shape.m = p->m, g->epilogue.row_scale = p->a.row_scale, g->epilogue.row_zero = p->a.row_zero;
    g->operands.lda = p->a.rs / mp_own_bytes(p->plan.arithmetic);
    if (!p->plan.direct) {
        at.a = work, g->operands.lda = mp_a_row(&p->plan, p->k);
        copy_rows(p, g, p->a.data, p->m, work);
        work += p->plan.scratch.a_copy + p->plan.scratch.a_narrow;
    }
    run_panels(p, g, &at, (columns){0, p->n}, work);
}

void mp_run_product_task(void *product, ptrdiff_t index) {
    mp_product *p = product;
    char *work = NULL;
    if (p->plan.scratch.total) {
        work = p->slots ? mp_take_slot(p->slots) : mp_scratch((size_t)p->plan.scratch.total);
        if (!work) {
            p->status = MP_NO_MEMORY;
            return;
        }
    }
    if (p->plan.small) run_small(p, work);
    else run_task(p, index, work);
    if (p->slots && work) mp_give_slot(p->slots, work);
}

void mp_turn_column(mp_product *p) {
    const int formats_turn = p->a.format == p->b.format || (p->a.format < MP_FLOATS && p->b.format < MP_FLOATS);
    if (p->n != 1 || p->m <= 1 || p->b.packed || p->out.rs != p->out.size || p->bias || p->residual.data
        || p->a.row_scale || p->a.row_zero || p->b.scale || p->b.zero_point || !formats_turn)
        return;
    const mp_left a = p->a;
    p->n = p->m, p->m = 1;
    p->a.data = p->b.data, p->a.format = p->b.format, p->a.size = mp_element_bytes[p->b.format];
    p->a.rs = p->b.cs, p->a.cs = p->b.rs;
    p->b.data = a.data, p->b.format = a.format, p->b.rs = a.cs, p->b.cs = a.rs;
    for (int axis = 0; axis < p->batch_axes; axis++) {
        const ptrdiff_t stride = p->batch[axis].a;
        p->batch[axis].a = p->batch[axis].b, p->batch[axis].b = stride;
    }
}

void mp_plan_product(mp_product *p, ptrdiff_t matrices, int threads) {
    mp_problem q;
    memset(&q, 0, sizeof q); /* padding too: problems are compared byte by byte */
    q.kernels = p->kernels, q.machine = mp_this_machine(), q.matrices = matrices, q.m = p->m, q.n = p->n, q.k = p->k;
    q.a = (mp_layout){p->a.format, (int)p->a.size, p->a.rs, p->a.cs};
    q.b = (mp_layout){p->b.format, (int)mp_element_bytes[p->b.format], p->b.rs, p->b.cs};
    q.packed = p->b.packed, q.quantized_here = p->a.quantized_here;
    q.own_scales = p->a.quantized_here && !p->a.row_scale && !p->a.scales;
    q.row_zero = p->a.row_zero != NULL, q.zero_point = p->b.zero_point != NULL;
    q.group = p->b.group_scale ? p->b.group : 0, q.reproducible = p->reproducible;
    mp_gemm *g = &p->common;
    q.threads = mp_multiplications(&q) < q.machine->tuning->thread_work ? 1 : threads;
    p->threads = q.threads;
    mp_find_plan(&q, &p->plan);
    if (p->plan.arithmetic == MP_QUADS) {
        g->operands.a_flip = p->a.format == MP_A_U8 ? 0 : 0x80808080u;
        g->epilogue.a_zero = p->a.format != MP_A_U8 && mp_flips(p->kernels, &p->plan) ? 128 : 0;
    }
    if (!p->plan.sums_wanted) p->b.sums = NULL;
    g->shape.k_block = p->plan.k_block;
    g->prefetch.from_memory = p->plan.from_memory, g->prefetch.own = p->plan.prefetch_within;
    g->epilogue.ldo = p->out.rs / p->out.size;
    if (p->residual.data) g->epilogue.ldr = p->residual.rs / p->residual.size;
}

ptrdiff_t mp_product_tasks(const mp_product *p, ptrdiff_t matrices) {
    return p->plan.small ? 1 : matrices * p->plan.row_tasks * p->plan.panel_tasks;
}

void mp_run_product(mp_product *p, ptrdiff_t matrices, int threads) {
    mp_plan_product(p, matrices, threads);
    if (p->plan.small) mp_run_product_task(p, 0);
    else mp_parallel_for(p->threads, mp_product_tasks(p, matrices), mp_run_product_task, p);
}
