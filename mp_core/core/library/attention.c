#include "library/attention.h"

#include <stddef.h>
#include <string.h>

enum { LEAST_ROWS = 4 * MP_ROWS }; /* the fewest queries of a task, if possible: each task packs the keys of its head */

/* Whether there are keys to which a query does not attend. */
static int is_near(const mp_attention *t) { return mp_min(t->before, t->after) < t->sources - 1; }

void mp_find_keys(const mp_attention *t, mp_query_block *q) {
    const ptrdiff_t band = q->first - q->first % MP_BAND;
    q->first_key = is_near(t) ? mp_max(0, band - t->before) : 0;
    q->keys = (is_near(t) ? mp_min(t->sources, band + MP_BAND + t->after) : t->sources) - q->first_key;
}

ptrdiff_t mp_most_keys(const mp_attention *t) {
    return is_near(t) ? mp_min(t->sources, t->before + t->after + MP_BAND) : t->sources;
}

double mp_attention_work(const mp_attention *t) {
    return (double)t->sequences * (double)t->heads * (double)t->targets * (double)mp_most_keys(t)
           * (double)(t->scores.k + t->context.n);
}

/* ---- plan */

void mp_plan_query_block(mp_attention *t, ptrdiff_t sources) {
    mp_product *scores = &t->scores, *context = &t->context;
    const ptrdiff_t size = mp_element_bytes[scores->a.format], block = t->cut.block, elements = block * sources;
    scores->m = context->m = block;
    scores->n = context->k = sources;
    scores->out.rs = sources * 4, context->a.rs = sources * size;
    if (t->scale.inner != 0) scores->common.epilogue.activation = MP_TANH;
    mp_plan_product(scores, 1, 1);
    mp_plan_product(context, 1, 1);
    t->cut.narrowed = size == 4 ? 0 : mp_round_up(elements * 4, 64);
    t->cut.mask = mp_round_up(elements * 4, 64) + (size == 4 ? 0 : mp_round_up(elements * size, 64));
    t->cut.work = t->cut.mask;
    if (is_near(t)) t->cut.work += mp_round_up(block + sources + (t->keep.data ? elements : 0), 64);
    t->cut.total = t->cut.work + mp_max(scores->plan.scratch.total, context->plan.scratch.total);
}

/* Choose the queries of a task: their scores fit L2 / 4, and several threads get at least two tasks each. */
static void cut_up(mp_attention *t, int threads) {
    mp_attention_cut *c = &t->cut;
    const ptrdiff_t heads = mp_max(1, t->sequences * t->heads);
    const ptrdiff_t fitting = mp_this_machine()->l2 / 4 / (mp_most_keys(t) * 4);
    const ptrdiff_t wanted = threads == 1 ? 1 : mp_ceil_div(2 * threads, heads);
    c->blocks = mp_ceil_div(t->targets, mp_max(fitting, LEAST_ROWS));
    c->blocks = mp_max(c->blocks, mp_min(wanted, mp_ceil_div(t->targets, MP_ROWS)));
    c->block = mp_ceil_div(t->targets, c->blocks);
    if (is_near(t) && t->targets > MP_BAND) /* a task is in one band */
        while (MP_BAND % c->block) c->block = mp_min(c->block - 1, MP_BAND);
    c->blocks = mp_ceil_div(t->targets, c->block);
}

int mp_attention_is_large(const void *context) {
    return mp_attention_work(context) >= mp_this_machine()->tuning->thread_work;
}

void mp_measure_sequences(mp_attention *t) {
    t->targets = 1;
    for (ptrdiff_t i = 0; i < t->sequences; i++) t->targets = mp_max(t->targets, t->offsets[i + 1] - t->offsets[i]);
    t->sources = t->targets;
}

ptrdiff_t mp_plan_attention(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_attention *t = context;
    t->scores.kernels = t->context.kernels = mp_active();
    t->scores.reproducible = t->context.reproducible = reproducible;
    if (sequences >= 0) t->sequences = sequences;
    if (t->offsets) mp_measure_sequences(t);
    cut_up(t, mp_attention_is_large(t) ? threads : 1);
    mp_plan_query_block(t, mp_most_keys(t));
    return t->sequences * t->heads * t->cut.blocks;
}

/* ---- run */

/* Write the mask of near attention for some queries to `room`; the row of the first query is that of the first key plus
 * `apart`. Return the mask.
 *
 * Without `keep` all rows share one buffer, and each begins one byte before the previous one (stride -1). Otherwise
 * `keep` is a mask with rows `stride` bytes apart, and the result is both masks combined. `stride` is set to that of
 * the result. */
