/* The micro-kernel: MR x NR sums in registers, over a range of K. MR <= 6 rows of A. NR is at most 64 columns of B on
 * AVX-512; on AVX2 and AArch64 64 for one row, 32 for two or three, 16 for more (vectors_of says which kinds are always
 * 16 wide); 16 in the portable set.
 *
 *    a packed panel of B: 64 columns, all of K           the loops, from the outside (docs/architecture.md)
 *    (bf16: groups of 2 along K)
 *              one vector: 16 columns                    task: MC rows of A by some panels of B           product.c
 *         k    |<------------->|                           NC columns: one panel, or several              product.c
 *        0 1   b00 b10 b01 b11 ... | ... | ... | ...         KC: a range of K, of each of these panels    product.c
 *        2 3   b20 b30 b21 b31 ... | ... | ... | ...           MR x NR: a register block                  panel.h
 *        ...                                                     K block: where sums start at +0          micro_kernel
 *                                                                  group: load NR of b, broadcast each   multiply_group
 *           A               panel              sums                of MR of a, multiply and add
 *        +------+  MR     +---+---+  KC     +---+---+  MR
 *        +------+         |   |   |         +---+---+
 *        |      |    x    |   |   |    =    |   |   |
 *        +------+         +---+---+         +---+---+
 *           KC             NR                NR
 *
 * As parameters, kind, rows and vectors are always constants, so that loops over them are unrolled and the sums c stay
 * in registers. */
_Static_assert(MP_MR <= MP_ROWS && MP_NR_VECTORS <= MOST_VECTORS, "plan.c assumes these bounds");

/* Consecutive register blocks of equal height, in the same columns. */
typedef struct {
    ptrdiff_t count, row, column; /* how many are left; the first row and column of the next one */
    char *sums;                   /* sums of that block; if g->accumulators.sums is NULL, one buffer for all of them */
    epilogue_place place;         /* how much of the epilogue is computed in registers */
    prefetch_kind prefetching;    /* what the current block prefetches */
    shared_prefetch next;         /* the rest of g->prefetch.next */
} block_column;

MP_INLINE char *partial_sums(const mp_gemm *g, const block_column *t) {
    return (char *)g->accumulators.partial + (t->row * g->accumulators.ld + t->column) * 4;
}

/* The words of the register block's zero points, for the K block that starts at `start`. */
MP_INLINE const uint32_t *zeros_at(const mp_gemm *g, const block_column *t, const ptrdiff_t start, const int kind) {
    return is_shifted(kind) ? g->operands.zeros.words + start / g->operands.zeros.group * MP_PANEL + t->column : NULL;
}

#ifdef MP_DECODES_TO_F32
/* The odd or the even element of a pair of a, as f32. */
MP_INLINE vf32 half_of_a(const char *pair, const int odd) {
    const vu32 x = as_u32(pair_factor(pair));
    return as_f32(odd ? and_u32(x, set_u32(0xFFFF0000u)) : shl_u32(x, 16));
}

/* Multiply one part of a group, as multiply_part does, if the kind has_halves: the odd, then the even elements. */
MP_INLINE void multiply_halves(vf32 (*c)[MOST_VECTORS], const place *at, const int kind, const int rows, const int j0,
                               const int j1, const int part) {
    vf32 column[MOST_VECTORS];
    MP_UNROLL_8 for (int odd = 1; odd >= 0; odd--) {
        MP_UNROLL_8 for (int j = j0; j < j1; j++) {
            const uint32_t *const zero = is_shifted(kind) ? at->zero + j * MP_LANES : NULL;
            column[j] = load_half(at->b + j * vector_bytes(kind), zero, kind, 2 * part + odd);
        }
        MP_UNROLL_16 for (int i = 0; i < rows; i++) {
            const vf32 row = half_of_a(at->a + i * at->lda + 4 * part, odd);
            MP_UNROLL_8 for (int j = j0; j < j1; j++) c[i][j] = fma_f32(row, column[j], c[i][j]);
        }
    }
}
#endif

