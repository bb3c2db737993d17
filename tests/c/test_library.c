/* The plain library through mp_core.h, without Python. Results are compared with the same formulas in double. */
#include <mp_core.h>

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#include <malloc.h>
#else
#include <unistd.h>
#endif

static int failures;

#define CHECK(TRUTH) \
    do { \
        if (!(TRUTH)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #TRUTH); \
            failures++; \
        } \
    } while (0)

enum { M = 7, N = 130, K = 75 };

static float a[M][K], b[K][N], bias[N], out[M][N], other[M][N];

/* Memory that begins with a cache line. */
static void *aligned(ptrdiff_t bytes) {
    const size_t rounded = ((size_t)bytes / 64 + 1) * 64;
#if defined(_WIN32)
    return _aligned_malloc(rounded, 64);
#else
    return aligned_alloc(64, rounded);
#endif
}

static void free_aligned(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static float number(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

static void fill(void) {
    for (int i = 0; i < M * K; i++) (&a[0][0])[i] = number();
    for (int i = 0; i < K * N; i++) (&b[0][0])[i] = number();
    for (int j = 0; j < N; j++) bias[j] = number();
}

static mp_core_product floats(void *packed) {
    mp_core_product p = {.size = sizeof(p)};
    p.m = M, p.n = N, p.k = K, p.a_type = p.b_type = p.out_type = MP_CORE_FLOAT32;
    p.a = a, p.lda = K, p.packed = packed, p.out = out, p.ldo = N, p.bias = bias, p.activation = MP_CORE_RELU;
    return p;
}

/* The theorem's bound of sums of K products in float32: K u / (1 - K u) |a| |b|, u = 2^-24. */
static void test_product(void) {
    void *packed = aligned(mp_core_packed_bytes(MP_CORE_FLOAT32, K, N));
    CHECK(mp_core_pack(MP_CORE_FLOAT32, K, N, b, N, 1, packed, 2) == MP_CORE_OK);
    mp_core_product p = floats(packed);
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = bias[j], size = fabs(bias[j]);
            for (int q = 0; q < K; q++) sum += (double)a[i][q] * b[q][j], size += fabs((double)a[i][q] * b[q][j]);
            CHECK(fabs(out[i][j] - fmax(sum, 0)) <= (K + 2) * 0x1p-24 * size);
        }
    p.out = other;
    void *scratch = aligned(mp_core_product_scratch(&p, 2));
    CHECK(mp_core_multiply(&p, scratch, 2) == MP_CORE_OK);
    CHECK(memcmp(out, other, sizeof out) == 0);
    p.packed = NULL, p.b = b, p.b_rs = N, p.b_cs = 1; /* not packed: the same bits */
    memset(other, 0xFF, sizeof other);
    CHECK(mp_core_multiply(&p, NULL, 3) == MP_CORE_OK);
    CHECK(memcmp(out, other, sizeof out) == 0);
    p.residual = other, p.ldr = N; /* the residual may be out */
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    CHECK(other[0][0] == out[0][0] + out[0][0]);
    free_aligned(packed);
    free_aligned(scratch);
}

static void test_integers(void) {
    static uint8_t x[M][K];
    static int8_t w[K][N];
    static int32_t sums[M][N];
    for (int i = 0; i < M * K; i++) (&x[0][0])[i] = (uint8_t)(number() * 127 + 128);
    for (int i = 0; i < K * N; i++) (&w[0][0])[i] = (int8_t)(number() * 128);
    void *packed = malloc((size_t)mp_core_packed_bytes(MP_CORE_INT8, K, N));
    CHECK(mp_core_pack(MP_CORE_INT8, K, N, w, N, 1, packed, 1) == MP_CORE_OK);
    mp_core_product p = {.size = sizeof(p), .m = M, .n = N, .k = K, .a_type = MP_CORE_UINT8, .b_type = MP_CORE_INT8,
                         .out_type = MP_CORE_INT32, .a = x, .lda = K, .packed = packed, .out = sums, .ldo = N};
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int32_t sum = 0;
            for (int q = 0; q < K; q++) sum += x[i][q] * w[q][j];
            CHECK(sums[i][j] == sum);
        }
    free(packed);
}

