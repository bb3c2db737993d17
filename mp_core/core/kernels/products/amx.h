/* Products by AMX tiles, registers of 16 rows of 64 bytes. One instruction multiplies 16 rows of a (64 bytes along K)
 * by 16 columns of a panel (16 groups along K, in the layout of the panel), and adds the products to the 16 x 16 sums
 * in a third AMX tile. With more than 16 rows there are 2 x 2 AMX tiles of sums: 4 loads for 4 instructions. With at
 * most 16 rows there are 1 x 4: 5 loads for 4 instructions.
 *
 *     AMX tile             0 1 2 3       4                  5             6 7
 *     2 x 2, 32 rows       sums          a, rows 0-15       a, rows 16-31 b
 *     1 x 4, 16 rows       sums          a                  b             b
 *
 * Integers: signed a is multiplied as it is, so that no sums of the columns of b are needed. Pairs of bf16 (`pairs`):
 * of 32 elements along K, the instruction adds the products of the 16 even ones by fused multiply-adds from 0, and
 * those of the 16 odd ones too; it adds the two sums, and the total to the AMX tile. This is the tile order of
 * docs/numerics.md, not the order of dot_bf16.
 */
enum {
    TILE = 16,            /* rows of an AMX tile; columns of an AMX tile of sums */
    DEPTH = 64,           /* bytes of a row of an AMX tile: 64 integers or 32 bf16 along K */
    TILE_ROWS = 2 * TILE, /* rows of A that are multiplied at a time */
};

/* The operand of ldtilecfg: for each AMX tile, the bytes of a row and the number of rows. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;
_Static_assert(sizeof(tile_shapes) == 64, "as the processor reads it");

/* Set the shapes of the AMX tiles for `rows` <= TILE_ROWS rows of a. This sets all tiles to 0. */
MP_INLINE void shape_tiles(ptrdiff_t rows) {
    tile_shapes shapes = {.palette = 1};
    const uint8_t upper = (uint8_t)at_most(rows, TILE), lower = (uint8_t)(rows > TILE ? rows - TILE : upper);
    for (int t = 0; t < 8; t++) shapes.row_bytes[t] = DEPTH, shapes.rows[t] = t == 2 || t == 3 ? lower : TILE;
    shapes.rows[0] = shapes.rows[1] = shapes.rows[4] = upper;
    if (rows > TILE) shapes.rows[5] = lower;
    MP_COMPILER_BARRIER;
    _tile_loadconfig(&shapes);
}

/* The epilogue of a part (see tile_part) that has only scales and bias. It runs after the products of the next part
 * have been issued: then the vector units are free, and the sums of this part are in memory. A scale that is missing is
 * 1, a bias -0: these do not change the result. */
typedef struct {
    const int32_t *sums; /* or floats, in rows of MP_PANEL */
    char *out;
    const float *row_scale, *col_scale, *bias;
    ptrdiff_t rows, row_stride, ldo; /* rows of the part; stride of row_scale, in elements; of out, in bytes */
    int vectors, narrow;             /* vectors of columns in the part; whether the result is bf16 */
} part_epilogue;

/* Run that epilogue. */
MP_INLINE void put_rows(const part_epilogue *e, const int pairs) {
    const part_epilogue here = *e;
    for (ptrdiff_t i = 0; i < here.rows; i++) {
        const int32_t *const sums = here.sums + i * MP_PANEL;
        char *const out = here.out + i * here.ldo;
        const vf32 scale = set_f32(here.row_scale[i * here.row_stride]);
        MP_UNROLL_8 for (int v = 0; v < 4; v++) {
            if (v >= here.vectors) break;
            const vu32 sum = load_u32(sums + v * MP_LANES);
            const vf32 x = mul_f32(pairs ? as_f32(sum) : f32_from_i32(sum), scale);
            const vf32 y
                = add_f32(mul_f32(x, load_f32(here.col_scale + v * MP_LANES)), load_f32(here.bias + v * MP_LANES));
            if (pairs && here.narrow) store_u16((uint16_t *)out + v * MP_LANES, bf16_of_flushed(y));
            else store_f32((float *)out + v * MP_LANES, y);
        }
    }
}

/* A part of g: at most TILE_ROWS rows by 1 to 4 vectors of columns, whose sums are in AMX tiles 0 to 3. */
typedef struct {
    const char *a, *last_a;     /* last_a, last_b: the end of K that is no whole AMX tile, zero padded; or NULL */
    const char *b, *last_b;
    ptrdiff_t whole;            /* whole AMX tiles along K */
    const int32_t *from;        /* the initial sums, in rows of MP_PANEL; NULL: zeros */
    int32_t *sums;              /* the final sums, in rows of ld */
    ptrdiff_t ld;
    int own;                    /* prefetch later elements of the panel */
    part_epilogue epilogue;     /* of the part before, whose sums this part may overwrite */
    line_cursor next;           /* the next cache line of g->prefetch.next */
    ptrdiff_t pairs, share;     /* pairs of its lines that are left; pairs that each tile_step prefetches */
} tile_part;

