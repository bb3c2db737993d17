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
    const ptrdiff_t size = mp_element_bytes[scores->a.format], block = mp_max(t->cut.block, t->cut.together);
    const ptrdiff_t elements = block * sources;
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
    if (is_near(t) && (t->targets > MP_BAND || t->ragged.past)) /* a task is in one band */
        while (MP_BAND % c->block) c->block = mp_min(c->block - 1, MP_BAND);
    c->blocks = mp_ceil_div(t->targets, c->block) + (t->ragged.past && t->targets > 1); /* blocks begin at row 0 */
}

int mp_attention_is_large(const void *context) {
    return mp_attention_work(context) >= mp_this_machine()->tuning->thread_work;
}

void mp_measure_sequences(mp_attention *t) {
    t->targets = t->sources = 1;
    for (ptrdiff_t i = 0; i < t->sequences; i++) {
        const ptrdiff_t rows = t->ragged.offsets[i + 1] - t->ragged.offsets[i];
        t->targets = mp_max(t->targets, rows);
        t->sources = mp_max(t->sources, rows + (t->ragged.past ? t->ragged.past[i] : 0));
    }
}

ptrdiff_t mp_plan_attention(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_attention *t = context;
    t->scores.kernels = t->context.kernels = mp_active();
    t->scores.reproducible = t->context.reproducible = reproducible;
    if (sequences >= 0) t->sequences = sequences;
    if (t->ragged.offsets) mp_measure_sequences(t);
    t->cut.together = t->ragged.past && t->targets == 1 ? t->sharing : 1;
    t->scores.a.rs = t->cut.together > 1 ? t->query.head : t->query.row;
    t->context.out.rs = t->cut.together > 1 ? t->out.head : t->out.row;
    cut_up(t, mp_attention_is_large(t) ? threads : 1);
    mp_plan_query_block(t, mp_most_keys(t));
    return t->sequences * (t->heads / t->cut.together) * t->cut.blocks;
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
    const ptrdiff_t rows = t->cut.together > 1 ? 1 : t->scores.m, sources = t->scores.n;
    const ptrdiff_t first = mp_max(0, rows - 1 + apart - t->before);
    const ptrdiff_t end = mp_min(rows + sources - 1, rows + apart + t->after);
    uint8_t *mask = room + rows + sources;
    memset(room, 0, (size_t)(rows + sources));
    memset(room + first, 1, (size_t)(end - first));
    if (!keep) {
        *stride = t->cut.together > 1 ? 0 : -1; /* heads of one query have the same mask */
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
    scores->b.data += mp_offset_in(&t->key, q->sequence, q->head / t->sharing, q->keys_begin + q->first_key);
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

/* Find the rows of a block in its ragged sequence. Return the row after its last query. */
static ptrdiff_t find_sequence(mp_attention *t, mp_query_block *q) {
    const ptrdiff_t past = t->ragged.past ? t->ragged.past[q->sequence] : 0, block = t->cut.block;
    const ptrdiff_t end = (past / block * block) + q->first + block;
    t->targets = t->ragged.offsets[q->sequence + 1] - t->ragged.offsets[q->sequence];
    t->sources = past + t->targets;
    q->begin = t->ragged.offsets[q->sequence] - past, q->keys_begin = q->begin;
    q->first = mp_max(past, end - block), q->sequence = 0;
    return mp_min(end, t->sources);
}

/* The number of the page with a row of a sequence. */
static const int32_t *page_of(const mp_ragged *p, ptrdiff_t sequence, ptrdiff_t row) {
    return p->pages + p->starts[sequence] + row / p->page;
}

/* Set where the keys of a block begin, if their pages are neighbours; otherwise return 0. */
static int find_neighbours(const mp_attention *t, mp_query_block *q, ptrdiff_t sequence) {
    const mp_ragged *p = &t->ragged;
    const int32_t *page = page_of(p, sequence, q->first_key), *last = page_of(p, sequence, q->first_key + q->keys - 1);
    q->keys_begin = *page * p->page - q->first_key / p->page * p->page;
    while (page < last && page[1] == page[0] + 1) page++;
    return page == last;
}

/* Copy the rows of one head for a block from their pages, side by side, to `to`. Return their end. */
static char *copy_rows(const mp_ragged *p, const mp_query_block *q, ptrdiff_t sequence, const char *head,
                       ptrdiff_t bytes, char *to) {
    const ptrdiff_t end = q->first_key + q->keys;
    for (ptrdiff_t row = q->first_key, next; row < end; to += (next - row) * bytes, row = next) {
        next = mp_min(end, (row / p->page + 1) * p->page);
        const ptrdiff_t place = *page_of(p, sequence, row) * p->page + row % p->page;
        memcpy(to, head + place * bytes, (size_t)((next - row) * bytes));
    }
    return to;
}

/* Copy the keys and values of a block to `room`, and let `t` read them there. */
static void copy_pages(mp_attention *t, mp_query_block *q, ptrdiff_t sequence, char *room) {
    const ptrdiff_t shared = q->head / t->sharing;
    const char *keys = t->scores.b.data + shared * t->key.head, *values = t->context.b.data + shared * t->value.head;
    t->scores.b.data = room;
    t->context.b.data = copy_rows(&t->ragged, q, sequence, keys, t->key.row, room);
    copy_rows(&t->ragged, q, sequence, values, t->value.row, (char *)t->context.b.data);
    t->key.head = t->value.head = 0, q->keys_begin = -q->first_key;
}

/* Run a task: up to `block` queries of one head of one sequence, or one query of the heads that share keys. */
void mp_run_attention(void *context, ptrdiff_t task) {
    mp_attention t;
    memcpy(&t, context, offsetof(mp_attention, status)); /* not `status`, which other tasks may set now */
    const ptrdiff_t rest = task / t.cut.blocks, groups = t.heads / t.cut.together, sequence = rest / groups;
    mp_query_block q = {.sequence = sequence, .head = rest % groups * t.cut.together,
                        .first = task % t.cut.blocks * t.cut.block};
    ptrdiff_t end = mp_min(q.first + t.cut.block, t.targets);
    if (t.ragged.offsets) end = find_sequence(&t, &q);
    if (end <= q.first) return;
    mp_find_keys(&t, &q);
    ptrdiff_t copied = 0;
    if (t.ragged.past) {
        t.key.head = *t.ragged.rows * t.key.row, t.value.head = *t.ragged.rows * t.value.row;
        if (!find_neighbours(&t, &q, sequence)) copied = mp_round_up(q.keys * (t.key.row + t.value.row), 64);
    }
    if (q.keys != t.scores.n) mp_plan_query_block(&t, q.keys);
    char *work = mp_scratch((size_t)(copied + t.cut.total));
    if (!work) {
        mp_fail(&((mp_attention *)context)->status, MP_NO_MEMORY);
        return;
    }
    if (copied) copy_pages(&t, &q, sequence, work);
    work += copied;
    t.scores.m = t.context.m = mp_max(end - q.first, t.cut.together);
    find_context_weights(&t, &q, work);
    t.context.a.data = work + t.cut.narrowed;
    t.context.b.data += mp_offset_in(&t.value, q.sequence, q.head / t.sharing, q.keys_begin + q.first_key);
    t.context.out.data += mp_offset_in(&t.out, q.sequence, q.head, q.begin + q.first);
    mp_run_here(&t.context, work + t.cut.work);
}
