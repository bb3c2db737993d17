/* The differences between the kinds of product (kinds.def). In every function the kind is a constant parameter, and the
 * function is inlined, so that compiled code has no test of the kind. */
enum {
#define MP_KIND(NAME, ...) KIND_##NAME,
#include "products/kinds.def"
};

enum { PACKED = 1, IN_PLACE = 2, BOTH = PACKED | IN_PLACE };
/* Columns of the register block with the most rows: micro_panel of mp_products. */
enum { MICRO_PANEL = MP_HAS(MICRO_PANELS) ? MP_NR_VECTORS * MP_LANES : MP_PANEL };

typedef struct {
    mp_arithmetic arithmetic;
    mp_format format;
    int layouts, rows, at_once;
} product_kind;

static const product_kind kinds[] = {
#define MP_KIND(NAME, ARITHMETIC, FORMAT, LAYOUTS, ROWS, AT_ONCE, LOAD) \
    {ARITHMETIC, FORMAT, LAYOUTS, ROWS, AT_ONCE},
#include "products/kinds.def"
};

MP_INLINE int is_integer(const int kind) { return kinds[kind].arithmetic == MP_QUADS; }

/* Bytes of an element of A in the type that the kernel reads; of an element of an array B. */
MP_INLINE ptrdiff_t size_of_a(const int kind) {
    return kinds[kind].arithmetic == MP_WIDE ? 4 : is_integer(kind) ? 1 : 2;
}
MP_INLINE int size_of_b(const int kind) { return (int)mp_element_bytes[kinds[kind].format]; }

/* Whether b is octs: groups of eight bytes; a multiplication has two columns of them and two rows of a. */
MP_INLINE int is_octs(const int kind) {
#ifdef MP_NATIVE_OCTS
    return kind == KIND_octs_s8 || kind == KIND_octs_u8;
#else
    (void)kind;
    return 0;
#endif
}

/* Elements along K in a group of b; in a part of a group, that is in one multiplication: 1 (wide), 2 or 4. (Octs are
 * multiplied whole: multiply_octs.) */
MP_INLINE int group_of(const int kind) { return is_octs(kind) ? MP_OCT : (int)mp_group[kinds[kind].format]; }
MP_INLINE int part_of(const int kind) { return 4 / (int)size_of_a(kind); }

/* Bytes of 16 columns: of 16 groups in a panel or, if the kind is only IN_PLACE, of 16 elements in a row of B. */
MP_INLINE ptrdiff_t vector_bytes(const int kind) {
    const mp_format format = kinds[kind].format;
    if (is_octs(kind)) return MP_LANES * MP_OCT;
    return MP_LANES * (kinds[kind].layouts == IN_PLACE ? mp_element_bytes[format] : mp_group_bytes[format]);
}

/* Whether b is four-bit codes that integers multiply. */
MP_INLINE int is_nibbles(const int kind) { return kind == KIND_quads_shifted || kind == KIND_quads_f4; }

/* Whether b is four-bit codes with zero points; is_nibbles always are. */
MP_INLINE int is_shifted(const int kind) {
#ifndef MP_QUADS_ONLY
    if (kind == KIND_wide_shifted || kind == KIND_pairs_shifted) return 1;
#endif
    return is_nibbles(kind);
}

/* Whether a register block has the scaled sums of K blocks in registers, besides the integer sums of the current K
 * block, and so has half as many columns. Otherwise scaled sums would be loaded and stored after every K block: on Zen
 * 4 a store of 64 bytes takes 1.5 times as long as vpdpbusd, which has to wait for it (measured in a loop of both,
 * November 2026). Blocks of at most three rows have the usual width, since they decode b for few rows. */
MP_INLINE int keeps_scaled(const int kind, const int rows) {
#ifdef MP_SCALED_IN_REGISTERS
    return is_nibbles(kind) && rows > 3;
#else
    (void)kind, (void)rows;
    return 0;
#endif
}

/* The most rows of a register block. */
MP_INLINE int rows_of(const int kind) { return kinds[kind].rows < MP_MR ? kinds[kind].rows : MP_MR; }

/* Whether a and b are int16. */
MP_INLINE int is_int16(const int kind) {
#ifdef MP_WIDENS
    return kind == KIND_words_i16;
#else
    (void)kind;
    return 0;
#endif
}

