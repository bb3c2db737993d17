#include "library/attention_gradient.h"

#include <string.h>

#include "library/elementwise.h"

/* The products of a band besides its scores: dP, and the terms that the band adds to the gradients. */
enum { OF_WEIGHTS, OF_VALUES, OF_QUERIES, OF_KEYS, PRODUCTS };

/* A band of queries of a head, and its scratch. */
typedef struct {
    mp_attention forward;   /* planned for the band */
    mp_product products[PRODUCTS];
    mp_query_block block;
    ptrdiff_t rows;
    char *work;             /* weights, in float32 and rounded */
    char *product_work;
    float *upstream;        /* dP, then S, then T */
    float *capped;          /* Y, if scores are capped */
    float *keys, *values;   /* sums of dK, dV for all keys of the sequence */
} band;

int mp_attention_gradient_is_large(const void *context) {
    const mp_attention_gradient *t = context;
    return mp_attention_is_large(&t->forward);
}

ptrdiff_t mp_plan_attention_gradient(void *context, ptrdiff_t sequences, int threads, int reproducible) {
    mp_attention_gradient *t = context;
    mp_attention *f = &t->forward;
    (void)threads;
    f->scores.kernels = f->context.kernels = mp_active();
    f->scores.reproducible = f->context.reproducible = reproducible;
    if (sequences >= 0) f->sequences = sequences;
    if (f->ragged.offsets) mp_measure_sequences(f);
    return (t->sums_sequences ? 1 : f->sequences) * (t->sums_heads ? 1 : f->heads / f->sharing);
}

/* ---- planning a band */

static mp_product product_of(const mp_attention *f, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k) {
    mp_product p;
    memset(&p, 0, sizeof p);
    p.kernels = f->scores.kernels, p.reproducible = f->scores.reproducible;
    p.m = m, p.n = n, p.k = k;
    p.a.format = p.b.format = f->scores.a.format, p.a.size = mp_element_bytes[f->scores.a.format];
    p.out.size = 4, p.common.epilogue.out_format = MP_F32;
    p.out.rs = n * 4;
    return p;
}

/* Let a product add its result to the values in its result array: contiguous float32 rows. */
static void let_add(mp_product *p) {
    p->residual = p->out, p->common.epilogue.residual_format = MP_F32;
    p->residual.data = (char *)p; /* any pointer until the right one is set: the plan depends on whether it is NULL */
}

/* Plan a band of b->rows queries, whose block is set; return the bytes of scratch for its products. */
static ptrdiff_t plan_band(const mp_attention_gradient *t, band *b) {
    const mp_attention *f = &t->forward;
    const ptrdiff_t size = mp_element_bytes[f->scores.a.format], keys = b->block.keys, depth = f->scores.k;
    const ptrdiff_t width = f->context.n, line = keys * size;
    mp_product *p = b->products;
    b->forward.cut.block = b->rows;
    mp_plan_query_block(&b->forward, keys);
    p[OF_WEIGHTS] = product_of(f, b->rows, keys, width);
    p[OF_WEIGHTS].a.rs = t->d.by.row, p[OF_WEIGHTS].a.cs = size;
    p[OF_WEIGHTS].b.rs = f->context.b.cs, p[OF_WEIGHTS].b.cs = f->context.b.rs;
    p[OF_VALUES] = product_of(f, keys, width, b->rows);
    p[OF_VALUES].a.rs = size, p[OF_VALUES].a.cs = line;
    p[OF_VALUES].b.rs = t->d.by.row, p[OF_VALUES].b.cs = size;
    let_add(&p[OF_VALUES]);
    p[OF_QUERIES] = product_of(f, b->rows, depth, keys);
    p[OF_QUERIES].a.rs = line, p[OF_QUERIES].a.cs = size;
    p[OF_QUERIES].b.rs = f->scores.b.cs, p[OF_QUERIES].b.cs = f->scores.b.rs;
    p[OF_QUERIES].out.size = size, p[OF_QUERIES].out.rs = t->query.by.row;
    p[OF_QUERIES].common.epilogue.out_format = (mp_format)f->scores.a.format;
    p[OF_KEYS] = product_of(f, keys, depth, b->rows);
    p[OF_KEYS].a.rs = size, p[OF_KEYS].a.cs = line;
    p[OF_KEYS].b.rs = f->scores.a.rs, p[OF_KEYS].b.cs = f->scores.a.cs;
    let_add(&p[OF_KEYS]);
    ptrdiff_t most = b->forward.cut.total - b->forward.cut.work;
    for (int i = 0; i < PRODUCTS; i++) {
        mp_plan_product(&p[i], 1, 1);
        most = mp_max(most, p[i].plan.scratch.total);
    }
    return most;
}