/* Multiply DEPTH bytes along K. lda and b_stride are in bytes. */
MP_INLINE void tile_step(const char *a, ptrdiff_t lda, const char *b, ptrdiff_t b_stride, const int is_signed,
                         const int pairs, const int high, const int vectors) {
#define MP_DOT(SUMS, A, B)                            \
    do {                                              \
        if (pairs) _tile_dpbf16ps(SUMS, A, B);        \
        else if (is_signed) _tile_dpbssd(SUMS, A, B); \
        else _tile_dpbusd(SUMS, A, B);                \
    } while (0)
    _tile_loadd(4, a, lda);
    _tile_loadd(6, b, b_stride);
    MP_DOT(0, 4, 6);
    if (vectors > 1) {
        _tile_loadd(7, b + DEPTH, b_stride);
        MP_DOT(1, 4, 7);
    }
    if (high) {
        _tile_loadd(5, a + TILE * lda, lda);
        MP_DOT(2, 5, 6);
        if (vectors > 1) MP_DOT(3, 5, 7);
    }
    if (vectors > 2) {
        _tile_loadd(5, b + 2 * DEPTH, b_stride);
        MP_DOT(2, 4, 5);
    }
    if (vectors > 3) {
        _tile_loadd(6, b + 3 * DEPTH, b_stride);
        MP_DOT(3, 4, 6);
    }
#undef MP_DOT
}

/* Multiply a part over the range of K, run the epilogue of the part before, and store the sums. */
MP_INLINE void multiply_part(const mp_gemm *g, tile_part *t, const int pairs, const int high, const int vectors) {
    const ptrdiff_t size = pairs ? 2 : 1, lda = g->operands.lda * size, b_stride = g->operands.b_stride;
    const int is_signed = g->operands.a_flip != 0;
    const char *a = t->a;
    const char *b = t->b;
#define MP_EACH_TILE(DO, AT, LD)                                             \
    {                                                                        \
        DO(0, AT, LD);                                                       \
        if (vectors > 1) DO(1, AT + TILE, LD);                               \
        if (high) DO(2, AT + TILE * LD, LD);                                 \
        if (high && vectors > 1) DO(3, AT + TILE * LD + TILE, LD);           \
        if (vectors > 2) DO(2, AT + 2 * TILE, LD);                           \
        if (vectors > 3) DO(3, AT + 3 * TILE, LD);                           \
    }
#define MP_CLEAR(N, AT, LD) _tile_zero(N)
#define MP_LOAD(N, AT, LD) _tile_loadd(N, AT, LD * 4)
#define MP_STORE(N, AT, LD) _tile_stored(N, AT, LD * 4)
    if (t->from) MP_EACH_TILE(MP_LOAD, t->from, MP_PANEL)
    else MP_EACH_TILE(MP_CLEAR, , )
    for (ptrdiff_t left = t->whole; left > 0; left--, a += DEPTH, b += DEPTH / 4 * b_stride) {
        for (ptrdiff_t pair = at_most(t->share, t->pairs); pair > 0; pair--, t->pairs--) prefetch_lines(&t->next, 2, 2);
        if (t->own)
            for (ptrdiff_t at = 0; at < DEPTH / 4 * b_stride; at += 64) __builtin_prefetch(b + OWN_DISTANCE + at, 0, 3);
        tile_step(a, lda, b, b_stride, is_signed, pairs, high, vectors);
    }
    if (t->last_a) tile_step(t->last_a, DEPTH, t->last_b, MP_PANEL * 4, is_signed, pairs, high, vectors);
    put_rows(&t->epilogue, pairs);
    MP_EACH_TILE(MP_STORE, t->sums, t->ld)
#undef MP_EACH_TILE
#undef MP_CLEAR
#undef MP_LOAD
#undef MP_STORE
}

#define MP_PART(PAIRS, HIGH, N)                                                                       \
    static __attribute__((noinline)) void multiply_##PAIRS##HIGH##N(const mp_gemm *g, tile_part *t) { \
        multiply_part(g, t, PAIRS, HIGH, N);                                                          \
    }
#define MP_PARTS(P) \
    MP_PART(P, 0, 1) MP_PART(P, 0, 2) MP_PART(P, 0, 3) MP_PART(P, 0, 4) MP_PART(P, 1, 1) MP_PART(P, 1, 2)