static const uint8_t *mask_of(const mp_attention *t, const uint8_t *keep, ptrdiff_t apart, uint8_t *room,
                              ptrdiff_t *stride) {
    const ptrdiff_t rows = t->scores.m, sources = t->scores.n;
    const ptrdiff_t first = mp_max(0, rows - 1 + apart - t->before);
    const ptrdiff_t end = mp_min(rows + sources - 1, rows + apart + t->after);
    uint8_t *mask = room + rows + sources;
    memset(room, 0, (size_t)(rows + sources));
    memset(room + first, 1, (size_t)(end - first));
    if (!keep) {
        *stride = -1;
        return room + rows - 1;
    }
    for (ptrdiff_t row = 0; row < rows; row++)
        for (ptrdiff_t j = 0; j < sources; j++)
            mask[row * sources + j] = keep[row * *stride + j] & room[rows - 1 - row + j];
    *stride = sources;
    return mask;
}

void mp_find_weights(mp_attention *t, const mp_query_block *q, int format, char *work) {
    mp_product *scores = &t->scores;
    ptrdiff_t stride = t->keep.by.row;
    scores->a.data += mp_offset_in(&t->query, q->sequence, q->head, q->begin + q->first);
    scores->b.data += mp_offset_in(&t->key, q->sequence, q->head / t->sharing, q->begin + q->first_key);
    scores->out.data = work;
    if (t->scale.inner != 0) scores->a.row_scale = &t->scale.inner;
    if (scores->residual.data)
        scores->residual.data += mp_offset_in(&t->bias, q->sequence, q->head, q->first) + q->first_key * 4;
    mp_run_here(scores, work + t->cut.work);
    const uint8_t *keep = t->keep.data;
    if (keep) keep += mp_offset_in(&t->keep.by, q->sequence, q->head, q->first) + q->first_key;
    if (is_near(t)) keep = mask_of(t, keep, q->first - q->first_key, (uint8_t *)work + t->cut.mask, &stride);
    const mp_row_block b = {
        .rows = scores->m, .n = scores->n, .ldx = scores->n, .ldw = scores->n, .ldo = scores->n, .x_format = MP_F32,
        .out_format = (mp_format)format, .x = work, .work = (float *)work,
        .out = format == MP_F32 ? work : work + t->cut.narrowed,
    };
    scores->kernels->rows->softmax(&b, keep, stride, t->scale.outer);
}

void mp_drop_block(const mp_attention *t, const mp_query_block *q, ptrdiff_t rows, float *weights) {
    for (ptrdiff_t row = 0; row < rows; row++)
        mp_drop_weights(&t->dropout, q->begin + q->first + row, q->head, q->first_key, q->keys,
                        weights + row * q->keys);
}

/* Compute the weights of a block in the type in which they multiply the values. */
static void find_context_weights(mp_attention *t, const mp_query_block *q, char *work) {
    const int format = t->scores.a.format;
    const ptrdiff_t rows = t->scores.m;
    mp_find_weights(t, q, t->dropout.key ? MP_F32 : format, work);
    if (!t->dropout.key) return;
    mp_drop_block(t, q, rows, (float *)work);
    if (format != MP_F32)
        t->scores.kernels->casts->narrow[format]((float *)work, work + t->cut.narrowed, rows * q->keys, 0);
}

/* Run a task: up to `block` queries of one head of one sequence. */
void mp_run_attention(void *context, ptrdiff_t task) {
    mp_attention t;
    memcpy(&t, context, offsetof(mp_attention, status)); /* not `status`, which other tasks may set now */
    const ptrdiff_t rest = task / t.cut.blocks;
    mp_query_block q = {.sequence = rest / t.heads, .head = rest % t.heads, .first = task % t.cut.blocks * t.cut.block};
    if (t.offsets) {
        q.begin = t.offsets[q.sequence];
        t.targets = t.sources = t.offsets[q.sequence + 1] - q.begin;
        if (t.targets <= q.first) return;
        q.sequence = 0;
    }
    mp_find_keys(&t, &q);
    if (q.keys != t.scores.n) mp_plan_query_block(&t, q.keys);
    char *work = mp_scratch((size_t)t.cut.total);
    if (!work) {
        mp_fail(&((mp_attention *)context)->status, MP_NO_MEMORY);
        return;
    }
    t.scores.m = t.context.m = mp_min(t.cut.block, t.targets - q.first);
    find_context_weights(&t, &q, work);
    t.context.a.data = work + t.cut.narrowed;
    t.context.b.data += mp_offset_in(&t.value, q.sequence, q.head / t.sharing, q.begin + q.first_key);
    t.context.out.data += mp_offset_in(&t.out, q.sequence, q.head, q.begin + q.first);
    mp_run_here(&t.context, work + t.cut.work);
}