/* Set the block of the band from query `first` on; 0 if there are no more. */
static int find_band(band *b, ptrdiff_t first) {
    const mp_attention *f = &b->forward;
    if (first >= f->targets) return 0;
    b->block.first = first, b->rows = mp_min(MP_BAND, f->targets - first);
    mp_find_keys(f, &b->block);
    return 1;
}

/* Allocate the scratch for all bands of a sequence; return 0 if there is no memory. */
static int lay_out(const mp_attention_gradient *t, band *b) {
    const mp_attention *f = &b->forward;
    ptrdiff_t weights = 0, products = 0, upstream = 0;
    for (ptrdiff_t first = 0; find_band(b, first); first += MP_BAND) {
        products = mp_max(products, mp_round_up(plan_band(t, b), 64));
        weights = mp_max(weights, f->cut.work);
        upstream = mp_max(upstream, mp_round_up(b->rows * b->block.keys * 4, 64));
    }
    const ptrdiff_t keys = mp_round_up(f->sources * f->scores.k * 4, 64);
    const ptrdiff_t values = mp_round_up(f->sources * f->context.n * 4, 64);
    const ptrdiff_t capped = f->scale.inner != 0 ? upstream : 0;
    b->work = mp_scratch((size_t)(weights + upstream + capped + keys + values + products));
    if (!b->work) return 0;
    b->product_work = b->work + weights; /* also the scratch of mp_find_weights */
    b->upstream = (float *)(b->product_work + products);
    b->capped = (float *)((char *)b->upstream + upstream);
    b->keys = (float *)((char *)b->capped + capped);
    b->values = (float *)((char *)b->keys + keys);
    return 1;
}

/* ---- run */

/* The address of a row of a head, in the band's sequence. */
static char *row_of(const mp_head_array *a, const mp_query_block *q, ptrdiff_t head, ptrdiff_t row) {
    return a->data + mp_offset_in(&a->by, q->sequence, head, q->begin + row);
}

static void run_product(band *b, int which, const char *a, const char *right, char *out) {
    mp_product *p = &b->products[which];
    p->a.data = a, p->b.data = right, p->out.data = out;
    if (p->residual.data) p->residual.data = out;
    mp_run_here(p, b->product_work);
}

/* Replace dP of the band by S times `scale`. */
static void take_scores(band *b, float scale) {
    const float *weights = (const float *)b->work;
    for (ptrdiff_t at = 0; at < b->rows * b->block.keys; at += b->block.keys)
        b->forward.scores.kernels->rows->softmax_gradient(weights + at, b->upstream + at, b->block.keys, scale,
                                                          b->upstream + at);
}

/* Multiply T by 1 - Y^2, for the scores that mp_find_weights has planned. */
static void take_capped(band *b) {
    mp_product *scores = &b->forward.scores;
    scores->out.data = (char *)b->capped;
    mp_run_here(scores, b->product_work);
    scores->kernels->rows->functions[MP_TANH_GRADIENT](b->upstream, b->capped, b->rows * b->block.keys, b->upstream);
}

static void add_to_bias(const mp_attention_gradient *t, band *b) {
    const ptrdiff_t keys = b->block.keys;
    take_scores(b, 1.0f);
    for (ptrdiff_t row = 0; row < b->rows; row++) {
        const mp_query_block *q = &b->block;
        float *to = (float *)(t->bias.data + mp_offset_in(&t->bias.by, q->sequence, q->head, q->first + row));
        to += q->first_key;
        b->forward.scores.kernels->rows->functions[MP_ADD](to, b->upstream + row * keys, keys, to);
    }
}

/* Compute a planned band of a head. */
static void run_band(const mp_attention_gradient *t, band *b) {
    const mp_attention *f = &t->forward;
    const int format = f->scores.a.format;
    const mp_query_block q = b->block;
    const ptrdiff_t shared = q.head / f->sharing;
    const char *const d = row_of(&t->d, &q, q.head, q.first);
    const char *const value = f->context.b.data + mp_offset_in(&f->value, q.sequence, shared, q.begin + q.first_key);
    char *const narrowed = format == MP_F32 ? NULL : b->work + b->forward.cut.narrowed;
    mp_find_weights(&b->forward, &q, MP_F32, b->work);
    run_product(b, OF_WEIGHTS, d, value, (char *)b->upstream);
    if (f->dropout.key) mp_drop_block(f, &q, b->rows, b->upstream);
    if (t->bias.data) add_to_bias(t, b);
    if (!t->query.data) return;
    take_scores(b, t->scale);
    if (f->scale.inner != 0) take_capped(b);
    if (f->dropout.key) mp_drop_block(f, &q, b->rows, (float *)b->work);
    if (narrowed) f->scores.kernels->casts->narrow[format]((float *)b->work, narrowed, b->rows * q.keys, 0);
    run_product(b, OF_VALUES, narrowed ? narrowed : b->work, d, (char *)(b->values + q.first_key * f->context.n));
    if (narrowed) f->scores.kernels->casts->narrow[format](b->upstream, narrowed, b->rows * q.keys, 0);
    const char *const scores = narrowed ? narrowed : (const char *)b->upstream;
    const char *const key = f->scores.b.data + mp_offset_in(&f->key, q.sequence, shared, q.begin + q.first_key);
    const char *const query = f->scores.a.data + mp_offset_in(&f->query, q.sequence, q.head, q.begin + q.first);
    run_product(b, OF_QUERIES, scores, key, row_of(&t->query, &q, q.head, q.first));
    run_product(b, OF_KEYS, scores, query, (char *)(b->keys + q.first_key * f->scores.k));
}

