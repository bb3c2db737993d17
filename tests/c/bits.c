/* The bits that the functions of mp_core.h compute, as hashes: `bits` lists the instruction sets that this CPU can use,
 * `bits NAME` prints a line for each of many calls on one of them. Two sets, or two CPUs, are alike if these lines are.
 * NaNs count as one number, since processors differ in their payloads; of casts, whose NaNs have the sign of their
 * operand, as two. */
#include <mp_core.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 18 }; /* elements of an array */
static const char *const type_names[] = {"f32", "f16", "bf16", "e4m3fn", "e5m2", "f64", "i8", "u8", "i32", "i4", "u4",
                                        "e2m1"};
static const int sizes[] = {4, 2, 2, 1, 1, 8, 1, 1, 4, 1, 1, 1};
_Alignas(64) static char a_memory[MOST * 8], b_memory[MOST * 8],
    out_memory[MOST * 8], packed[MOST * 8], residual[MOST * 4];
static float bias[4096], a_scale[4096], b_scale[4096];
static int32_t a_zero[4096], b_zero[4096];

static uint64_t state;
static uint32_t random_bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) ^ (uint32_t)(state >> 11) << 16;
}

/* ---- numbers: all bits; around 1; so small that products of two are around 2^-126 */
enum { ANY_BITS, USUAL, TINY };

static float number(int kind) {
    const uint32_t bits = random_bits();
    const uint32_t exponent = kind == USUAL ? 120 + (bits >> 23 & 7) : 60 + (bits >> 23 & 7);
    const uint32_t word = kind == ANY_BITS ? bits : (bits & 0x807FFFFF) | exponent << 23;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

static void fill(void *to, int type, ptrdiff_t n, int kind) {
    static float wide[MOST];
    if (kind == ANY_BITS || sizes[type] == 1) {
        for (ptrdiff_t i = 0; i < n * sizes[type]; i++) ((uint8_t *)to)[i] = (uint8_t)(random_bits() >> 7);
        if (kind == ANY_BITS) return;
        for (ptrdiff_t i = 0; i < n; i++) { /* neither NaN nor infinity; int4 lie in bytes */
            uint8_t *const x = (uint8_t *)to + i;
            if (type == MP_CORE_FLOAT8_E4M3FN || type == MP_CORE_FLOAT8_E5M2) *x &= 0xBF;
            if (type == MP_CORE_INT4) *x = (uint8_t)((*x & 15) - 8);
        }
        return;
    }
    for (ptrdiff_t i = 0; i < n; i++) wide[i] = number(kind);
    mp_core_cast(n, MP_CORE_FLOAT32, wide, type, to, 0, 1);
}

/* ---- hashes */

static uint64_t hash;
static void mix(uint64_t x) { hash = (hash ^ x) * 1099511628211u, hash ^= hash >> 29; }

static void mix_elements(int type, const void *x, ptrdiff_t n, int keep_sign) {
    static const uint64_t infinity[] = {0x7F800000, 0x7C00, 0x7F80, 0x7E, 0x7C},
                          sign[] = {1u << 31, 1 << 15, 1 << 15, 1 << 7, 1 << 7};
    for (ptrdiff_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, (const char *)x + i * sizes[type], (size_t)sizes[type]);
        if (type <= MP_CORE_FLOAT8_E5M2 && (bits & ~sign[type]) > infinity[type])
            bits = ~0ull - (keep_sign && bits & sign[type] ? 1 : 0);
        mix(bits);
    }
}

static void report(const char *name, int status) {
    printf("%s %s%016llx\n", name, status ? "refused " : "", (unsigned long long)hash);
    hash = 14695981039346656037u;
}

/* ---- casts */