/* Multiply one part of a group along K, of the vectors j0 to j1 - 1. */
MP_INLINE void multiply_part(const mp_gemm *g, vf32 (*c)[MOST_VECTORS], const place *at, const int kind, const int rows,
                             const int j0, const int j1, const int part) {
    const ptrdiff_t offset = part * part_of(kind) * size_of_a(kind);
    vf32 column[MOST_VECTORS];
#ifdef MP_DECODES_TO_F32
    if (has_halves(kind, rows)) {
        multiply_halves(c, at, kind, rows, j0, j1, part);
        return;
    }
#endif
    MP_UNROLL_8 for (int j = j0; j < j1; j++) column[j] = load_at(at, j, kind, part);
    MP_UNROLL_16 for (int i = 0; i < rows; i++) {
        const factor row = factor_of_a(g, at->a + i * at->lda + offset, kind);
        MP_UNROLL_8 for (int j = j0; j < j1; j++) c[i][j] = dot(c[i][j], row, column[j], kind);
    }
}

#ifdef MP_NATIVE_U4_DOT
/* Multiply a group of four-bit codes by integers, one vector after the other, both parts of a group together. */
MP_INLINE void multiply_nibbles(const mp_gemm *g, vf32 (*c)[MOST_VECTORS], const place *at, const int kind,
                                const int rows, const int vectors) {
    MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
        const vu32 first = as_u32(load_at(at, j, kind, 0)), second = as_u32(load_at(at, j, kind, 1));
        MP_UNROLL_16 for (int i = 0; i < rows; i++) {
            const char *const a = at->a + i * at->lda;
            c[i][j] = as_f32(dot_two_s8u4(as_u32(c[i][j]), factor_of_a(g, a, kind), first, factor_of_a(g, a + 4, kind),
                                          second));
        }
    }
}
#endif

/* Multiply the parts of a group that contain any of its first `valid` elements: first for `at_once` vectors
 * (kinds.def), then for the others, for which a is loaded again to save registers. */
MP_INLINE void multiply_group(const mp_gemm *g, vf32 (*c)[MOST_VECTORS], place *at, const int kind, const int rows,
                              const int vectors, const ptrdiff_t valid) {
#ifdef MP_NATIVE_OCTS
    if (is_octs(kind)) {
        multiply_octs(c, at, kind, rows);
        return;
    }
#endif
#ifdef MP_NATIVE_U4_DOT
    if (is_nibbles(kind)) {
        multiply_nibbles(g, c, at, kind, rows, vectors);
        return;
    }
#endif
    const int at_once_of_many = MP_HAS(TWO_VECTORS_AT_ONCE) ? kinds[kind].at_once : vectors;
    const int most = rows > 3 ? at_once_of_many : rows > 1 ? MP_NR_VECTORS : vectors;
    const int at_once = vectors < most ? vectors : most;
    const int parts = group_of(kind) / part_of(kind);
    if (MP_NR_VECTORS == 1 && rows == 1 && decodes_floats(kind)) { /* a vector at a time: its parts share decoding */
        MP_UNROLL_8 for (int j = 0; j < vectors; j++)
            MP_UNROLL_8 for (int part = 0; part < parts; part++)
                if (part * part_of(kind) < valid) multiply_part(g, c, at, kind, rows, j, j + 1, part);
        return;
    }
    MP_UNROLL_8 for (int part = 0; part < parts; part++)
        if (part * part_of(kind) < valid) multiply_part(g, c, at, kind, rows, 0, at_once, part);
    if (at_once == vectors) return;
    __asm__("" : "+r"(at->a)); /* makes the compiler load a again */
    MP_UNROLL_8 for (int part = 0; part < parts; part++)
        if (part * part_of(kind) < valid) multiply_part(g, c, at, kind, rows, at_once, vectors, part);
}

/* Multiply the last group along K, which has only `valid` elements; the others are zeros. */
MP_INLINE void multiply_last_group(const mp_gemm *g, vf32 (*c)[MOST_VECTORS], const place *at, const int kind,
                                   const int rows, const int vectors, const ptrdiff_t valid) {
    enum { GROUP_BYTES = 32 }; /* at most: 8 elements of f32 */
    char last[MOST_ROWS][GROUP_BYTES];
    memset(last, 0, sizeof last);
    for (int i = 0; i < rows; i++) memcpy(last[i], at->a + i * at->lda, (size_t)(valid * size_of_a(kind)));
    place here = {.a = last[0], .b = at->b, .lda = GROUP_BYTES, .stride = at->stride, .zero = at->zero};
    multiply_group(g, c, &here, kind, rows, vectors, valid);
}