/* One column: the product may be computed as a row, but its scale and zero point are still one. */
static void test_one_column(void) {
    static int8_t x[40][K], w[K];
    float *scale = malloc(sizeof *scale), y[40];
    int32_t *zero = malloc(sizeof *zero), sums[40];
    for (int i = 0; i < 40 * K; i++) (&x[0][0])[i] = (int8_t)(number() * 128);
    for (int q = 0; q < K; q++) w[q] = (int8_t)(number() * 128);
    *scale = 0.5f, *zero = -3;
    mp_core_product p = {.size = sizeof(p),
                         .m = 40,
                         .n = 1,
                         .k = K,
                         .a_type = MP_CORE_INT8,
                         .b_type = MP_CORE_INT8,
                         .out_type = MP_CORE_FLOAT32,
                         .a = x,
                         .lda = K,
                         .b = w,
                         .b_rs = 1,
                         .b_cs = 1,
                         .out = y,
                         .ldo = 1};
    p.b_scale = scale;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    p.b_scale = NULL, p.b_zero_point = zero, p.out = sums, p.out_type = MP_CORE_INT32;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    for (int i = 0; i < 40; i++) {
        int32_t sum = 0, shifted = 0;
        for (int q = 0; q < K; q++) sum += x[i][q] * w[q], shifted += x[i][q] * (w[q] + 3);
        CHECK(y[i] == 0.5f * (float)sum && sums[i] == shifted);
    }
    free(scale);
    free(zero);
}

/* K = 0: sums are 0, and neither operand need be there; there are no scales of groups. */
static void test_no_terms(void) {
    const float scale = 2;
    const int32_t zero[M] = {1, 2, 3, 4, 5, 6, 7};
    mp_core_product p = {.size = sizeof(p), .m = M, .n = N, .a_type = MP_CORE_INT8, .b_type = MP_CORE_INT8,
                         .out_type = MP_CORE_FLOAT32, .out = other, .ldo = N, .bias = bias, .a_zero_point = zero};
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
    for (int j = 0; j < N; j++) CHECK(other[3][j] == bias[j]);
    memset(other, 0xFF, sizeof other);
    p.a_type = MP_CORE_BFLOAT16, p.a_zero_point = NULL, p.b_scale = &scale, p.b_group = 64;
    void *nan = aligned(mp_core_product_scratch(&p, 1));
    memset(nan, 0xFF, (size_t)mp_core_product_scratch(&p, 1));
    CHECK(mp_core_multiply(&p, nan, 1) == MP_CORE_OK);
    for (int j = 0; j < N; j++) CHECK(other[3][j] == bias[j]);
    free_aligned(nan);
}

static void test_casts(void) {
    const double from[] = {1.0, 1.00390625, 1.0 + 0x1p-8 + 0x1p-40, 3e38, -INFINITY, 65520.0};
    uint16_t narrow[6], half[6];
    float wide[6];
    CHECK(mp_core_cast(6, MP_CORE_FLOAT64, from, MP_CORE_BFLOAT16, narrow, 0, 1) == MP_CORE_OK);
    CHECK(narrow[0] == 0x3F80 && narrow[1] == 0x3F80 && narrow[2] == 0x3F81 && narrow[4] == 0xFF80);
    CHECK(mp_core_cast(6, MP_CORE_FLOAT64, from, MP_CORE_FLOAT16, half, 1, 1) == MP_CORE_OK);
    CHECK(half[3] == 0x7BFF && half[4] == 0xFBFF && half[5] == 0x7BFF); /* clamped */
    CHECK(mp_core_cast(6, MP_CORE_FLOAT64, from, MP_CORE_FLOAT32, wide, 0, 1) == MP_CORE_OK);
    CHECK(wide[2] == (float)from[2]);
    const double beyond[] = {1e300, -1e300, INFINITY};
    CHECK(mp_core_cast(3, MP_CORE_FLOAT64, beyond, MP_CORE_FLOAT32, wide, 1, 1) == MP_CORE_OK);
    CHECK(wide[0] == FLT_MAX && wide[1] == -FLT_MAX && wide[2] == FLT_MAX);
}

