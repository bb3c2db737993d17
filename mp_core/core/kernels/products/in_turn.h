/* One row of A by several whole packed panels that are in memory: two groups of each panel in turn, so that the
 * hardware prefetchers follow one stream for each panel. With a single stream an AVX2 core does not reach its bandwidth
 * (Zen 3: 19 of 30 GB/s; docs/performance.md). The sums of all columns do not fit the registers; they stay in the L1
 * cache. The order of each sum is that of a micro-kernel. */
#ifdef MP_PANELS_IN_TURN
enum { GROUPS_IN_TURN = 2 };

/* Add the products of `groups` groups of each panel to the partial sums. b_stride: bytes from one panel to the next. */
MP_INLINE void multiply_groups_in_turn(const mp_gemm *g, const char *a, const char *b, float *partial, const int kind,
                                       const int groups) {
    factor factors[GROUPS_IN_TURN];
    MP_UNROLL_8 for (int p = 0; p < groups; p++)
        factors[p] = factor_of_a(g, a + p * group_of(kind) * size_of_a(kind), kind);
    for (ptrdiff_t panel = 0; panel < g->shape.n; panel += MP_PANEL, b += g->operands.b_stride)
        MP_UNROLL_8 for (int j = 0; j < MP_PANEL; j += MP_LANES) {
            vf32 c = load_f32(partial + panel + j);
            MP_UNROLL_8 for (int p = 0; p < groups; p++)
                c = dot(c, factors[p],
                        load_b(b + (p * MP_PANEL + j) * (vector_bytes(kind) / MP_LANES), 0, NULL, kind, 0), kind);
            store_f32(partial + panel + j, c);
        }
}

/* Multiply the elements start to end - 1 along K, which are in one K block. */
MP_INLINE void multiply_block_of_panels(const mp_gemm *g, float *partial, ptrdiff_t start, ptrdiff_t end,
                                        const int kind) {
    const int group = group_of(kind);
    const ptrdiff_t group_bytes = vector_bytes(kind) / MP_LANES * MP_PANEL, a_bytes = group * size_of_a(kind);
    const char *a = (const char *)g->operands.a + start * size_of_a(kind);
    const char *b = (const char *)g->operands.b + start / group * group_bytes;
    ptrdiff_t groups = (end - start) / group;
    for (; groups >= GROUPS_IN_TURN;
         groups -= GROUPS_IN_TURN, a += GROUPS_IN_TURN * a_bytes, b += GROUPS_IN_TURN * group_bytes)
        multiply_groups_in_turn(g, a, b, partial, kind, GROUPS_IN_TURN);
    if (groups) multiply_groups_in_turn(g, a, b, partial, kind, 1), a += a_bytes, b += group_bytes;
    if ((end - start) % group) {
        char last[4] = {0}; /* a group of A; B has zeros beyond K */
        memcpy(last, a, (size_t)((end - start) % group * size_of_a(kind)));
        multiply_groups_in_turn(g, last, b, partial, kind, 1);
    }
}

MP_INLINE void multiply_panels_in_turn(const mp_gemm *g, const int kind) {
    _Alignas(64) float sums[MP_PANELS_IN_TURN * MP_PANEL], partial[MP_PANELS_IN_TURN * MP_PANEL];
    for (ptrdiff_t start = 0; start < g->shape.k; start += g->shape.k_block) {
        float *const block = start ? partial : sums;
        memset(block, 0, sizeof sums);
        multiply_block_of_panels(g, block, start, start + at_most(g->shape.k - start, g->shape.k_block), kind);
        if (start)
            for (ptrdiff_t j = 0; j < g->shape.n; j += MP_LANES)
                store_f32(sums + j, add(load_f32(sums + j), load_f32(partial + j), kind));
    }
    run_epilogue(g, sums, 0, 1, kind, IN_MEMORY);
}

#define MP_PANELS_OF(NAME) \
    static void panels_##NAME(const mp_gemm *g) { multiply_panels_in_turn(g, KIND_##NAME); }
#ifndef MP_QUADS_ONLY
MP_PANELS_OF(wide_f32)
MP_PANELS_OF(pairs_bf16)
#endif
MP_PANELS_OF(quads_i8)
#ifdef MP_NATIVE_S8
MP_PANELS_OF(quads_s8)
#endif
#undef MP_PANELS_OF
#define MP_FUNCTION_in_turn(ARITHMETIC, NAME) \
    static void in_turn_##NAME(const mp_gemm *g) { in_environment(g, MP_KERNEL_OF(g, panels, NAME), ARITHMETIC); }
#endif