MP_PARTS(0)
MP_PARTS(1)
#undef MP_PART
#undef MP_PARTS
typedef void (*part_kernel)(const mp_gemm *, tile_part *);
static const part_kernel multiply_parts[2][2][4] = {
    {{multiply_001, multiply_002, multiply_003, multiply_004}, {multiply_011, multiply_012}},
    {{multiply_101, multiply_102, multiply_103, multiply_104}, {multiply_111, multiply_112}}};

/* Rows and vectors of columns of a part. */
typedef struct { ptrdiff_t rows, vectors; } tile_shape;

MP_INLINE int has_zeros(const mp_gemm *g) { return g->epilogue.col_sum || g->epilogue.row_sum; }

/* Copy the scales and bias of the columns, or 1 and -0 if there are none. */
MP_INLINE void copy_columns(const mp_gemm *g, float *col_scale, float *bias) {
    for (ptrdiff_t j = 0; j < g->shape.n; j += MP_LANES) {
        store_f32(col_scale + j, g->epilogue.col_scale ? load_f32(g->epilogue.col_scale + j) : set_f32(1.0f));
        store_f32(bias + j, g->epilogue.bias ? load_f32(g->epilogue.bias + j) : set_f32(-0.0f));
    }
}

/* Copy the end of K that is no whole AMX tile: the last `left` bytes of each row of a to rows of zeros; then those of a
 * panel. */
MP_INLINE void copy_last_a(const char *from, ptrdiff_t stride, ptrdiff_t rows, ptrdiff_t left, char *last_a) {
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t at = 0; at < left; at += MP_LANES)
            store_u8((uint8_t *)last_a + i * DEPTH + at,
                     loadn_u8((const uint8_t *)from + i * stride + at, at_most(left - at, MP_LANES)));
}

MP_INLINE void copy_last_b(const mp_gemm *g, ptrdiff_t whole, ptrdiff_t left, char *last_b) {
    memset(last_b, 0, TILE * MP_PANEL * 4);
    for (ptrdiff_t p = 0; 4 * p < left; p++)
        memcpy(last_b + p * MP_PANEL * 4, (const char *)g->operands.b + (whole / 4 + p) * g->operands.b_stride,
               (size_t)g->shape.n * 4);
}

/* sums = block * scale if it is the first K block, else sums + block * scale by fused multiply-adds. */
MP_INLINE void add_scaled(const float *block, const float *scale, float *sums, const tile_shape *shape,
                          const int first) {
    for (ptrdiff_t i = 0; i < shape->rows; i++)
        for (ptrdiff_t j = 0; j < shape->vectors * MP_LANES; j += MP_LANES) {
            const vf32 x = load_f32(block + i * MP_PANEL + j), s = load_f32(scale + j);
            float *const to = sums + i * MP_PANEL + j;
            store_f32(to, first ? mul_f32(x, s) : fma_f32(x, s, load_f32(to)));
        }
}

/* Multiply a part of pairs whose K blocks have scales. The sums of each K block are stored, scaled, and added to those
 * of the blocks before. The range is whole K blocks (the last block of K may be incomplete), or a part of one, whose
 * partial sums are kept between calls. */
static __attribute__((noinline)) void multiply_scaled_blocks(const mp_gemm *g, tile_part *t, const tile_shape *shape) {
    _Alignas(64) float block[TILE_ROWS * MP_PANEL];
    const mp_accumulators *const sums = &g->accumulators;
    const part_kernel multiply = multiply_parts[1][shape->rows > TILE][shape->vectors - 1];
    const float *scale = sums->block_scale + (t->b - (const char *)g->operands.b) / 4;
    const char *const last_a = t->last_a;
    float *const total = (float *)t->sums;
    int first = sums->first;
    if (!sums->suspend) t->sums = (int32_t *)block;
    for (ptrdiff_t k = g->shape.k, length; k > 0; k -= length) {
        length = at_most(k, g->shape.k_block);
        t->whole = length * 2 / DEPTH, t->last_a = length == k ? last_a : NULL;
        multiply(g, t);
        if (sums->suspend) break;
        add_scaled(block, scale, total, shape, first);
        t->a += length * 2, t->b += length / 2 * g->operands.b_stride, t->from = NULL;
        first = 0, scale += sums->block_scale_ld;
    }
    t->last_a = last_a;
}

/* Multiply all rows of the call, TILE_ROWS at a time, part by part. If the results are the sums (as_they_are), AMX
 * tiles are stored in the result array; if there are only scales and bias (scaled), part_epilogue is used; else
 * epilogue.h. */
