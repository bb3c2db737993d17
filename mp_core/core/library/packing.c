#include "library/packing.h"

#include "library/plan.h"
#include "library/runtime.h"

/* Run a task: pack a panel. */
static void pack_panel(void *matrix, ptrdiff_t index) {
    const mp_packed_matrix *p = matrix;
    const ptrdiff_t column = index * MP_PANEL, n = mp_min(p->n - column, MP_PANEL);
    char *dst = p->dst + column * mp_column_bytes(p->format, p->k);
    p->kernels->packing->pack[p->format](p->k, n, p->src + column * p->cs, p->rs, p->cs, dst);
    if (p->sums) p->kernels->products[MP_QUADS]->column_sums(p->k, n, dst, p->sums + column);
}

void mp_pack_matrix(const mp_packed_matrix *p, int threads) {
    if ((double)p->k * (double)p->n < MP_PACKING_WORK) threads = 1;
    mp_parallel_for(threads, mp_ceil_div(p->n, MP_PANEL), pack_panel, (void *)p);
}