/* Multiply the elements start to end - 1 along K, which are in one K block. */
MP_INLINE void multiply_k_block(const mp_gemm *g, block_column *t, vf32 (*c)[MOST_VECTORS], const ptrdiff_t start,
                                const ptrdiff_t end, const int kind, const int rows, const int vectors) {
    const int group = group_of(kind);
    const ptrdiff_t left_over = (end - start) % group, stop = (g->shape.k - end) / group; /* groups after the K block */
    const ptrdiff_t lda = g->operands.lda * size_of_a(kind), b_stride = g->operands.b_stride;
    place at = {.lda = lda, .stride = b_stride / group, .zero = zeros_at(g, t, start, kind)};
    at.a = (const char *)g->operands.a + t->row * lda + start * size_of_a(kind);
    at.b = (const char *)g->operands.b + t->column / MP_LANES * vector_bytes(kind) + start / group * b_stride;
    const volatile prefetch_kind *const prefetching = &t->prefetching; /* stays in memory: sums need the registers */
#ifdef MP_NATIVE_OCTS
    if (is_octs(kind)) blocks_of_rows(c, rows);
#endif
    const int two = has_two_groups(kind); /* if so, an odd last group is multiplied after the loop */
    ptrdiff_t left = (g->shape.k - start) / group; /* groups to the end of the call: prefetches are spread over them */
    while (left > stop + two) {
        multiply_group(g, c, &at, kind, rows, vectors, group);
        at.a += group * size_of_a(kind), at.b += b_stride, left--;
        if (two) {
            MP_COMPILER_BARRIER; /* else the second group is loaded with the first, and sums leave the registers */
            multiply_group(g, c, &at, kind, rows, vectors, group);
            at.a += group * size_of_a(kind), at.b += b_stride, left--;
        }
        /* A constant for low register blocks that are narrower than usual, and for int16: no test in their loops. */
        if ((rows <= LOW_ROWS && vectors < vectors_of(kind, rows)) || is_int16(kind) || !*prefetching) continue;
        if (vectors == vectors_of(kind, rows) && *prefetching == OWN_PANEL)
            MP_UNROLL_8 for (int line = 0; line < vectors * vector_bytes(kind); line += 64) {
                __builtin_prefetch(at.b + OWN_DISTANCE + line, 0, 3);
                if (two) __builtin_prefetch(at.b + b_stride + OWN_DISTANCE + line, 0, 3);
            }
        else if (rows > LOW_ROWS && !((left >> two) & t->next.interval))
            prefetch_lines(&t->next.next, 2, 2);
    }
    if (two && left > stop) {
        multiply_group(g, c, &at, kind, rows, vectors, group);
        at.a += group * size_of_a(kind), at.b += b_stride;
    }
    if (left_over) multiply_last_group(g, c, &at, kind, rows, vectors, left_over);
#ifdef MP_NATIVE_OCTS
    if (is_octs(kind)) rows_of_blocks(c, rows);
#endif
}

/* Compute the pairs of multiply_k_block again, with exact flushing (add_again). */
MP_INLINE void multiply_k_block_again(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS],
                                      const ptrdiff_t start, const ptrdiff_t end, const int kind, const int rows,
                                      const int vectors) {
    const ptrdiff_t lda = g->operands.lda * size_of_a(kind), b_stride = g->operands.b_stride;
    float sums[MP_MR * MP_PANEL];
    const again_block block = {
        .at = {.a = (const char *)g->operands.a + t->row * lda + start * size_of_a(kind),
               .lda = lda,
               .b = (const char *)g->operands.b + t->column / MP_LANES * vector_bytes(kind)
                    + start / group_of(kind) * b_stride,
               .stride = b_stride / group_of(kind),
               .zero = zeros_at(g, t, start, kind)},
        .k = end - start,
        .b_stride = b_stride,
        .sums = (char *)sums,
        .ld = MP_PANEL * 4,
        .rows = rows,
        .vectors = vectors,
    };
    store_sums(c, block.sums, block.ld, rows, vectors);
    multiply_again(&block, kind);
    load_sums(c, block.sums, block.ld, rows, vectors);
}