static void casts(void) {
    char name[64];
    for (int from = 0; from <= MP_CORE_FLOAT64; from++)
        for (int to = 0; to < MP_CORE_FLOAT64; to++)
            for (int saturate = 0; saturate < 2; saturate++) {
                const ptrdiff_t n = 65536 + 13;
                state = (uint64_t)(10 * from + to);
                fill(a_memory, from, n, ANY_BITS);
                if (sizes[from] < 4) /* every number */
                    for (ptrdiff_t i = 0; i < 65536; i++)
                        memcpy(a_memory + i * sizes[from], &(uint32_t){(uint32_t)i}, (size_t)sizes[from]);
                if (from == MP_CORE_FLOAT64) /* every exponent of float32, and ties */
                    for (ptrdiff_t i = 0; i < n; i++) {
                        const uint64_t word =
                            ((uint64_t)random_bits() << 32 | (uint64_t)(i % 3 - 1)) & 0x8007FFFFFFFFFFFF;
                        const uint64_t bits = word | (uint64_t)(1023 - 160 + i % 300) << 52;
                        memcpy(a_memory + 8 * i, &bits, 8);
                    }
                const int status = mp_core_cast(n, from, a_memory, to, out_memory, saturate, 1);
                mix_elements(to, out_memory, n, 1);
                snprintf(name, sizeof name, "cast %s %s %d", type_names[from], type_names[to], saturate);
                report(name, status);
            }
}

/* ---- products */

typedef struct { int m, n, k; } shape;
enum { PACKED, ROWS, COLUMNS, STRIDED, LAYOUTS };
static const char *const layout_names[] = {"packed", "rows", "columns", "strided"};

/* The epilogues: none; scales and bias; each activation with a residual. */
enum { PLAIN, SCALED, ACTIVATED, GROUPED, ZERO_POINTS, QUANTIZED, QUANTIZED_GROUPS, EPILOGUES };
static const char *const epilogue_names[] = {"plain", "scaled", "activated", "grouped", "zeros", "quantized",
                                            "quantized groups"};

static int is_float(int type) { return type <= MP_CORE_BFLOAT16; }
static int is_code(int type) { return type == MP_CORE_INT8 || type == MP_CORE_UINT8; }

/* A product with that epilogue; 0 if the types have none such. */
static int set_epilogue(mp_core_product *p, int epilogue, int turn) {
    const int integers = is_code(p->a_type), scales = integers || !is_float(p->b_type);
    p->bias = epilogue == SCALED || epilogue == ACTIVATED ? bias : NULL;
    if (epilogue == SCALED && scales && (integers || is_float(p->a_type))) p->b_scale = b_scale;
    if (epilogue == SCALED && integers) p->a_scale = a_scale;
    if (epilogue == ACTIVATED) {
        p->activation = 1 + turn % 7;
        p->residual = residual, p->residual_type = turn % 5, p->ldr = p->n + 3;
    }
    if (epilogue == GROUPED) {
        if (!p->packed || integers || !is_float(p->a_type) || is_float(p->b_type)) return 0;
        p->b_scale = b_scale, p->b_group = 32;
    }
    if (epilogue == ZERO_POINTS) {
        if (!integers) return 0;
        p->a_zero_point = a_zero, p->b_zero_point = b_zero, p->a_shared = turn % 2;
    }
    if (epilogue == QUANTIZED) {
        if (!is_float(p->a_type) || p->b_type != MP_CORE_INT8) return 0;
        p->quantize_a = 1, p->b_scale = b_scale;
    }
    if (epilogue == QUANTIZED_GROUPS) {
        if (!is_float(p->a_type) || p->b_type < MP_CORE_INT8 || !p->packed) return 0;
        p->quantize_a = 1, p->b_scale = b_scale, p->b_group = 32;
    }
    return 1;
}

static void set_layout(mp_core_product *p, int layout) {
    const ptrdiff_t rs[] = {p->n, p->n + 5, 1, 2 * p->n + 1}, cs[] = {1, 1, p->k + 3, 2};
    p->b = b_memory, p->b_rs = rs[layout], p->b_cs = cs[layout];
    if (layout != PACKED) return;
    if (mp_core_pack(p->b_type, p->k, p->n, p->b, p->b_rs, p->b_cs, packed, 1) == MP_CORE_OK)
        p->packed = packed, p->b = NULL;
}