static void test_quantization(void) {
    static int8_t codes[M][K];
    static float back[M][K], scale[K];
    mp_core_quantization q = {.size = sizeof(q),
                              .rows = M,
                              .cols = K,
                              .x_type = MP_CORE_FLOAT32,
                              .q_type = MP_CORE_INT8,
                              .x = a,
                              .q = codes,
                              .scales = MP_CORE_COLUMN_SCALES,
                              .scale = scale};
    CHECK(mp_core_quantize(&q, 2) == MP_CORE_OK);
    for (int j = 0; j < K; j++) {
        float amax = 0;
        for (int i = 0; i < M; i++) amax = fmaxf(amax, fabsf(a[i][j]));
        CHECK(scale[j] == amax / 127);
        for (int i = 0; i < M; i++) CHECK(codes[i][j] == (int8_t)nearbyintf(a[i][j] / scale[j]));
    }
    q.x = back;
    CHECK(mp_core_dequantize(&q, 1) == MP_CORE_OK);
    CHECK(back[2][3] == scale[3] * codes[2][3]);
}

static void test_rows(void) {
    float x[4][33];
    double mean = 0, square = 0, sum = 0;
    memcpy(x, a, sizeof x);
    mp_core_rows r = {
        .size = sizeof(r), .rows = 4, .n = 32, .type = MP_CORE_FLOAT32, .x = x, .ldx = 33, .out = x, .ldo = 33};
    CHECK(mp_core_layer_norm(&r, NULL, NULL, NULL, 0, 1) == MP_CORE_OK);
    for (int j = 0; j < 32; j++) mean += x[1][j] / 32, square += (double)x[1][j] * x[1][j] / 32;
    CHECK(fabs(mean) < 1e-6 && fabs(square - 1) < 1e-5 && x[1][32] == (&a[0][0])[65]);
    CHECK(mp_core_softmax(&r, 1, NULL, 0, 1) == MP_CORE_OK);
    for (int j = 0; j < 32; j++) sum += x[1][j];
    CHECK(fabs(sum - 1) < 1e-6);
    const float before = x[0][0];
    CHECK(mp_core_activate(&r, MP_CORE_SIGMOID, 1) == MP_CORE_OK);
    CHECK(fabs(x[0][0] - 1 / (1 + exp(-(double)before))) < 1e-6);
    CHECK(mp_core_rms_norm(&r, NULL, 0, 1) == MP_CORE_OK);
}

static void test_order(void) {
    static float alone[M][N], with_scratch[M][N];
    const int before = mp_core_is_reproducible();
    CHECK(before == 0 || before == 1);
    mp_core_product p = {.size = sizeof(p),
                         .m = M,
                         .n = N,
                         .k = K,
                         .a_type = MP_CORE_BFLOAT16,
                         .b_type = MP_CORE_BFLOAT16,
                         .out_type = MP_CORE_FLOAT32,
                         .a = a,
                         .lda = K,
                         .b = b,
                         .b_rs = N,
                         .b_cs = 1,
                         .out = alone,
                         .ldo = N};
    void *scratch = aligned(mp_core_product_scratch(&p, 2)); /* enough for both orders */
    for (int order = 0; order < 2; order++) {
        CHECK(mp_core_set_reproducible(order) == MP_CORE_OK && mp_core_is_reproducible() == order);
        p.out = alone;
        CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_OK);
        p.out = with_scratch;
        CHECK(mp_core_multiply(&p, scratch, 2) == MP_CORE_OK && memcmp(alone, with_scratch, sizeof alone) == 0);
    }
    CHECK(mp_core_set_reproducible(2) == MP_CORE_INVALID && mp_core_is_reproducible() == 1);
    CHECK(mp_core_set_reproducible(before) == MP_CORE_OK && mp_core_is_reproducible() == before);
    free_aligned(scratch);
}