/* Add the partial sums c of the K block that starts at `start` to the sums of the K blocks before, if there are any. */
MP_INLINE void add_block(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS], const ptrdiff_t start,
                         const int kind, const int rows, const int vectors) {
    const int adds = start > 0 || !g->accumulators.first;
    const char *at = t->sums;
    const ptrdiff_t ld = g->accumulators.ld * 4;
    if (g->accumulators.block_scale) {
        if (is_integer(kind))
            MP_UNROLL_16 for (int i = 0; i < rows; i++)
                MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = f32_from_i32(as_u32(c[i][j]));
        const ptrdiff_t block = start / g->shape.k_block;
        const float *scale = g->accumulators.block_scale + block * g->accumulators.block_scale_ld + t->column;
        MP_UNROLL_16 for (int i = 0; i < rows; i++, at += ld)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
                const vf32 by = load_f32(scale + j * MP_LANES);
                const vf32 scaled = mul_of_kind(c[i][j], by, kind);
                c[i][j]
                    = adds ? fma_of_kind(c[i][j], by, load_f32((const void *)(at + j * MP_LANES * 4)), kind) : scaled;
            }
    } else if (adds) {
        MP_UNROLL_16 for (int i = 0; i < rows; i++, at += ld)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++)
                c[i][j] = add(load_f32((const void *)(at + j * MP_LANES * 4)), c[i][j], kind);
    }
}

/* Store sums as bf16. The instruction that rounds them flushes subnormal numbers. So if there are any among scaled
 * integers, they are stored as f32 and converted from memory: here sums use the registers that bf16_from_f32 needs. */
MP_INLINE void store_bf16(vf32 (*c)[MOST_VECTORS], uint16_t *out, ptrdiff_t ldo, const int kind, const int rows,
                          const int vectors) {
#ifdef MP_NATIVE_BF16
    int subnormal = 0;
    if (is_integer(kind))
        MP_UNROLL_16 for (int i = 0; i < rows; i++)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) subnormal |= any_subnormal(c[i][j]);
    if (subnormal) {
        float x[MP_MR * MP_PANEL];
        store_sums(c, (char *)x, MP_PANEL * 4, rows, vectors);
        _Pragma("GCC unroll 1") for (int i = 0; i < rows; i++)
            _Pragma("GCC unroll 1") for (int j = 0; j < vectors * MP_LANES; j += MP_LANES)
                store_u16(out + i * ldo + j, bf16_from_f32(load_f32(x + i * MP_PANEL + j)));
        return;
    }
#endif
    (void)kind;
    MP_UNROLL_16 for (int i = 0; i < rows; i++, out += ldo)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) store_u16(out + j * MP_LANES, bf16_of_flushed(c[i][j]));
}

/* Apply scales and bias in registers. */
MP_INLINE void scale_in_registers(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS], const int kind,
                                  const int rows, const int vectors) {
    const mp_epilogue *const e = &g->epilogue;
    if (sums_are_integers(g, kind))
        MP_UNROLL_16 for (int i = 0; i < rows; i++)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = f32_from_i32(as_u32(c[i][j]));
    if (e->row_scale)
        MP_UNROLL_16 for (int i = 0; i < rows; i++) {
            const vf32 by = set_f32(e->row_scale[(t->row + i) * e->row_stride]);
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = mul_of_kind(c[i][j], by, kind);
        }
    if (e->col_scale)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
            const vf32 by = load_f32(e->col_scale + t->column + j * MP_LANES);
            MP_UNROLL_16 for (int i = 0; i < rows; i++) c[i][j] = mul_of_kind(c[i][j], by, kind);
        }
    if (e->bias)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
            const vf32 bias = load_f32(e->bias + t->column + j * MP_LANES);
            MP_UNROLL_16 for (int i = 0; i < rows; i++) c[i][j] = add_f32(c[i][j], bias);
        }
}

/* Apply relu or relu6 in registers. */
MP_INLINE void clamp_in_registers(const mp_gemm *g, vf32 (*c)[MOST_VECTORS], const int rows, const int vectors) {
    const vf32 largest = set_f32(g->epilogue.activation == MP_RELU6 ? 6.0f : INFINITY);
    MP_UNROLL_16 for (int i = 0; i < rows; i++)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = min_f32(largest, relu_f32(c[i][j]));
}

/* Run the part of the epilogue that is computed in registers: scales and bias and, if there is no other activation than
 * a clamp, that clamp and one rounding; for int32 results nothing. */
