#include "library/attention.h"

#include <string.h>

enum { LEAST_ROWS = 4 * MP_ROWS }; /* of queries that a task should have, since each packs the keys of its head again */

/* The keys of a task: [first, end). */
typedef struct {
    ptrdiff_t first, end;
} key_range;

static ptrdiff_t offset(const mp_head_strides *by, ptrdiff_t sequence, ptrdiff_t head, ptrdiff_t row) {
    return sequence * by->sequence + head * by->head + row * by->row;
}

/* Whether there are keys that a query does not reach. */
static int is_near(const mp_attention *t) { return mp_min(t->before, t->after) < t->sources - 1; }

/* The keys that the band of a query reaches. */
static key_range keys_of(const mp_attention *t, ptrdiff_t query) {
    if (!is_near(t)) return (key_range){0, t->sources};
    query -= query % MP_BAND;
    return (key_range){mp_max(0, query - t->before), mp_min(t->sources, query + MP_BAND + t->after)};
}

/* The keys of a task, at most. */
static ptrdiff_t most_keys(const mp_attention *t) {
    return is_near(t) ? mp_min(t->sources, t->before + t->after + MP_BAND) : t->sources;
}

double mp_attention_work(const mp_attention *t) {
    return (double)t->sequences * (double)t->heads * (double)t->targets * (double)most_keys(t)
           * (double)(t->scores.k + t->context.n);
}

/* ---- plan */

/* Plan the two products of a task with so many keys, and lay out its scratch. */
static void plan_block(mp_attention *t, ptrdiff_t sources) {
    mp_product *scores = &t->scores, *context = &t->context;
    const ptrdiff_t size = mp_element_bytes[scores->a.format], block = t->cut.block, elements = block * sources;
    scores->m = context->m = block;
    scores->n = context->k = sources;
    scores->out.rs = sources * 4, context->a.rs = sources * size;
    mp_plan_product(scores, 1, 1);
    mp_plan_product(context, 1, 1);
    t->cut.narrowed = size == 4 ? 0 : mp_round_up(elements * 4, 64);
    t->cut.mask = mp_round_up(elements * 4, 64) + (size == 4 ? 0 : mp_round_up(elements * size, 64));
    t->cut.work = t->cut.mask;
    if (is_near(t)) t->cut.work += mp_round_up(block + sources + (t->kept ? elements : 0), 64);
    t->cut.total = t->cut.work + mp_max(scores->plan.scratch.total, context->plan.scratch.total);
}

/* Choose the rows of a task: scores of at most L2 / 4, and at least two tasks for each of several threads. */
static void cut_up(mp_attention *t, int threads) {
    mp_attention_cut *c = &t->cut;
    const ptrdiff_t heads = mp_max(1, t->sequences * t->heads);
    const ptrdiff_t fitting = mp_this_machine()->l2 / 4 / (most_keys(t) * 4);
    const ptrdiff_t wanted = threads == 1 ? 1 : mp_ceil_div(2 * threads, heads);
    c->blocks = mp_ceil_div(t->targets, mp_max(fitting, LEAST_ROWS));
    c->blocks = mp_max(c->blocks, mp_min(wanted, mp_ceil_div(t->targets, MP_ROWS)));
    c->block = mp_ceil_div(t->targets, c->blocks);
    if (is_near(t) && t->targets > MP_BAND) /* a task has rows of one band */
        while (MP_BAND % c->block) c->block = mp_min(c->block - 1, MP_BAND);
    c->blocks = mp_ceil_div(t->targets, c->block);
}

int mp_attention_is_large(const void *context) {
    return mp_attention_work(context) >= mp_this_machine()->tuning->thread_work;
}

/* Set targets and sources to the length of the longest sequence. */
static void measure_sequences(mp_attention *t) {
    t->targets = 1;
    for (ptrdiff_t i = 0; i < t->sequences; i++) t->targets = mp_max(t->targets, t->offsets[i + 1] - t->offsets[i]);
    t->sources = t->targets;
}

ptrdiff_t mp_plan_attention(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_attention *t = context;
    t->scores.kernels = t->context.kernels = mp_active();
    t->scores.reproducible = t->context.reproducible = reproducible;
    if (sequences >= 0) t->sequences = sequences;
    if (t->offsets) measure_sequences(t);
    cut_up(t, mp_attention_is_large(t) ? threads : 1);
    plan_block(t, most_keys(t));
    return t->sequences * t->heads * t->cut.blocks;
}

/* ---- run */

/* The mask of near attention of some queries, the first of which is `apart` behind the first key, in `room`.
 *
 * Without `keep` all rows share one buffer, and each begins one byte before the previous one (stride -1). With `keep`,
 * a mask of rows `stride` bytes apart, each is a copy, combined with it. `stride` becomes that of the result. */
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

/* Softmax of the scores of a task, where they lie, rounded to the type of the values. */
static void take_softmax(const mp_attention *t, const uint8_t *keep, ptrdiff_t keep_stride, char *work) {
    const mp_product *scores = &t->scores;
    const mp_row_block b = {
        .rows = scores->m, .n = scores->n, .ldx = scores->n, .ldw = scores->n, .ldo = scores->n, .x_format = MP_F32,
        .out_format = (mp_format)scores->a.format, .x = work, .work = (float *)work, .out = work + t->cut.narrowed,
    };
    scores->kernels->rows->softmax(&b, keep, keep_stride, t->scale);
}

/* A task: up to `block` rows of queries of one head of one sequence. */
void mp_run_attention(void *context, ptrdiff_t task) {
    mp_attention t = *(mp_attention *)context;
    const ptrdiff_t first = task % t.cut.blocks * t.cut.block, rest = task / t.cut.blocks;
    const ptrdiff_t head = rest % t.heads, shared = head / t.sharing;
    ptrdiff_t sequence = rest / t.heads, begin = 0, stride = t.keep.row;
    if (t.offsets) {
        begin = t.offsets[sequence];
        t.targets = t.sources = t.offsets[sequence + 1] - begin;
        if (t.targets <= first) return;
        sequence = 0;
    }
    const key_range keys = keys_of(&t, first);
    if (keys.end - keys.first != t.scores.n) plan_block(&t, keys.end - keys.first);
    char *work = mp_scratch((size_t)t.cut.total);
    if (!work) {
        ((mp_attention *)context)->status = MP_NO_MEMORY;
        return;
    }
    t.scores.m = t.context.m = mp_min(t.cut.block, t.targets - first);
    t.scores.a.data += offset(&t.query, sequence, head, begin + first);
    t.scores.b.data += offset(&t.key, sequence, shared, begin + keys.first);
    t.scores.out.data = work;
    if (t.scores.residual.data) t.scores.residual.data += offset(&t.bias, sequence, head, first) + keys.first * 4;
    mp_run_here(&t.scores, work + t.cut.work);
    const uint8_t *keep = t.kept ? t.kept + offset(&t.keep, sequence, head, first) + keys.first : NULL;
    if (is_near(&t)) keep = mask_of(&t, keep, first - keys.first, (uint8_t *)work + t.cut.mask, &stride);
    take_softmax(&t, keep, stride, work);
    t.context.a.data = work + t.cut.narrowed;
    t.context.b.data += offset(&t.value, sequence, shared, begin + keys.first);
    t.context.out.data += offset(&t.out, sequence, head, begin + first);
    mp_run_here(&t.context, work + t.cut.work);
}