static void product(int a_type, int b_type, shape s, int layout, int epilogue, int kind) {
    static int turn;
    turn++;
    mp_core_product p = {.size = sizeof p, .m = s.m, .n = s.n, .k = s.k, .a_type = a_type, .b_type = b_type};
    state = (uint64_t)(turn % 16);
    const ptrdiff_t b_elements = (ptrdiff_t)(s.n + 6) * (s.k + 6) * (layout == STRIDED ? 2 : 1);
    fill(a_memory, a_type, (ptrdiff_t)s.m * (s.k + 1), kind), fill(b_memory, b_type, b_elements, kind);
    set_layout(&p, layout);
    if (!set_epilogue(&p, epilogue, turn)) return;
    const int outs[] = {MP_CORE_FLOAT32, MP_CORE_FLOAT16, MP_CORE_BFLOAT16, MP_CORE_FLOAT8_E4M3FN};
    p.out_type = is_code(a_type) && (epilogue == PLAIN || epilogue == ZERO_POINTS) ? MP_CORE_INT32 : outs[turn % 4];
    p.a = a_memory, p.lda = s.k + 1, p.out = out_memory, p.ldo = s.n + 2;
    const int status = mp_core_multiply(&p, NULL, 1);
    for (int i = 0; i < s.m && !status; i++)
        mix_elements(p.out_type, out_memory + i * p.ldo * sizes[p.out_type], s.n, 0);
    char name[128];
    snprintf(name, sizeof name, "product %s %s %dx%dx%d %s %s %s %s", type_names[a_type], type_names[b_type], s.m, s.n,
             s.k, layout_names[layout], epilogue_names[epilogue], type_names[p.out_type], kind == TINY ? "tiny" : "");
    report(name, status);
}

static void products(void) {
    static const shape shapes[] = {{1, 64, 64}, {1, 130, 75}, {3, 33, 18}, {6, 64, 128}, {7, 70, 1100}, {13, 16, 2060},
                                   {29, 48, 40}, {64, 1, 50}, {25, 75, 1037}, {53, 130, 67}};
    for (int a_type = 0; a_type <= MP_CORE_UINT8; a_type++)
        for (int b_type = 0; b_type <= MP_CORE_FLOAT4_E2M1FN; b_type++) {
            if (a_type == MP_CORE_FLOAT64 || b_type == MP_CORE_FLOAT64 || b_type == MP_CORE_UINT8
                || b_type == MP_CORE_INT32 || b_type == MP_CORE_UINT4)
                continue;
            if (a_type > MP_CORE_FLOAT64 ? b_type != MP_CORE_INT8 : a_type > MP_CORE_BFLOAT16 && a_type != b_type)
                continue;
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                for (int layout = 0; layout < LAYOUTS; layout++)
                    for (int epilogue = 0; epilogue < EPILOGUES; epilogue++)
                        product(a_type, b_type, shapes[s], layout, epilogue, USUAL);
            for (int layout = 0; layout < LAYOUTS && a_type == MP_CORE_BFLOAT16 && b_type == MP_CORE_BFLOAT16; layout++)
                for (int epilogue = 0; epilogue <= ACTIVATED; epilogue++) {
                    product(a_type, b_type, (shape){1, 64, 70}, layout, epilogue, TINY);
                    product(a_type, b_type, (shape){7, 70, 33}, layout, epilogue, TINY);
                }
        }
}

/* Pairs whose sum is beside 2^-126, where flushing before rounding and after it differ: 2^-126 - 2^e. */
static void edge_of_flushing(void) {
    uint16_t a[4][2], b[64][2];
    float x[4][64];
    for (int e = -152; e <= -148; e++) {
        const uint16_t smallest[] = {(uint16_t)((127 - 63) << 7), (uint16_t)((127 - 63) << 7)}; /* 2^-63: its square */
        for (int i = 0; i < 4; i++) a[i][1] = smallest[0], a[i][0] = (uint16_t)((127 - 50) << 7 | (i & 1) << 15);
        for (int j = 0; j < 64; j++) {
            b[j][1] = smallest[1];
            b[j][0] = (uint16_t)((127 + e + 50) << 7 | (j & 3) | (uint16_t)((~j >> 2 & 1) << 15));
        }
        mp_core_product p = {.size = sizeof p,
                             .m = 4,
                             .n = 64,
                             .k = 2,
                             .a_type = MP_CORE_BFLOAT16,
                             .b_type = MP_CORE_BFLOAT16,
                             .out_type = MP_CORE_FLOAT32,
                             .a = a,
                             .lda = 2,
                             .b = b,
                             .b_rs = 1,
                             .b_cs = 2,
                             .out = x,
                             .ldo = 64};
        int status = mp_core_multiply(&p, NULL, 1);
        mix_elements(MP_CORE_FLOAT32, x, 4 * 64, 0);
        if (mp_core_pack(MP_CORE_BFLOAT16, 2, 64, b, 1, 2, packed, 1) == MP_CORE_OK) p.packed = packed, p.b = NULL;
        status |= mp_core_multiply(&p, NULL, 1);
        mix_elements(MP_CORE_FLOAT32, x, 4 * 64, 0);
        report("the edge of flushing", status);
    }
}