MP_INLINE void run_epilogue_in_registers(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS],
                                         const int kind, const int rows, const int vectors) {
    const mp_epilogue *const e = &g->epilogue;
    const ptrdiff_t out = t->row * e->ldo + t->column;
    if (e->out_format != MP_I32) scale_in_registers(g, t, c, kind, rows, vectors);
    if (clamps(kind) && t->place == IN_REGISTERS && e->activation != MP_LINEAR) clamp_in_registers(g, c, rows, vectors);
    if (t->place == SCALED_IN_REGISTERS) {
        store_sums(c, t->sums, g->accumulators.ld * 4, rows, vectors);
    } else if (e->out_format == MP_BF16 && narrows_to(MP_BF16, kind)) {
        store_bf16(c, (uint16_t *)e->out + out, e->ldo, kind, rows, vectors);
    } else if (e->out_format == MP_F16 && narrows_to(MP_F16, kind)) {
        uint16_t *at = (uint16_t *)e->out + out;
        MP_UNROLL_16 for (int i = 0; i < rows; i++, at += e->ldo)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) store_u16(at + j * MP_LANES, f16_from_f32(c[i][j]));
    } else {
        store_sums(c, (char *)((float *)e->out + out), e->ldo * 4, rows, vectors);
    }
}

/* The initial sums of quads with zero points: minus zero points times sums of rows of a over the K block. F4 has one
 * zero point. */
MP_INLINE void start_of_shifted(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS], const ptrdiff_t start,
                                const int kind, const int rows, const int vectors) {
    const uint32_t *const zero = zeros_at(g, t, start, kind);
    const int32_t *sum = g->operands.block_sums + t->row * g->operands.block_sums_ld + start / g->shape.k_block;
    MP_UNROLL_16 for (int i = 0; i < rows; i++, sum += g->operands.block_sums_ld) {
        const uint32_t by = (uint32_t)*sum;
        if (kind == KIND_quads_f4)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = as_f32(set_u32(by * (MP_F4_ZERO + 8)));
        else
            MP_UNROLL_8 for (int j = 0; j < vectors; j++)
                c[i][j] = as_f32(mul_u32(set_u32(by), load_u32(zero + j * MP_LANES)));
    }
}

MP_INLINE void start_sums(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS], const ptrdiff_t start,
                          const int kind, const int rows, const int vectors) {
    const ptrdiff_t ld = is_integer(kind) ? g->accumulators.init_ld : 0;
    const ptrdiff_t column = t->column + (ld ? start / g->shape.k_block * ld : 0);
    if (is_nibbles(kind))
        start_of_shifted(g, t, c, start, kind, rows, vectors);
    else if (g->accumulators.resume)
        load_sums(c, partial_sums(g, t), g->accumulators.ld * 4, rows, vectors);
    else
        MP_UNROLL_16 for (int i = 0; i < rows; i++)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = start_at(g, column + j * MP_LANES, kind);
}

/* The initial float sums for the K blocks of a range: the sums of the K blocks before it. If there are none, they are
 * -0: a multiply-add with -0 gives the rounded product, also the sign of a product that is 0. */
MP_INLINE void start_scaled(const mp_gemm *g, const block_column *t, vf32 (*c)[MOST_VECTORS], const int rows,
                            const int vectors) {
    if (g->accumulators.first)
        MP_UNROLL_16 for (int i = 0; i < rows; i++)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = set_f32(-0.0f);
    else
        load_sums(c, t->sums, g->accumulators.ld * 4, rows, vectors);
}

/* Multiply the range, K block after K block, with the scaled sums c in registers: see keeps_scaled. Without scales all
 * of K is one K block, and c are its integer sums. */
MP_INLINE void multiply_scaled(const mp_gemm *g, block_column *t, const int kind, const int rows, const int vectors) {
    const float *scale = g->accumulators.block_scale;
    vf32 c[MOST_ROWS][MOST_VECTORS];
    start_scaled(g, t, c, rows, vectors);
    ptrdiff_t start = 0, end;
    do {
        end = start + at_most(g->shape.k - start, g->shape.k_block);
        vf32 sums[MOST_ROWS][MOST_VECTORS];
        start_sums(g, t, sums, start, kind, rows, vectors);
        multiply_k_block(g, t, sums, start, end, kind, rows, vectors);
        MP_COMPILER_BARRIER;
        if (scale)
            MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
                const vf32 by = load_f32(scale + t->column + j * MP_LANES);
                MP_UNROLL_16 for (int i = 0; i < rows; i++)
                    c[i][j] = fma_f32(f32_from_i32(as_u32(sums[i][j])), by, c[i][j]);
            }
        else
            MP_UNROLL_16 for (int i = 0; i < rows; i++)
                MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = sums[i][j];
        scale = scale ? scale + g->accumulators.block_scale_ld : NULL;
    } while ((start = end) < g->shape.k);
    if (t->place == IN_MEMORY)
        store_sums(c, t->sums, g->accumulators.ld * 4, rows, vectors);
    else
        run_epilogue_in_registers(g, t, c, kind, rows, vectors);
}