static void zero_rows(const mp_head_array *to, ptrdiff_t head, ptrdiff_t first, ptrdiff_t end, ptrdiff_t bytes) {
    for (ptrdiff_t row = first; row < end; row++)
        memset(to->data + mp_offset_in(&to->by, 0, head, row), 0, (size_t)bytes);
}

/* Write zeros for the rows before the first ragged sequence and after the last one, for a head of keys and its heads of
 * queries. */
static void zero_others(const mp_attention_gradient *t, ptrdiff_t shared) {
    const mp_attention *f = &t->forward;
    const ptrdiff_t size = mp_element_bytes[f->scores.a.format],
                    ends[] = {0, f->ragged.offsets[0], f->ragged.offsets[f->sequences], t->rows};
    for (int i = 0; i < 4; i += 2) {
        for (ptrdiff_t head = shared * f->sharing; head < (shared + 1) * f->sharing; head++)
            zero_rows(&t->query, head, ends[i], ends[i + 1], f->scores.k * size);
        zero_rows(&t->key, shared, ends[i], ends[i + 1], f->scores.k * size);
        zero_rows(&t->value, shared, ends[i], ends[i + 1], f->context.n * size);
    }
}

/* Round the sums of all keys to the type of the gradient. */
static void store(const mp_attention *f, const mp_head_array *to, const mp_query_block *q, const float *sums,
                  ptrdiff_t n) {
    for (ptrdiff_t row = 0; row < f->sources; row++, sums += n) {
        char *at = row_of(to, q, q->head / f->sharing, row);
        if (f->scores.a.format == MP_F32) memcpy(at, sums, (size_t)n * sizeof *sums);
        else f->scores.kernels->casts->narrow[f->scores.a.format](sums, at, n, 0);
    }
}

/* Compute a head of keys of a sequence, and all heads of queries that share it; return 0 if there is no memory. */
static int run_head(const mp_attention_gradient *t, ptrdiff_t sequence, ptrdiff_t shared) {
    band b = {.forward = t->forward, .block = {.sequence = sequence}};
    mp_attention *f = &b.forward;
    if (f->ragged.offsets) {
        b.block.begin = b.block.keys_begin = f->ragged.offsets[sequence], b.block.sequence = 0;
        f->targets = f->sources = f->ragged.offsets[sequence + 1] - b.block.begin;
        if (sequence == 0 && t->query.data) zero_others(t, shared);
        if (f->targets == 0) return 1;
    }
    if (!lay_out(t, &b)) return 0;
    memset(b.keys, 0, (size_t)(f->sources * f->scores.k) * sizeof(float));
    memset(b.values, 0, (size_t)(f->sources * f->context.n) * sizeof(float));
    for (ptrdiff_t head = shared * f->sharing; head < (shared + 1) * f->sharing; head++) {
        for (ptrdiff_t first = 0; find_band(&b, first) && !mp_stopped(); first += MP_BAND) {
            const mp_attention sequence_of = *f;
            b.block.head = head;
            plan_band(t, &b);
            run_band(t, &b);
            *f = sequence_of; /* run_band has changed its pointers */
        }
    }
    if (t->query.data) {
        store(f, &t->key, &b.block, b.keys, f->scores.k);
        store(f, &t->value, &b.block, b.values, f->context.n);
    }
    return 1;
}

void mp_run_attention_gradient(void *context, ptrdiff_t task) {
    mp_attention_gradient *t = context;
    const mp_attention *f = &t->forward;
    const ptrdiff_t heads = f->heads / f->sharing, apart = t->sums_heads ? 1 : heads;
    const ptrdiff_t sequence = task / apart, head = task % apart;
    const ptrdiff_t sequences = t->sums_sequences ? f->sequences : sequence + 1;
    for (ptrdiff_t i = t->sums_sequences ? 0 : sequence; i < sequences; i++)
        for (ptrdiff_t j = head; j < (t->sums_heads ? heads : head + 1); j++)
            if (!run_head(t, i, j)) {
                mp_fail(&t->status, MP_NO_MEMORY);
                return;
            }
}