/* Activations of pairs where these give a result beside 2^-126: of 0 + bias, near 2^-126 and 2^-125 of either sign, and
 * in the tail where the function itself is so small. */
static void activations_at_the_edge(void) {
    static const uint32_t tails[] = {0, 0xC14CCCCD /* gelu, -12.8 on */, 0xC2B40000 /* silu, -90 on */, 0,
                                     0xC1200000 /* gelu_tanh, -10 on */, 0xC2AA0000 /* sigmoid, -85 on */, 0};
    enum { N = 1 << 16 };
    float *const x = (float *)packed;
    memset(a_memory, 0, sizeof a_memory);
    for (int activation = 1; activation <= MP_CORE_TANH; activation++) {
        const uint32_t starts[] = {0x00800000 - N / 2, 0x80800000 - N / 2, 0x01000000 - N / 2, 0x81000000 - N / 2,
                                   tails[activation - 1]};
        int status = MP_CORE_OK;
        for (int range = 0; range < 5; range++) {
            for (uint32_t i = 0; i < N; i++) memcpy(x + i, &(uint32_t){starts[range] + i * (range == 4 ? 17 : 1)}, 4);
            mp_core_product p = {.size = sizeof p,
                                 .m = 1,
                                 .n = N,
                                 .k = 1,
                                 .a_type = MP_CORE_BFLOAT16,
                                 .b_type = MP_CORE_BFLOAT16,
                                 .out_type = MP_CORE_FLOAT32,
                                 .a = a_memory,
                                 .lda = 1,
                                 .b = a_memory,
                                 .b_rs = N,
                                 .b_cs = 1,
                                 .out = out_memory,
                                 .ldo = N,
                                 .bias = x,
                                 .activation = activation};
            status |= mp_core_multiply(&p, NULL, 1);
            mix_elements(MP_CORE_FLOAT32, out_memory, N, 0);
        }
        report("activations at the edge of flushing", status);
    }
}

/* ---- quantization */

static void quantizations(void) {
    for (int x_type = 0; x_type <= MP_CORE_BFLOAT16; x_type++)
        for (int q_type = MP_CORE_FLOAT8_E4M3FN; q_type <= MP_CORE_FLOAT4_E2M1FN; q_type++)
            for (int scales = 0; scales <= MP_CORE_COLUMN_SCALES; scales++)
                for (int from = 0; from <= MP_CORE_GIVEN; from++)
                    for (int kind = ANY_BITS; kind <= USUAL; kind++) {
                        const int no_zeros = q_type <= MP_CORE_FLOAT8_E5M2 || q_type == MP_CORE_FLOAT4_E2M1FN;
                        if (q_type == MP_CORE_FLOAT64 || q_type == MP_CORE_INT32
                            || (no_zeros && from == MP_CORE_ASYMMETRIC))
                            continue;
                        mp_core_quantization q = {.size = sizeof q,
                                                  .rows = 37,
                                                  .cols = 210,
                                                  .x_type = x_type,
                                                  .q_type = q_type,
                                                  .x = a_memory,
                                                  .q = out_memory,
                                                  .scales = scales,
                                                  .group = scales ? 70 : 0,
                                                  .from = from,
                                                  .scale = (float *)b_memory,
                                                  .zero_point = no_zeros ? NULL : (int32_t *)packed};
                        state = 1;
                        fill(a_memory, x_type, q.rows * q.cols, kind);
                        for (int i = 0; i < 4096; i++) q.scale[i] = b_scale[i % 2048], ((int32_t *)packed)[i] = i % 7;
                        memset(out_memory, 0, sizeof out_memory);
                        int status = mp_core_quantize(&q, 1);
                        for (ptrdiff_t i = 0; i < q.rows * q.cols; i++) mix((uint8_t)out_memory[i]);
                        mix_elements(MP_CORE_FLOAT32, q.scale, 256, 0), mix_elements(MP_CORE_INT32, packed, 256, 0);
                        status |= mp_core_dequantize(&q, 1);
                        mix_elements(x_type, a_memory, q.rows * q.cols, 0);
                        char name[64];
                        snprintf(name, sizeof name, "quantize %s %s %d %d %d", type_names[x_type], type_names[q_type],
                                 scales, from, kind);
                        report(name, status);
                    }
}

