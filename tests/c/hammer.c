/* Many threads call the functions of mp_core.h at once, on shared operands:
 *
 *     hammer [THREADS [SECONDS]]     default: 16 threads for a second
 *
 * Each result has the bits that one caller alone got before. The exit status is 1 if one has not. .ci/sanitize runs it
 * under the sanitizers. */
#include <mp_core.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { M = 37, N = 130, K = 75, MOST_THREADS = 64, BYTES = 1 << 16, PART = BYTES / 4 };

static float a[M][K], b[K][N], bias[N], scale[N];
static uint16_t narrow_a[M][K], narrow_b[K][N];
static uint8_t codes_a[M][K];
static int8_t codes_b[K][N];
static void *packed_floats, *packed_codes;
static const char *isa;

/* ---- the calls: each writes into a buffer of BYTES zeros, and returns a status */

static mp_core_product product(int a_type, int b_type, int out_type, void *out) {
    mp_core_product p = {.size = sizeof p, .m = M, .n = N, .k = K, .a_type = a_type, .b_type = b_type};
    p.out_type = out_type, p.out = out, p.lda = K, p.ldo = N;
    return p;
}

static int multiply_floats(char *out, int threads) {
    mp_core_product p = product(MP_CORE_FLOAT32, MP_CORE_FLOAT32, MP_CORE_FLOAT32, out);
    p.a = a, p.packed = packed_floats, p.bias = bias, p.activation = MP_CORE_GELU;
    return mp_core_multiply(&p, NULL, threads);
}

static int multiply_pairs(char *out, int threads) {
    mp_core_product p = product(MP_CORE_BFLOAT16, MP_CORE_BFLOAT16, MP_CORE_BFLOAT16, out);
    p.a = narrow_a, p.b = narrow_b, p.b_rs = N, p.b_cs = 1;
    return mp_core_multiply(&p, NULL, threads);
}

static int multiply_codes(char *out, int threads) {
    mp_core_product p = product(MP_CORE_UINT8, MP_CORE_INT8, MP_CORE_INT32, out);
    p.a = codes_a, p.packed = packed_codes;
    return mp_core_multiply(&p, NULL, threads);
}

static int multiply_dynamic(char *out, int threads) {
    mp_core_product p = product(MP_CORE_FLOAT32, MP_CORE_INT8, MP_CORE_FLOAT16, out);
    p.a = a, p.packed = packed_codes, p.b_scale = scale, p.quantize_a = 1;
    return mp_core_multiply(&p, NULL, threads);
}

static int pack(char *out, int threads) { return mp_core_pack(MP_CORE_FLOAT32, K, N, b, N, 1, out, threads); }

static int cast(char *out, int threads) {
    const int failed = mp_core_cast(M * K, MP_CORE_FLOAT32, a, MP_CORE_FLOAT16, out, 0, threads);
    return failed ? failed : mp_core_cast(M * K, MP_CORE_FLOAT16, out, MP_CORE_FLOAT8_E5M2, out + PART, 1, threads);
}

static int quantize(char *out, int threads) {
    mp_core_quantization q = {.size = sizeof q, .rows = M, .cols = K, .x_type = MP_CORE_FLOAT32};
    q.q_type = MP_CORE_INT8, q.x = a, q.q = out, q.scales = MP_CORE_COLUMN_SCALES, q.scale = (float *)(out + PART);
    const int failed = mp_core_quantize(&q, threads);
    q.x = out + 2 * PART;
    return failed ? failed : mp_core_dequantize(&q, threads);
}

static int rows(char *out, int threads) {
    mp_core_rows r = {.size = sizeof r, .rows = M, .n = K, .type = MP_CORE_FLOAT32, .x = a, .ldx = K};
    r.ldo = K, r.out = out;
    int failed = mp_core_softmax(&r, 0.5f, NULL, 0, threads);
    r.out = out + PART;
    failed += mp_core_layer_norm(&r, b, bias, scale, 1e-3f, threads);
    r.out = out + 2 * PART;
    failed += mp_core_rms_norm(&r, bias, 1e-6f, threads);
    r.out = out + 3 * PART;
    return failed + mp_core_activate(&r, MP_CORE_SILU, threads);
}