/* 1 if an iteration of the micro-kernel's loop along K multiplies two groups, else 0. Only wide_f32 does (also for
 * pairs that were widened); words_i16 would need more registers. */
MP_INLINE int has_two_groups(const int kind) {
#ifdef MP_TWO_GROUPS
    return MP_HAS(TWO_GROUPS_IN_AN_ITERATION) && kinds[kind].format == MP_F32;
#else
    (void)kind;
    return 0;
#endif
}

/* Whether b is decoded from groups of four or eight codes to floats. */
MP_INLINE int decodes_floats(const int kind) { return group_of(kind) > 2 && !is_integer(kind); }

/* Whether a register block of pairs decodes b to f32, not to bf16: if each pair is two multiply-adds, it would have to
 * be split. With several rows, pairs of F4 are better: two vectors of bf16 share most of their decoding. */
#ifdef MP_DECODES_TO_F32
MP_INLINE int has_halves(const int kind, const int rows) {
    return kinds[kind].arithmetic == MP_PAIRS && decodes_floats(kind)
           && rows <= (kinds[kind].format == MP_F4 ? 1 : LOW_ROWS);
}
#endif

/* The most vectors of columns in a register block of `rows` rows. Blocks of few rows are wider if there are registers:
 * otherwise they have too few sums to hide the latency of a multiplication, and read B one cache line at a time, each
 * too far from the one before for the hardware prefetchers. Three kinds are not wider: those that decode floats,
 * if there are several rows, since they gain little; those in place, since multiply_one_row multiplies one row;
 * words_i16 and octs, since they are for many rows. */
MP_INLINE int vectors_of(const int kind, const int rows) {
    const int sums = MP_MR * MP_NR_VECTORS;
    if (keeps_scaled(kind, rows)) return MP_NR_VECTORS / 2;
    const int decodes_for_rows = decodes_floats(kind) && rows > 1;
    if (MP_NR_VECTORS == 4 || decodes_for_rows || kinds[kind].layouts == IN_PLACE || is_int16(kind) || is_octs(kind))
        return MP_NR_VECTORS;
    if (!MP_HAS(WIDE_BLOCKS_OF_FEW_ROWS)) return MP_NR_VECTORS;
    return 4 * rows <= sums ? 4 : 2 * rows <= sums ? 2 : 1;
}

/* How many of `left` vectors a register block has, of at most `width`. Kinds that decode B from codes have no blocks of
 * three vectors, and those that decode floats one vector at a time (MP_NR_VECTORS) none of two: their B is the weights
 * of a layer, of which only the last panel may have so few, and these blocks would be half of the code. */
MP_INLINE int vectors_at_once(ptrdiff_t left, const int width, const int kind) {
    const int vectors = (int)at_most(left, width), format = kinds[kind].format;
    const int decodes = format >= MP_F8_E4M3FN && !(is_integer(kind) && format == MP_I8);
    if (MP_NR_VECTORS == 1 && decodes_floats(kind) && vectors < 4) return at_most(vectors, 1);
    return vectors == 3 && decodes ? 2 : vectors;
}

/* ---- Load part number `part` of 16 groups at p, converted for the multiplication. stride: in place, bytes from one
 * row of B to the next. zero: the words of mp_zeros of these columns, if the kind is_shifted */