static void test_refusals(void) {
    mp_core_product p = floats(NULL);
    CHECK(mp_core_multiply(NULL, NULL, 1) == MP_CORE_INVALID);
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID); /* no B */
    p.b = b, p.b_rs = N, p.b_cs = 1;
    CHECK(mp_core_multiply(&p, NULL, 0) == MP_CORE_INVALID);
    p.size--;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID);
    p.size++, p.lda = K - 1;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID && mp_core_product_scratch(&p, 1) == -1);
    p.lda = PTRDIFF_MAX; /* in bytes, more than can be counted */
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID);
    p.lda = K, p.b_rs = PTRDIFF_MIN;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID);
    CHECK(mp_core_pack(MP_CORE_FLOAT32, 2, 2, b, PTRDIFF_MAX, 1, out, 1) == MP_CORE_INVALID);
    p.b_rs = N, p.m = p.n = p.k = p.lda = p.ldo = (ptrdiff_t)1 << 50;
    CHECK(mp_core_product_scratch(&p, 64) == -1);
    p = floats(NULL), p.b = b, p.b_rs = N, p.b_cs = 1, p.out_type = MP_CORE_INT32;
    CHECK(mp_core_multiply(&p, NULL, 1) == MP_CORE_INVALID);
    CHECK(mp_core_packed_bytes(MP_CORE_FLOAT64, 1, 1) == -1);
    CHECK(mp_core_packed_bytes(MP_CORE_FLOAT32, (ptrdiff_t)1 << 50, (ptrdiff_t)1 << 50) == -1);
    CHECK(mp_core_cast(-1, 0, a, 1, out, 0, 1) == MP_CORE_INVALID);
    mp_core_rows r = {.size = sizeof(r), .rows = M, .n = N, .type = MP_CORE_FLOAT32, .x = out, .ldx = N, .out = out};
    r.ldo = (ptrdiff_t)1 << 61; /* times the rows and the bytes of an element it would begin anew at 0 */
    CHECK(mp_core_activate(&r, MP_CORE_RELU, 1) == MP_CORE_INVALID);
    r.ldo = N;
    CHECK(mp_core_softmax(&r, 1, (const uint8_t *)out, PTRDIFF_MAX, 1) == MP_CORE_INVALID);
    CHECK(mp_core_set_isa("abacus") == MP_CORE_BAD_ISA && mp_core_isa());
    for (int status = -1; status < 9; status++) CHECK(strlen(mp_core_status_text(status)) > 5);
}

static void *multiply_often(void *result) {
    mp_core_product p = floats(NULL);
    p.b = b, p.b_rs = N, p.b_cs = 1, p.out = result;
    for (int i = 0; i < 200; i++) CHECK(mp_core_multiply(&p, NULL, 2) == MP_CORE_OK);
    return NULL;
}

static void test_callers(void) {
    static float results[4][M][N];
    pthread_t threads[4];
    for (int t = 0; t < 4; t++) pthread_create(&threads[t], NULL, multiply_often, results[t]);
    for (int t = 0; t < 4; t++) pthread_join(threads[t], NULL);
    for (int t = 0; t < 4; t++) CHECK(memcmp(results[t], out, sizeof out) == 0);
}

#if !defined(_WIN32)
static void *nothing(void *argument) { return argument; }

/* Thread-local variables of a linked library take from the stack of every thread: here they leave room for the
 * smallest. */
static void test_small_stack(void) {
    pthread_attr_t small;
    pthread_t thread;
    CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, (size_t)sysconf(_SC_THREAD_STACK_MIN)));
    const int failed = pthread_create(&thread, &small, nothing, NULL);
    CHECK(!failed);
    if (!failed) pthread_join(thread, NULL);
    pthread_attr_destroy(&small);
}
#else
static void test_small_stack(void) {}
#endif

int main(void) {
    const mp_core_table *table = mp_core_functions();
    CHECK(table->api_version == MP_CORE_API_VERSION && table->cpus() == mp_core_cpus() && mp_core_cpus() >= 1);
    fill();
    test_product();
    test_integers();
    test_one_column();
    test_no_terms();
    test_casts();
    test_quantization();
    test_rows();
    test_order();
    test_refusals();
    test_callers();
    test_small_stack();
    CHECK(mp_core_set_isa("scalar") == MP_CORE_OK && strcmp(mp_core_isa(), "scalar") == 0);
    memcpy(other, out, sizeof out);
    test_product(); /* writes out again: the same bits on another instruction set */
    printf("mp_core %s: %d failures\n", mp_core_version(), failures);
    return failures != 0;
}
