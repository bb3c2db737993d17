/* A call of a product kernel: a panel, or rows of a row-major B in place, is cut into register blocks. */

typedef void (*const micro_kernel_sizes[MOST_VECTORS])(const mp_gemm *, block_column *);

/* M = 1 and a row-major B in place: `at_once` groups of rows of B are multiplied over all n columns before the next
 * ones, so that memory is read in order. The partial sums of n columns do not fit the registers; they are loaded and
 * stored each time, and stay in a cache. Return how many groups were multiplied: `groups` rounded down to a multiple of
 * `at_once`. */
MP_INLINE ptrdiff_t multiply_groups(const mp_gemm *g, ptrdiff_t groups, const int kind, const int at_once,
                                    const int prefetching) {
    const int group = group_of(kind);
    const ptrdiff_t b_stride = g->operands.b_stride, vector = vector_bytes(kind), group_bytes = group * size_of_a(kind);
    const ptrdiff_t row_bytes = (g->shape.n + MP_LANES - 1) / MP_LANES * vector;
    float *const partial = g->accumulators.partial;
    groups -= groups % at_once;
    for (ptrdiff_t p = 0; p < groups; p += at_once) {
        const char *a = (const char *)g->operands.a + p * group_bytes, *b = (const char *)g->operands.b + p * b_stride;
        line_cursor next = cursor_at(b + at_once * b_stride, row_bytes, b_stride / group);
        factor factors[4];
        MP_UNROLL_8 for (int r = 0; r < at_once; r++) factors[r] = factor_of_a(g, a + r * group_bytes, kind);
        const int begin = p == 0 && !g->accumulators.resume;
        for (ptrdiff_t j = 0; j < g->shape.n; j += MP_LANES, b += vector) {
            vf32 c = begin ? start_at(g, j, kind) : load_f32(partial + j);
            if (MP_HAS(PREFETCH_ROWS_ONE_ROW) && prefetching)
                prefetch_lines(&next, (int)(at_once * group * vector / 64), 1);
            MP_UNROLL_8 for (int r = 0; r < at_once; r++)
                c = dot(c, factors[r], load_b(b + r * b_stride, b_stride / group, NULL, kind, 0), kind);
            store_f32(partial + j, c);
        }
    }
    return groups;
}

/* The same; the number of rows of B at a time depends on their format, and there are prefetches with every 16 columns:
 *     f32          4 rows, of which 16 columns are 4 cache lines. If B comes from memory and 4 rows fit L1_BYTES,
 *                  4 lines of the next rows are prefetched; if not, the hardware prefetchers follow these 4 streams
 *     f16, bf16    4 rows (2 groups of bf16), of which 16 columns are 2 lines: as many are prefetched
 *     int8         8 rows (2 groups), of which 16 columns are 2 lines: as many are prefetched
 * If these rows of f16, bf16 or int8 are larger than L1_BYTES, half as many are multiplied, and 1 line prefetched. */
MP_INLINE ptrdiff_t multiply_one_row(const mp_gemm *g, ptrdiff_t groups, const int kind) {
    const int bytes = (int)vector_bytes(kind), group = group_of(kind);
    const ptrdiff_t line = g->shape.n * (64 / MP_LANES);
    if (bytes == 64 && g->prefetch.from_memory && 4 * line <= L1_BYTES) return multiply_groups(g, groups, kind, 4, 1);
    if (bytes == 64) return multiply_groups(g, groups, kind, 4, 0);
    if (2 * line <= L1_BYTES) return multiply_groups(g, groups, kind, 128 / bytes / group, 1);
    return multiply_groups(g, groups, kind, 64 / bytes / group, 1);
}

/* Cut m rows into register blocks as equal in height as possible: seven rows are four and three, not six and one. All
 * blocks of one height are one call of a micro-kernel if it has n columns and no epilogue in memory runs after each. */