#define MP_LOAD(NAME, FROM_WORD)                                                                  \
    MP_INLINE vf32 NAME(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {  \
        (void)stride, (void)zero, (void)part;                                                     \
        const vu32 word = load_u32(p);                                                            \
        return FROM_WORD;                                                                         \
    }
MP_LOAD(load_words, as_f32(word))
MP_LOAD(load_wide_bf16, wide_part_bf16(word, part))
MP_LOAD(load_wide_e4m3fn, wide_part_e4m3fn(word, part))
MP_LOAD(load_wide_e5m2, wide_part_e5m2(word, part))
MP_LOAD(load_wide_i8, wide_part_i8(word, part))
MP_LOAD(load_wide_i4, wide_part_i4(word, part))
MP_LOAD(load_wide_f4, wide_part_f4(word, part))
MP_LOAD(load_pair_f4, as_f32(pair_part_f4(word, part)))
MP_LOAD(load_pair_e4m3fn, as_f32(pair_part_e4m3fn(word, part)))
MP_LOAD(load_pair_e5m2, as_f32(pair_part_e5m2(word, part)))
MP_LOAD(load_pair_i8, as_f32(pair_part_i8(word, part)))
MP_LOAD(load_pair_i4, as_f32(pair_part_i4(word, part)))
MP_LOAD(load_wide_shifted, wide_less_zero(word, load_u32(zero), part))
MP_LOAD(load_pair_shifted, as_f32(pair_less_zero(word, load_u32(zero), part)))
#undef MP_LOAD

/* Quads: half of the codes q + 8 of eight elements; the zero points are in the initial sums (start_of_shifted). */
MP_INLINE vf32 load_quad_shifted(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {
    (void)stride, (void)zero;
    return as_f32(half_of_u4(load_u32(p), part));
}

MP_INLINE vf32 load_quad_f4(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {
    (void)stride, (void)zero;
    return as_f32(half_of_f4(load_u32(p), part));
}

MP_INLINE vf32 load_halves(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {
    (void)stride, (void)zero, (void)part;
    return load_f16_as_f32(p);
}

MP_INLINE vf32 load_two_rows(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {
    (void)zero, (void)part;
    return as_f32(or_u32(load_u16_as_u32(p), shl_u32(load_u16_as_u32(p + stride), 16)));
}

/* Signed bytes for products in place: unsigned b ^ 0x80 = b + 128, or as they are. */
MP_INLINE vu32 bytes_in_place(vu32 b) { return MP_FLIPS ? xor_u32(b, set_u32(0x80808080u)) : b; }

/* Four rows of int8, interleaved into groups. */
MP_INLINE vf32 load_four_rows(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part) {
    (void)zero, (void)part;
    const vu32 word = interleave_u8(load_u8(p), load_u8(p + stride), load_u8(p + 2 * stride), load_u8(p + 3 * stride));
    return as_f32(bytes_in_place(word));
}

/* A table, not a switch: a call of load_b that is inlined copies one of these functions, not all of them. With a switch
 * GCC needs three times the memory and, for AVX2, 139 s instead of 59 s; the code is the same. */
typedef vf32 load_of_kind(const char *p, ptrdiff_t stride, const uint32_t *zero, const int part);
static load_of_kind *const loads[] = {
#define MP_KIND(NAME, ARITHMETIC, FORMAT, LAYOUTS, ROWS, AT_ONCE, LOAD) LOAD,
#include "products/kinds.def"
};

MP_INLINE vf32 load_b(const char *p, ptrdiff_t stride, const uint32_t *zero, const int kind, const int part) {
    return loads[kind](p, stride, zero, part);
}

/* ---- Accumulators. Those of integers have the type vf32 too (with the bits of integers), since GCC 12 keeps an array
 * of __m512i in memory, not in registers. */

/* Whether a and b are multiplied as signed bytes, without ^ 0x80. */
MP_INLINE int is_signed(const int kind) {
#ifdef MP_NATIVE_S8
    return kind == KIND_quads_s8 || kind == KIND_quads_in_place || is_nibbles(kind);
#else
    (void)kind;
    return 0;
#endif
}

/* The elements of a in one multiplication: a part of a group. */
MP_INLINE factor factor_of_a(const mp_gemm *g, const void *p, const int kind) {
    if (kinds[kind].arithmetic == MP_WIDE) return wide_factor(p);
    if (kinds[kind].arithmetic == MP_PAIRS) return pair_factor(p);
    const int as_it_is = !MP_FLIPS || kinds[kind].layouts != PACKED || is_int16(kind) || is_shifted(kind);
    return quad_factor(p, as_it_is ? 0 : g->operands.a_flip);
}

/* sum + a b. For integers in place, unless is_signed, a is signed and b ^ 0x80 = b + 128 unsigned. The epilogue
 * subtracts 128 times the row sums of a; here these are cheaper than the column sums of b, which a + 128 would need. */
MP_INLINE vf32 dot(vf32 sum, factor a, vf32 b, const int kind) {
    if (kinds[kind].arithmetic == MP_WIDE) return fma_factor(sum, a, b);
    if (kinds[kind].arithmetic == MP_PAIRS) return dot_bf16_factor(sum, a, as_u32(b));
#ifdef MP_WIDENS
    if (is_int16(kind)) return as_f32(dot_i16(as_u32(sum), as_u32(a), as_u32(b)));
#endif
#ifdef MP_NATIVE_S8
    if (is_signed(kind)) return as_f32(dot_s8s8_factor(as_u32(sum), a, as_u32(b)));
#else
    if (is_shifted(kind) || kinds[kind].layouts == IN_PLACE)
        return as_f32(dot_s8u8_factor(as_u32(sum), a, as_u32(b)));
#endif
    return as_f32(dot_u8s8_factor(as_u32(sum), a, as_u32(b)));
}

/* Element number `element` of 16 groups of b, as f32, if the kind decodes_floats. */
static load_of_kind *const wide_loads[] = {
    [MP_F8_E4M3FN] = load_wide_e4m3fn,
    [MP_F8_E5M2] = load_wide_e5m2,
    [MP_I8] = load_wide_i8,
    [MP_I4] = load_wide_i4,
    [MP_F4] = load_wide_f4,
};
MP_INLINE vf32 load_half(const char *p, const uint32_t *zero, const int kind, const int element) {
    if (is_shifted(kind)) return load_wide_shifted(p, 0, zero, element);
    return wide_loads[kinds[kind].format](p, 0, NULL, element);
}

MP_INLINE vf32 add(vf32 a, vf32 b, const int kind) {
    return is_integer(kind) ? as_f32(add_u32(as_u32(a), as_u32(b))) : add_f32(a, b);
}

/* The initial partial sums of the 16 columns from `column` on: g->accumulators.init. */
MP_INLINE vf32 start_at(const mp_gemm *g, ptrdiff_t column, const int kind) {
    if (is_integer(kind) && g->accumulators.init) return load_f32((const void *)(g->accumulators.init + column));
    return set_f32(0.0f);
}

/* Whether sums of whole K blocks are integers: not if K blocks have scales. */
MP_INLINE int sums_are_integers(const mp_gemm *g, const int kind) {
    return is_integer(kind) && !g->accumulators.block_scale;
}

/* Run the rest of the epilogue on sums in memory: `rows` rows of the result from number `row` on. */
MP_INLINE void run_epilogue(const mp_gemm *g, void *sums, ptrdiff_t row, ptrdiff_t rows, const int kind,
                            epilogue_place place) {
    if (place == SCALED_IN_REGISTERS)
        epilogue_of_scaled(g, sums, row, rows);
    else if (sums_are_integers(g, kind))
        epilogue_of_integers(g, sums, row, rows);
    else
        epilogue_of_floats(g, sums, row, rows);
}

/* Whether a register block can round its sums to the type: those of wide to f16, of pairs to bf16, of quads to both. */
MP_INLINE int narrows_to(const mp_format format, const int kind) {
    return format == MP_F16 ? kinds[kind].arithmetic != MP_PAIRS
                            : format == MP_BF16 && kinds[kind].arithmetic != MP_WIDE;
}

/* Whether register blocks compute a clamp (is_clamp): those that do not decode b to floats. It would enlarge all
 * blocks, and layers that clamp are mostly convolutions. */
MP_INLINE int clamps(const int kind) { return group_of(kind) <= 2 || (is_integer(kind) && !is_nibbles(kind)); }

/* How much of the epilogue can be computed in registers. Scales and bias if n is a multiple of 16 and zero points are
 * only in `init`. Everything if, besides, there are only scales, bias and a clamp (is_clamp), and the result is f32, a
 * type of narrows_to or, for integers, int32. */
MP_INLINE epilogue_place place_of_epilogue(const mp_gemm *g, const int kind) {
    const mp_epilogue *const e = &g->epilogue;
    if (!g->accumulators.last || g->shape.n % MP_LANES || e->col_sum || e->row_sum) return IN_MEMORY;
    if (e->out_format == MP_I32) return IN_REGISTERS;
    const int only_rounds = e->out_format == MP_F32 || narrows_to(e->out_format, kind);
    if (only_rounds && (clamps(kind) ? is_clamp(g) : is_linear(g))) return IN_REGISTERS;
    return SCALED_IN_REGISTERS;
}