/* ---- rows */

static void rows(void) {
    static uint8_t keep[512];
    for (int j = 0; j < 512; j++) keep[j] = j % 5 != 2;
    for (int type = 0; type <= MP_CORE_FLOAT8_E5M2; type++)
        for (int n = 1; n < 400; n = 3 * n + 4)
            for (int kind = ANY_BITS; kind <= TINY; kind++) {
                mp_core_rows r = {.size = sizeof r,
                                  .rows = 5,
                                  .n = n,
                                  .type = type,
                                  .x = a_memory,
                                  .ldx = n + 2,
                                  .out = out_memory,
                                  .ldo = n};
                state = (uint64_t)n;
                fill(a_memory, type, 5 * (n + 2), kind), fill(residual, type, 5 * (n + 2), USUAL);
                char name[64];
#define ROWS_CALL(NAME, CALL)                                                              \
    do {                                                                                   \
        const int status = CALL;                                                           \
        mix_elements(type, out_memory, 5 * n, 0);                                          \
        snprintf(name, sizeof name, NAME " %s %d %d", type_names[type], n, kind);          \
        report(name, status);                                                              \
    } while (0)
                ROWS_CALL("softmax", mp_core_softmax(&r, 0.7f, NULL, 0, 1));
                ROWS_CALL("masked softmax", mp_core_softmax(&r, 1, keep, 0, 1));
                ROWS_CALL("layer norm", mp_core_layer_norm(&r, residual, a_scale, bias, 1e-5f, 1));
                ROWS_CALL("rms norm", mp_core_rms_norm(&r, b_scale, 1e-6f, 1));
                for (int activation = 1; activation <= MP_CORE_TANH; activation++) {
                    mix((uint64_t)activation);
                    ROWS_CALL("activate", mp_core_activate(&r, activation, 1));
                }
            }
}

int main(int count, char **arguments) {
    static const char *const names[] = {"avx512_amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2",
                                        "neon_bf16", "neon_dotprod", "neon", "scalar"};
    if (count < 2) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (mp_core_set_isa(names[i]) == MP_CORE_OK) printf("%s\n", names[i]);
        return 0;
    }
    if (mp_core_set_isa(arguments[1]) != MP_CORE_OK) {
        fprintf(stderr, "this CPU cannot use %s\n", arguments[1]);
        return 1;
    }
    hash = 14695981039346656037u, state = 7;
    for (int i = 0; i < 4096; i++) {
        bias[i] = number(USUAL), a_scale[i] = number(USUAL), b_scale[i] = number(USUAL);
        a_scale[i] = a_scale[i] < 0 ? -a_scale[i] : a_scale[i], b_scale[i] = b_scale[i] < 0 ? -b_scale[i] : b_scale[i];
        a_zero[i] = i % 100, b_zero[i] = i % 30 - 20;
    }
    fill(residual, MP_CORE_FLOAT32, MOST, USUAL);
    casts();
    products();
    edge_of_flushing();
    activations_at_the_edge();
    quantizations();
    rows();
    return 0;
}