MP_INLINE void multiply_blocks(const mp_gemm *g, const int kind, micro_kernel_sizes *kernels) {
    _Alignas(64) char local[MP_MR * MP_PANEL * 4];
    const ptrdiff_t vectors = (g->shape.n + MP_LANES - 1) / MP_LANES;
    const ptrdiff_t blocks = (g->shape.m + rows_of(kind) - 1) / rows_of(kind);
    /* The first `taller` blocks have one row more than the others. */
    const ptrdiff_t fewest = MP_HAS(EVEN_HEIGHTS) ? g->shape.m / blocks : rows_of(kind) - 1;
    const ptrdiff_t taller = MP_HAS(EVEN_HEIGHTS) ? g->shape.m % blocks : blocks;
    const ptrdiff_t prefetching = fewest > LOW_ROWS ? blocks : fewest == LOW_ROWS ? taller : 0;
    const ptrdiff_t ld = g->accumulators.ld * 4;
    block_column t = {.place = MP_HAS(EPILOGUE_IN_REGISTERS) ? place_of_epilogue(g, kind) : IN_MEMORY};
    const int own_epilogue = g->accumulators.last && t.place != IN_REGISTERS;
    if (g->prefetch.next && prefetching) {
        const int width = vectors_of(kind, LOW_ROWS + 1); /* of blocks that prefetch: of more than LOW_ROWS rows */
        share_prefetch(&g->prefetch, &t.next, prefetching * ((vectors + width - 1) / width),
                       g->shape.k / group_of(kind) >> has_two_groups(kind));
    }
    line_cursor rows_of_b = {0};
    ptrdiff_t pairs = 0;
    if (kinds[kind].layouts & IN_PLACE) {
        const int width = vectors_of(kind, (int)fewest); /* of all blocks, if they have one height */
        pairs = pairs_of_rows(g, &rows_of_b, vectors * vector_bytes(kind), group_of(kind), width * vector_bytes(kind),
                              vectors > width && blocks == 1 && (vector_bytes(kind) < 64 || fewest > LOW_ROWS));
    }
    for (ptrdiff_t block = 0, count, row = 0; block < blocks; block += count) {
        const ptrdiff_t rows = MP_HAS(EVEN_HEIGHTS) ? fewest + (block < taller) : at_most(g->shape.m - row, fewest + 1);
        const int width = vectors_of(kind, (int)rows);
        const int narrow = vectors > vectors_at_once(vectors, width, kind);
        const int one_by_one = narrow || own_epilogue || !MP_HAS(BLOCKS_IN_ONE_CALL) || !MP_HAS(EVEN_HEIGHTS);
        count = one_by_one ? 1 : block < taller ? taller - block : blocks - block;
        char *const sums = g->accumulators.sums ? (char *)g->accumulators.sums + row * ld : local;
        for (ptrdiff_t v = 0, together; v < vectors; v += together) {
            together = vectors_at_once(vectors - v, width, kind);
            t.count = count, t.row = row, t.column = v * MP_LANES, t.sums = sums + t.column * 4;
            if (kinds[kind].layouts & IN_PLACE)
                for (ptrdiff_t pair = 0; pair < pairs; pair++) prefetch_lines(&rows_of_b, 2, 1);
            kernels[rows - 1][together - 1](g, &t);
        }
        if (own_epilogue) run_epilogue(g, sums, row, rows, kind, t.place);
        row += rows * count;
    }
}

/* B is in place if n > MP_PANEL, since a packed panel is not wider. If M = 1, this range of B is in one K block, and
 * results need no test for flushing (flushing.h), groups of rows of B are multiplied by multiply_one_row. Register
 * blocks multiply the rest: fewer groups than multiply_one_row multiplies at a time, an incomplete last group and, if
 * the K block ends here, at least one group, because only register blocks add K blocks and run the epilogue. */
MP_INLINE void multiply_panel(const mp_gemm *g, const int kind, micro_kernel_sizes *kernels) {
    mp_gemm rest;
    if (MP_HAS(ONE_ROW_IN_PLACE) && (kinds[kind].layouts & IN_PLACE) && !is_watched(kind) && g->shape.m == 1
        && g->shape.n > MP_PANEL && group_of(kind) <= g->shape.k && g->shape.k <= g->shape.k_block) {
        const ptrdiff_t groups = multiply_one_row(g, g->shape.k / group_of(kind) - !g->accumulators.suspend, kind);
        rest = *g;
        rest.operands.a = (const char *)g->operands.a + groups * group_of(kind) * size_of_a(kind);
        rest.operands.b = (const char *)g->operands.b + groups * g->operands.b_stride;
        rest.shape.k -= groups * group_of(kind), rest.accumulators.resume |= groups > 0;
        if (rest.shape.k == 0) return;
        g = &rest;
    }
    multiply_blocks(g, kind, kernels);
}

/* The address of the 16 columns from column j on, in row number `row`, in the micro-panels of 32-bit words that decode
 * and recode write. They have `rows` rows of n columns in all. (An oct is in two of these rows.) */
