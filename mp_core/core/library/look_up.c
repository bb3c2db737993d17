#include "library/look_up.h"

#include <string.h>

#include "library/plan.h"
#include "library/runtime.h"

int mp_look_up_is_large(const void *context) {
    const mp_look_up *t = context;
    return (double)t->rows * (double)t->cast.n >= MP_CAST_WORK;
}

ptrdiff_t mp_plan_look_up(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_look_up *t = context;
    (void)reproducible;
    t->cast.kernels = mp_active();
    if (rows >= 0) t->rows = rows;
    t->share = mp_share(t->rows, threads, t->cast.n);
    return mp_ceil_div(t->rows, t->share);
}

/* Write a column of a packed matrix to `codes`, one in a byte; K is rounded up to whole groups. */
static void read_column(const mp_look_up *t, ptrdiff_t column, uint8_t *codes) {
    const int format = t->codes.packed ? MP_I4 : MP_I8;
    const ptrdiff_t first = column - column % MP_PANEL, width = mp_min(t->limit - first, MP_PANEL);
    const char *from = t->table + first * mp_column_bytes(format, t->cast.n) + column % MP_PANEL * 4;
    for (ptrdiff_t p = 0; p < t->cast.n; p += mp_group[format], from += width * 4) {
        uint32_t word;
        memcpy(&word, from, 4);
        if (format == MP_I8) memcpy(codes + p, from, 4);
        else
            for (int i = 0; i < 8; i++)
                codes[p + i] = (uint8_t)((int32_t)(word << (28 - i / 2 * 4 - i % 2 * 16)) >> 28);
    }
}

/* Write the scales of a column of a packed matrix, then its zero points, as those of a row of a table. */
static void read_column_scales(const mp_look_up *t, ptrdiff_t column, mp_part *p, float *scales) {
    const mp_table_codes *c = &t->codes;
    const ptrdiff_t groups = mp_ceil_div(t->cast.n, c->group);
    int32_t *zeros = (int32_t *)(scales + groups);
    for (ptrdiff_t g = 0; g < groups; g++) {
        scales[g] = c->scale[g * t->limit + column];
        if (c->zero_point) zeros[g] = ((const int8_t *)c->zero_point)[g * t->limit + column];
    }
    p->scale = scales, p->zero_point = c->zero_point ? zeros : NULL;
}

/* Write a row of scale * (code - zero point), rounded once to the type of the result; return 0 without memory. */
static int look_up_codes(const mp_look_up *t, ptrdiff_t row, char *out) {
    const mp_table_codes *c = &t->codes;
    const mp_quantizers *quantizers = t->cast.kernels->quantizers;
    const ptrdiff_t n = t->cast.n, whole = n / c->group, rest = n % c->group, bytes = mp_round_up(n, 8);
    float *numbers = mp_scratch((size_t)(4 * n + bytes + (c->panels ? 8 * mp_ceil_div(n, c->group) : 0)));
    if (!numbers) return 0;
    uint8_t *codes = (uint8_t *)(numbers + n);
    mp_part p = {.rows = whole, .cols = c->group, .ldq = c->group, .ldx = c->group, .by_row = 1,
                 .q = c->panels ? codes : (uint8_t *)t->table + row * t->row_bytes,
                 .scale = c->scale + row * c->scales,
                 .zero_point = c->zero_point ? c->zero_point + row * c->scales : NULL};
    if (c->panels) {
        read_column(t, row, codes);
        read_column_scales(t, row, &p, (float *)(codes + bytes));
    } else if (c->packed) {
        quantizers->unpack_nibbles(p.q, n, c->is_signed, codes);
        p.q = codes;
    }
    p.x = t->cast.dst_format == MP_F32 ? (float *)out : numbers;
    if (whole) quantizers->dequantize[c->kind](&p);
    if (rest) {
        p.x += whole * c->group, p.q += whole * c->group, p.scale += whole;
        if (p.zero_point) p.zero_point += whole;
        p.rows = 1, p.cols = rest;
        quantizers->dequantize[c->kind](&p);
    }
    if (t->cast.dst_format != MP_F32) t->cast.kernels->casts->narrow[t->cast.dst_format](numbers, out, n, 0);
    return 1;
}

void mp_run_look_up(void *context, ptrdiff_t task) {
    mp_look_up *t = context;
    const ptrdiff_t end = mp_min((task + 1) * t->share, t->rows);
    for (ptrdiff_t i = task * t->share; i < end; i++) {
        const ptrdiff_t row = t->index_bytes == 8 ? ((const int64_t *)t->indices)[i] : ((const int32_t *)t->indices)[i];
        char *to = t->out + i * t->cast.n * t->cast.dst_size;
        if (row < 0 || row >= t->limit) mp_fail(&t->status, MP_NO_ROW);
        else if (!t->codes.scale)
            mp_cast_line(&t->cast, t->table + row * t->row_bytes, t->cast.src_size, to, t->cast.dst_size, t->cast.n);
        else if (!look_up_codes(t, row, to))
            mp_fail(&t->status, MP_NO_MEMORY);
    }
}

int mp_store_is_large(const void *context) {
    const mp_store *t = context;
    return (double)t->rows * (double)t->heads * (double)t->bytes >= MP_CAST_WORK;
}

ptrdiff_t mp_plan_store(void *context, ptrdiff_t rows, int threads, int reproducible) {
    mp_store *t = context;
    (void)reproducible;
    if (rows >= 0) t->rows = rows;
    t->share = mp_share(t->rows, threads, t->heads * t->bytes);
    return mp_ceil_div(t->rows, t->share);
}

void mp_run_store(void *context, ptrdiff_t task) {
    const mp_store *t = context;
    const ptrdiff_t end = mp_min((task + 1) * t->share, t->rows), head_bytes = *t->head_rows * t->bytes;
    for (ptrdiff_t i = task * t->share; i < end; i++)
        for (ptrdiff_t head = 0; head < t->heads; head++)
            memcpy(t->to + head * head_bytes + t->places[i] * t->bytes, t->x + i * t->x_row + head * t->x_head,
                   (size_t)t->bytes);
}

int mp_places_are_large(const void *context) {
    (void)context;
    return 0;
}

ptrdiff_t mp_plan_places(void *context, ptrdiff_t rows, int threads, int reproducible) {
    (void)context, (void)rows, (void)threads, (void)reproducible;
    return 1;
}

void mp_run_places(void *context, ptrdiff_t task) {
    const mp_places *t = context;
    (void)task;
    for (ptrdiff_t row = 0; row < t->rows; row++) {
        const int32_t *ids = t->ids + row * t->length;
        int32_t *places = t->places + row * t->length, count = 0;
        for (ptrdiff_t column = 0; column < t->length; column++) {
            count += ids[column] != t->padding;
            places[column] = ids[column] != t->padding ? t->padding + count : t->padding;
        }
    }
}
