#include "library/contract.h"

/* Whether it is a float of more than 8 bits: if A is, B may be codes with scales. */
static int is_wide(int format) { return format <= MP_BF16; }

int mp_types_multiply(int a_format, int b_format, int quantized) {
    if (quantized) return is_wide(a_format) && b_format >= MP_I8;
    if (a_format >= MP_FLOATS) return b_format == MP_I8 || (b_format == MP_I4 && a_format == MP_I8);
    return mp_group[b_format] && (is_wide(a_format) || a_format == b_format); /* without groups it is only stored */
}

ptrdiff_t mp_most_exact_k(int unsigned_a, int shifted_b) {
    return INT32_MAX / ((unsigned_a ? 255 : 128) * (shifted_b ? 255 : 128));
}

/* Whether the scales and zero points can be applied. Sums of integers may have scales by row of A and by column of B,
 * and zero points. Sums of floats may have scales by column, or by groups of whole words along K (8 elements of int4, 4
 * of int8) if B is narrow codes and A is wide. If A is integers, B may have groups of whole octs; int4 may have zero
 * points of its own if A has none, int8 in groups has none, nor has A. F4 times integers, which are quantized row by
 * row, must have such groups. */
static int scales_apply(const mp_product *p, int integers) {
    const int scales_of_a = p->a.row_scale || p->a.row_zero || p->a.scales, is_int4 = p->b.format == MP_I4,
              is_f4 = p->b.format == MP_F4;
    if (is_f4 && (p->b.zero_point || (integers && !p->b.group))) return 0;
    if (p->b.group && !is_int4 && integers && (p->b.zero_point || p->a.row_zero || p->a.scales)) return 0;
    if (is_int4 ? p->b.zero_point || (integers && (p->a.row_zero || p->a.scales)) : p->b.code_zero != NULL) return 0;
    if (!integers && (scales_of_a || p->b.zero_point)) return 0;
    if (!integers && (p->b.scale || p->b.group_scale) && (!is_wide(p->a.format) || is_wide(p->b.format))) return 0;
    if (p->a.quantized_here && p->a.row_zero) return 0;
    if (!p->b.group) return 1;
    return p->b.group > 0 && p->b.group % (integers ? MP_OCT : mp_group[p->b.format]) == 0 && p->b.packed;
}

static int result_is_possible(const mp_product *p, int integers) {
    const mp_epilogue *e = &p->common.epilogue;
    if (e->out_format < MP_FLOATS) return 1;
    const int is_scaled = p->a.row_scale || p->b.scale || p->b.group || p->b.format >= MP_I4;
    return e->out_format == MP_I32 && integers && !p->a.quantized_here && !is_scaled && !p->bias && !p->residual.data
           && e->activation == MP_LINEAR;
}

mp_refusal mp_refusal_of(const mp_product *p) {
    const int integers = p->a.quantized_here || p->a.format >= MP_FLOATS;
    const int unsigned_a = p->a.format == MP_U8 || p->a.row_zero;
    if (!mp_types_multiply(p->a.format, p->b.format, p->a.quantized_here)) return MP_BAD_TYPES;
    if (p->b.format >= MP_I4 && !p->b.packed) return MP_BAD_TYPES;
    if (!scales_apply(p, integers)) return MP_BAD_SCALES;
    if (integers && p->k > mp_most_exact_k(unsigned_a, p->b.zero_point != NULL)) return MP_TOO_DEEP;
    return result_is_possible(p, integers) ? MP_ACCEPTED : MP_BAD_RESULT;
}