MP_INLINE void multiply_tiles(const mp_gemm *g, const int pairs) {
    static const float one = 1;
    _Alignas(64) int32_t local[TILE_ROWS * MP_PANEL];
    _Alignas(64) char last_a[TILE_ROWS * DEPTH], last_b[TILE * MP_PANEL * 4];
    _Alignas(64) float col_scale[MP_PANEL], bias[MP_PANEL];
    const int blocks_have_scales = pairs && g->accumulators.block_scale;
    const ptrdiff_t size = pairs ? 2 : 1, lda = g->operands.lda * size,
                    vectors = (g->shape.n + MP_LANES - 1) / MP_LANES;
    const ptrdiff_t whole = g->shape.k * size / DEPTH * DEPTH, left = g->shape.k * size - whole; /* bytes */
    const int linear = g->accumulators.last && g->shape.n % MP_LANES == 0 && is_linear(g) && !has_zeros(g)
                       && !blocks_have_scales;
    const int plain = !pairs || (!g->epilogue.row_scale && !g->epilogue.col_scale && !g->epilogue.bias);
    const int as_they_are = linear && plain && g->epilogue.out_format == (pairs ? MP_F32 : MP_I32);
    const int narrow = pairs && g->epilogue.out_format == MP_BF16;
    const int scaled = linear && !as_they_are && (narrow || g->epilogue.out_format == MP_F32);
    tile_part t = {.ld = as_they_are ? g->epilogue.ldo : MP_PANEL, .whole = whole / DEPTH};
    if (scaled) {
        t.epilogue.narrow = narrow, t.epilogue.ldo = g->epilogue.ldo * (narrow ? 2 : 4);
        t.epilogue.row_stride = g->epilogue.row_scale ? g->epilogue.row_stride : 0;
        copy_columns(g, col_scale, bias);
    }
    if (left) memset(last_a, 0, sizeof last_a), copy_last_b(g, whole, left, last_b), t.last_a = last_a;
    if (g->prefetch.next && whole) {
        const ptrdiff_t steps = (g->shape.m / TILE_ROWS * ((vectors + 1) / 2) + 1) * (whole / DEPTH);
        t.pairs = pairs_to_prefetch(&g->prefetch, &t.next), t.share = (t.pairs + steps - 1) / steps;
    }
    for (ptrdiff_t row = 0, rows; row < g->shape.m; row += rows) {
        rows = at_most(g->shape.m - row, TILE_ROWS);
        const int high = rows > TILE;
        int32_t *const partial = g->accumulators.partial ? (int32_t *)g->accumulators.partial + row * MP_PANEL : NULL;
        int32_t *const sums = g->accumulators.suspend ? partial
                              : as_they_are ? (int32_t *)g->epilogue.out + row * g->epilogue.ldo
                              : blocks_have_scales && g->accumulators.sums
                                  ? (int32_t *)g->accumulators.sums + row * MP_PANEL : local;
        const char *const a = (const char *)g->operands.a + row * lda;
        if (row == 0 || rows < TILE_ROWS) shape_tiles(rows);
        if (left) copy_last_a(a + whole, lda, rows, left, last_a);
        MP_COMPILER_BARRIER;
        for (ptrdiff_t v = 0, n; v < vectors; v += n) {
            n = high ? at_most(vectors - v, 2) : vectors;
            t.a = a, t.b = (const char *)g->operands.b + v * DEPTH, t.last_b = last_b + v * DEPTH;
            t.from = g->accumulators.resume ? partial + v * MP_LANES : NULL, t.sums = sums + v * MP_LANES;
            t.own = g->prefetch.this_panel && row == 0 && v == 0;
            if (blocks_have_scales) multiply_scaled_blocks(g, &t, &(tile_shape){rows, n});
            else multiply_parts[pairs][high][n - 1](g, &t);
            if (!scaled) continue;
            t.epilogue.rows = rows, t.epilogue.vectors = (int)n, t.epilogue.sums = t.sums;
            t.epilogue.out = (char *)g->epilogue.out + row * t.epilogue.ldo + v * MP_LANES * (narrow ? 2 : 4);
            t.epilogue.row_scale = g->epilogue.row_scale ? g->epilogue.row_scale + row * g->epilogue.row_stride : &one;
            t.epilogue.col_scale = col_scale + v * MP_LANES, t.epilogue.bias = bias + v * MP_LANES;
        }
        MP_COMPILER_BARRIER;
        if (g->accumulators.last && !as_they_are && !scaled)
            (pairs ? epilogue_of_floats : epilogue_of_integers)(g, sums, row, rows);
    }
    put_rows(&t.epilogue, pairs);
    _tile_release();
}
static void panel_tiles_i8(const mp_gemm *g) { multiply_tiles(g, 0); }
static void panel_tiles_bf16(const mp_gemm *g) { multiply_tiles(g, 1); }