MP_INLINE char *in_micro_panels(char *to, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t j, ptrdiff_t n) {
    if ((int)MICRO_PANEL == MP_PANEL) return to + (row * n + j) * 4;
    const ptrdiff_t first = j / MICRO_PANEL * MICRO_PANEL;
    return to + (first * rows + row * at_most(n - first, MICRO_PANEL) + j - first) * 4;
}

/* Decode a packed range of K into micro-panels of the format that the arithmetic multiplies. Each part of a group
 * becomes 32 bits: one f32 or two bf16. */
MP_INLINE void decode(ptrdiff_t k, ptrdiff_t n, const char *b, char *to, const int kind) {
    const int group = group_of(kind), part_size = part_of(kind);
    const ptrdiff_t rows = (k + part_size - 1) / part_size;
    for (ptrdiff_t row = 0; row < rows; b += n * (vector_bytes(kind) / MP_LANES))
        MP_UNROLL_8 for (int part = 0; part < group / part_size; part++)
            if (row < rows) {
                for (ptrdiff_t j = 0; j < n; j += MP_LANES)
                    store_f32((float *)in_micro_panels(to, row, rows, j, n),
                              load_b(b + j * (vector_bytes(kind) / MP_LANES), 0, NULL, kind, part));
                row++;
            }
}

#ifdef MP_WIDENS
/* Write a part of 16 groups as elements twice as wide: two rows of a micro-panel of `columns` columns. */
MP_INLINE void put_wider(vu32 x, char *to, ptrdiff_t columns, const int integers) {
    store_u32(to, integers ? i16_from_i8(x, 0) : and_u32(x, set_u32(0xFFFF0000u)));
    store_u32(to + columns * 4, integers ? i16_from_i8(x, 1) : shl_u32(x, 16));
}
#endif

/* copy_shifted of mp_copies: into the type of the arithmetic or (wider) into elements twice as wide. */
MP_INLINE void decode_shifted(ptrdiff_t k, ptrdiff_t n, const char *b, const mp_zeros *zeros, char *to,
                              const mp_arithmetic arithmetic, const mp_format format, const int wider) {
    enum { GROUP = 8 };
    const int size = arithmetic == MP_WIDE ? 1 : arithmetic == MP_PAIRS ? 2 : 4, parts = GROUP / size;
    const ptrdiff_t all = (k + size - 1) / size;
    const uint32_t *words = zeros->words;
    ptrdiff_t left = zeros->group;
    for (ptrdiff_t row = 0; row < all; row += parts, b += n * 4, left -= GROUP) {
        if (left <= 0) words += MP_PANEL, left = zeros->group;
        for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
            const vu32 word = load_u32(b + j * 4), zero = load_u32(words + j);
            MP_UNROLL_8 for (int part = 0; part < parts; part++)
                if (row + part < all) {
                    const vu32 x = less_zero(word, zero, arithmetic, format, part);
                    char *const at = in_micro_panels(to, (row + part) << wider, all << wider, j, n);
#ifdef MP_WIDENS
                    if (wider) put_wider(x, at, at_most(n - j, MICRO_PANEL), arithmetic == MP_QUADS);
                    else
#endif
                        if (n - j >= MP_LANES) store_u32(at, x);
                        else storen_u32(at, x, n - j); /* the next row has been written */
                }
        }
    }
}

#ifdef MP_WIDENS
/* Write the part of 16 groups at b as elements twice as wide: two rows of a micro-panel of `columns` columns. */
MP_INLINE void recode_part(const char *b, char *to, ptrdiff_t columns, const int kind, const int part) {
    if (decodes_floats(kind)) {
        store_f32((float *)to, load_half(b, NULL, kind, 2 * part + 1));
        store_f32((float *)to + columns, load_half(b, NULL, kind, 2 * part));
        return;
    }
    put_wider(as_u32(load_b(b, 0, NULL, kind, part)), to, columns, is_integer(kind));
}

/* Decode a range of K to elements twice as wide (mp_products): f32, of each pair the odd element first, or int16. The
 * micro-panels of a whole panel are `stride` bytes apart, so that addresses are cheap. */
