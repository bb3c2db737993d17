/* The epilogue: zero points, scales, bias, activation, residual, one narrowing. Each is a pass over accumulators: those
 * of the rows of a register block and the columns of the call. If the call has one panel, the accumulators are in the
 * L1 cache: at most 6 x 64 sums (1.5 KiB), with a transposed B 24 x 64 (6 KiB), with AMX tiles 32 x 64 (8 KiB). If the
 * call has NC columns (in place, M <= MR), they are in the L2 cache. Passes that are not needed are left out. A
 * micro-kernel can run the first passes, or all of them, in registers. */

/* How much of the epilogue is computed in registers: nothing, scales and bias, or everything. */
typedef enum { IN_MEMORY, SCALED_IN_REGISTERS, IN_REGISTERS } epilogue_place;

#define MP_EACH_VECTOR                                              \
    for (ptrdiff_t i = 0; i < rows; i++)                          \
        for (ptrdiff_t j = 0; j < g->shape.n; j += MP_LANES)
#define AT ((char *)sums + (i * g->accumulators.ld + j) * 4)
#define LEFT at_most(g->shape.n - j, MP_LANES)

/* Subtract the zero points: sum (a - za) (b - zb) = sum a b - za sum b - zb sum (a - za). */
MP_INLINE void subtract_zeros(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    const mp_epilogue *const e = &g->epilogue;
    MP_EACH_VECTOR {
        vu32 x = load_u32(AT);
        if (e->col_sum) {
            const int32_t zero = e->a_zero + (e->row_zero ? e->row_zero[(i0 + i) * e->row_stride] : 0);
            x = sub_u32(x, mul_u32(set_u32((uint32_t)zero), loadn_u32(e->col_sum + j, LEFT)));
        }
        if (e->row_sum) {
            vu32 zero = set_u32((uint32_t)e->b_zero);
            if (e->col_zero) zero = add_u32(zero, loadn_u32(e->col_zero + j, LEFT));
            x = sub_u32(x, mul_u32(set_u32((uint32_t)e->row_sum[i0 + i]), zero));
        }
        store_u32(AT, x);
    }
}

/* Scales and bias. The sums are integers or floats. The results are stored in `out` if `straight`, else they replace
 * the sums. mul_flushing may be used for all kinds: without flushing it is mul_f32. */
MP_INLINE void scale_and_shift(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows, const int integers,
                               int straight) {
    const mp_epilogue *const e = &g->epilogue;
    MP_EACH_VECTOR {
        vf32 x = integers ? f32_from_i32(load_u32(AT)) : load_f32((const void *)AT);
        if (e->row_scale) x = mul_flushing(x, set_f32(e->row_scale[(i0 + i) * e->row_stride]));
        if (e->col_scale) x = mul_flushing(x, loadn_f32(e->col_scale + j, LEFT));
        if (e->bias) x = add_f32(x, loadn_f32(e->bias + j, LEFT));
        if (straight)
            storen_f32((float *)e->out + (i0 + i) * e->ldo + j, x, LEFT);
        else
            store_f32((void *)AT, x);
    }
}

MP_INLINE void add_residual(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    const mp_epilogue *const e = &g->epilogue;
    switch (e->residual_format) {
#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST)                   \
    case MP_##FORMAT:                                                                                               \
        MP_EACH_VECTOR {                                                                                              \
            const vf32 r = TO_F32(LOADN((const CODE *)e->residual + (i0 + i) * e->ldr + j, LEFT));                  \
            store_f32((void *)AT, add_f32(load_f32((const void *)AT), r));                                          \
        }                                                                                                           \
        break;
#include "formats.def"
    default: break;
    }
}

MP_INLINE void narrow_rows(const mp_gemm *g, const void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    const mp_epilogue *const e = &g->epilogue;
    switch (e->out_format) {
#define MP_FLOAT(FORMAT, VEC, CODE, LOAD, LOADN, STORE, STOREN, STREAM, TO_F32, FROM_F32, LARGEST)                   \
    case MP_##FORMAT:                                                                                               \
        MP_EACH_VECTOR {                                                                                              \
            CODE *to = (CODE *)e->out + (i0 + i) * e->ldo + j;                                                      \
            const vf32 x = load_f32((const void *)AT);                                                              \
            if (g->shape.n - j >= MP_LANES)                                                                         \
                STORE(to, FROM_F32(x));                                                                             \
            else                                                                                                    \
                STOREN(to, FROM_F32(x), LEFT);                                                                      \
        }                                                                                                           \
        break;
#include "formats.def"
    default: break;
    }
}

/* The passes of the epilogue after scales and bias. */
MP_INLINE void activate_add_narrow(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    const mp_epilogue *const e = &g->epilogue;
    const ptrdiff_t ld = g->accumulators.ld, first = i0 * e->ldo;
    if (e->activation != MP_LINEAR) {
        const int straight = !e->residual && takes_results(e->out_format, g->shape.n);
        char *const out = (char *)e->out + first * mp_element_bytes[e->out_format];
        const result_rows here = {MP_F32, sums, ld}, there = {e->out_format, out, e->ldo};
        const int again = activate(e->activation, sums, ld, rows, g->shape.n, straight ? there : here);
        if (straight && !again) return;
    }
    if (e->residual) add_residual(g, sums, i0, rows);
    narrow_rows(g, sums, i0, rows);
}

MP_INLINE void scale_activate_narrow(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows, const int integers) {
    const mp_epilogue *const e = &g->epilogue;
    const int straight = e->out_format == MP_F32 && e->activation == MP_LINEAR && !e->residual;
    if (integers || e->row_scale || e->col_scale || e->bias) {
        scale_and_shift(g, sums, i0, rows, integers, straight);
        if (straight) return;
    }
    activate_add_narrow(g, sums, i0, rows);
}

static __attribute__((noinline)) void epilogue_of_scaled(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    activate_add_narrow(g, sums, i0, rows);
}

static __attribute__((noinline)) void epilogue_of_floats(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    scale_activate_narrow(g, sums, i0, rows, 0);
}

static __attribute__((noinline)) void epilogue_of_integers(const mp_gemm *g, void *sums, ptrdiff_t i0, ptrdiff_t rows) {
    const mp_epilogue *const e = &g->epilogue;
    if (e->col_sum || e->row_sum) subtract_zeros(g, sums, i0, rows);
    if (e->out_format == MP_I32) {
        for (ptrdiff_t i = 0; i < rows; i++)
            memcpy((int32_t *)e->out + (i0 + i) * e->ldo, (const int32_t *)sums + i * g->accumulators.ld,
                   (size_t)g->shape.n * 4);
        return;
    }
    scale_activate_narrow(g, sums, i0, rows, 1);
}

MP_INLINE int is_linear(const mp_gemm *g) { return g->epilogue.activation == MP_LINEAR && !g->epilogue.residual; }

/* Whether nothing but perhaps a clamp follows scales and bias. */
MP_INLINE int is_clamp(const mp_gemm *g) {
    const mp_epilogue *const e = &g->epilogue;
    return is_linear(g) || (!e->residual && (e->activation == MP_RELU || e->activation == MP_RELU6));
}

#undef MP_EACH_VECTOR
#undef AT
#undef LEFT