/* Multiply t->count register blocks over the whole range of K, K block after K block. */
MP_INLINE void micro_kernel(const mp_gemm *g, block_column *t, const int kind, const int rows, const int vectors) {
    if (rows > rows_of(kind) || vectors > vectors_of(kind, rows) || vectors != vectors_at_once(vectors, vectors, kind))
        return; /* this kind has no such register blocks */
    for (; t->count > 0; t->count--) {
        const int next = rows > LOW_ROWS && t->next.pairs > 0;
        t->prefetching = g->prefetch.this_panel && t->row == 0 ? OWN_PANEL : next ? NEXT_RANGE : NOTHING;
        t->next.pairs -= t->next.share;
        ptrdiff_t start = 0, end;
        if (keeps_scaled(kind, rows)) multiply_scaled(g, t, kind, rows, vectors);
        else do {
            end = start + at_most(g->shape.k - start, g->shape.k_block);
            vf32 c[MOST_ROWS][MOST_VECTORS];
            start_sums(g, t, c, start, kind, rows, vectors);
            watch(kind);
            multiply_k_block(g, t, c, start, end, kind, rows, vectors);
            if (has_flushed(c, kind, rows, vectors)) {
                start_sums(g, t, c, start, kind, rows, vectors);
                multiply_k_block_again(g, t, c, start, end, kind, rows, vectors);
            }
            MP_COMPILER_BARRIER;
            if (g->accumulators.suspend) {
                store_sums(c, partial_sums(g, t), g->accumulators.ld * 4, rows, vectors);
                continue;
            }
            add_block(g, t, c, start, kind, rows, vectors);
            if (t->place != IN_MEMORY && end == g->shape.k)
                run_epilogue_in_registers(g, t, c, kind, rows, vectors);
            else
                store_sums(c, t->sums, g->accumulators.ld * 4, rows, vectors);
        } while ((start = end) < g->shape.k);
        t->row += rows;
        if (g->accumulators.sums) t->sums += rows * g->accumulators.ld * 4;
    }
}

/* Each size of register block has its own function, for which the compiler allocates registers. Each kind has a table
 * of them, [rows - 1][vectors - 1]; vectors_of says how wide the blocks of so many rows are at most. */
#define MP_1_WIDE(DO, KIND, R) DO(KIND, R, 1)
#define MP_2_WIDE(DO, KIND, R) MP_1_WIDE(DO, KIND, R) DO(KIND, R, 2)
#define MP_4_WIDE(DO, KIND, R) MP_2_WIDE(DO, KIND, R) DO(KIND, R, 3) DO(KIND, R, 4)
#if MP_MR == 1
#define MP_SIZES(DO, KIND) MP_1_WIDE(DO, KIND, 1)
#elif MP_NR_VECTORS == 1
#define MP_SIZES(DO, KIND) \
    MP_4_WIDE(DO, KIND, 1) MP_2_WIDE(DO, KIND, 2) MP_2_WIDE(DO, KIND, 3) \
    MP_1_WIDE(DO, KIND, 4) MP_1_WIDE(DO, KIND, 5) MP_1_WIDE(DO, KIND, 6)
#else
#define MP_SIZES(DO, KIND) \
    MP_4_WIDE(DO, KIND, 1) MP_4_WIDE(DO, KIND, 2) MP_4_WIDE(DO, KIND, 3) \
    MP_4_WIDE(DO, KIND, 4) MP_4_WIDE(DO, KIND, 5) MP_4_WIDE(DO, KIND, 6)
#endif
_Static_assert(MP_MR == 6 || MP_MR == 1, "the sizes above");

#define MP_INSTANCE(KIND, R, N)                                                                                 \
    static __attribute__((noinline)) void micro_kernel_##KIND##_##R##x##N(const mp_gemm *g, block_column *t) {  \
        micro_kernel(g, t, KIND_##KIND, R, N);                                                                  \
    }
#define MP_ENTRY(KIND, R, N) [R - 1][N - 1] = micro_kernel_##KIND##_##R##x##N,