MP_INLINE void recode(ptrdiff_t k, ptrdiff_t n, const char *b, char *to, const int kind) {
    const int group = group_of(kind), part_size = part_of(kind), group_bytes = (int)(vector_bytes(kind) / MP_LANES);
    const ptrdiff_t rows = 2 * ((k + part_size - 1) / part_size), stride = rows * (MP_LANES * 4);
    for (ptrdiff_t row = 0; row < rows; b += n * group_bytes)
        MP_UNROLL_8 for (int part = 0; part < group / part_size; part++)
            if (row < rows) {
                if (n == MP_PANEL)
                    MP_UNROLL_8 for (int v = 0; v < MP_PANEL / MP_LANES; v++)
                        recode_part(b + v * vector_bytes(kind), to + row * (MP_LANES * 4) + v * stride, MP_LANES, kind,
                                    part);
                else
                    for (ptrdiff_t j = 0; j < n; j += MP_LANES)
                        recode_part(b + j * group_bytes, in_micro_panels(to, row, rows, j, n), at_most(n - j, MP_LANES),
                                    kind, part);
                row += 2;
            }
}

/* widen_row of mp_products. GCC and clang vectorize these loops. */
static void widen_pairs(ptrdiff_t k, const void *from, int is_signed, void *to) {
    uint64_t *const wide = to;
    uint32_t pair = 0;
    (void)is_signed;
    for (ptrdiff_t i = 0; i < k / 2; i++) {
        memcpy(&pair, (const char *)from + i * 4, 4);
        wide[i] = (pair & 0xFFFF0000u) | (uint64_t)(pair << 16) << 32;
    }
    if (k % 2) memcpy(&pair, (const char *)from + (k - 1) * 2, 2), wide[k / 2] = (uint64_t)pair << 48;
}
static void widen_bytes(ptrdiff_t k, const void *from, int is_signed, void *to) {
    int16_t *const wide = to;
    if (is_signed)
        for (ptrdiff_t i = 0; i < k; i++) wide[i] = ((const int8_t *)from)[i];
    else
        for (ptrdiff_t i = 0; i < k; i++) wide[i] = ((const uint8_t *)from)[i];
}
#elif defined(MP_NATIVE_OCTS)
/* Copy a packed range of K of int8, in groups of four, to octs: micro-panels of [ceil(k / 8)][16] groups of eight
 * bytes. A group of four beyond k is 0; the last group of the packed panel has zeros too. */
MP_INLINE void recode(ptrdiff_t k, ptrdiff_t n, const char *b, char *to, const int kind) {
    const ptrdiff_t fours = (k + 3) / 4, rows = fours + fours % 2;
    (void)kind;
    for (ptrdiff_t row = 0; row < rows; row += 2, b += 2 * n * 4)
        for (ptrdiff_t j = 0; j < n; j += MP_LANES) {
            const vu32 first = load_u32(b + j * 4), second = row + 1 < fours ? load_u32(b + (n + j) * 4) : set_u32(0);
            char *const octs = in_micro_panels(to, row, rows, j, n);
            store_u32(octs, zip_words(first, second, 0));
            store_u32(octs + 64, zip_words(first, second, 1));
        }
}
#endif

/* The table of the micro-kernels of a kind, in the object file of an instruction set. */
#define MP_MICRO_KERNELS(NAME, ISA) MP_CONCAT(mp_micro_kernels_##NAME##_, ISA)
#define MP_PANEL_BY(NAME, ISA)                                               \
    extern micro_kernel_sizes MP_MICRO_KERNELS(NAME, ISA)[MP_MR];            \
    static __attribute__((noinline)) void panel_##NAME(const mp_gemm *g) {   \
        multiply_panel(g, KIND_##NAME, MP_MICRO_KERNELS(NAME, ISA));         \
    }
#define MP_KIND(NAME, ...)                                                               \
    MP_SIZES(MP_INSTANCE, NAME)                                                          \
    MP_PANEL_BY(NAME, MP_ISA)                                                            \
    micro_kernel_sizes MP_MICRO_KERNELS(NAME, MP_ISA)[MP_MR] = {MP_SIZES(MP_ENTRY, NAME)};
#ifdef MP_SAME_ISA /* the set whose object file has those micro-kernels */
#define MP_SAME(NAME, ...) MP_PANEL_BY(NAME, MP_SAME_ISA)
#endif
#include "products/kinds.def"
#undef MP_INSTANCE
#undef MP_ENTRY
#undef MP_SIZES
#undef MP_1_WIDE
#undef MP_2_WIDE
#undef MP_4_WIDE