/* Settings are made while others compute: always the ones that hold. */
static int settings(char *out, int threads) {
    memcpy(out, mp_core_version(), 3), memcpy(out + 8, mp_core_isa(), strlen(isa));
    const int failed = mp_core_set_isa(isa) || mp_core_set_reproducible(1) || mp_core_is_reproducible() != 1;
    return failed || mp_core_functions()->cpus() < 1 || threads < 1;
}

static int (*const calls[])(char *, int) = {multiply_floats, multiply_pairs, multiply_codes, multiply_dynamic, pack,
                                            cast,            quantize,       rows,           settings};
enum { CALLS = sizeof calls / sizeof *calls };

/* ---- the threads */

static _Alignas(64) char expected[CALLS][BYTES], found[MOST_THREADS][BYTES];
static time_t end;
static atomic_long made, wrong;

static void *hammer(void *out) {
    size_t turn = (size_t)((char *)out - found[0]) / BYTES; /* everyone begins elsewhere */
    for (; time(NULL) < end && !wrong; turn++, made++) {
        memset(out, 0, BYTES);
        const int status = calls[turn % CALLS](out, 1 + (int)(turn % 3));
        if (status || memcmp(out, expected[turn % CALLS], BYTES)) {
            fprintf(stderr, "call %d: status %d, or other bits\n", (int)(turn % CALLS), status);
            wrong++;
        }
    }
    return NULL;
}

static float number(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state / 2147483648.0f;
}

static int prepare(void) {
    for (int i = 0; i < M * K; i++) (&a[0][0])[i] = number(), (&codes_a[0][0])[i] = (uint8_t)(i * 37);
    for (int i = 0; i < K * N; i++) (&b[0][0])[i] = number(), (&codes_b[0][0])[i] = (int8_t)(i % 251 - 125);
    for (int j = 0; j < N; j++) bias[j] = number(), scale[j] = 0.01f + number() * number();
    packed_floats = malloc((size_t)mp_core_packed_bytes(MP_CORE_FLOAT32, K, N));
    packed_codes = malloc((size_t)mp_core_packed_bytes(MP_CORE_INT8, K, N));
    int failed = mp_core_packed_bytes(MP_CORE_FLOAT32, K, N) > BYTES || mp_core_set_reproducible(1);
    failed = failed || mp_core_pack(MP_CORE_FLOAT32, K, N, b, N, 1, packed_floats, 1);
    failed = failed || mp_core_pack(MP_CORE_INT8, K, N, codes_b, N, 1, packed_codes, 1);
    failed = failed || mp_core_cast(M * K, MP_CORE_FLOAT32, a, MP_CORE_BFLOAT16, narrow_a, 0, 1);
    failed = failed || mp_core_cast(K * N, MP_CORE_FLOAT32, b, MP_CORE_BFLOAT16, narrow_b, 0, 1);
    isa = mp_core_isa();
    for (int i = 0; i < CALLS && !failed; i++) failed = calls[i](expected[i], 1);
    return failed;
}

int main(int count, char **arguments) {
    const int threads = count > 1 ? atoi(arguments[1]) : 16, seconds = count > 2 ? atoi(arguments[2]) : 1;
    pthread_t started[MOST_THREADS];
    if (threads < 1 || threads > MOST_THREADS || seconds < 1 || prepare()) {
        fprintf(stderr, "hammer [THREADS, up to %d [SECONDS]]\n", MOST_THREADS);
        return 2;
    }
    end = time(NULL) + seconds + 1;
    for (int t = 0; t < threads; t++) pthread_create(&started[t], NULL, hammer, found[t]);
    for (int t = 0; t < threads; t++) pthread_join(started[t], NULL);
    printf("%s: %d threads, %ld calls, %ld wrong\n", isa, threads, (long)made, (long)wrong);
    free(packed_floats), free(packed_codes);
    return wrong != 0;
}
