/* Calls of every function of mp_core.h with arguments of all kinds, most of them nonsense, drawn from bytes:
 *
 *     hostile_api [FIRST [COUNT [THREADS]]]     default: the calls 0 to 9999, each on its number, by 4 threads
 *
 * Compiled with -DFUZZER, libFuzzer draws the bytes from what it has seen (.ci/fuzz_c). Every array has exactly the
 * bytes that the arguments describe, at any alignment that C allows, so that a sanitizer sees an access outside of it.
 * If they describe more than MOST bytes, the call is left out; if a count is negative or beyond 2^50, arrays have one
 * byte, and the call must be refused. What lies between rows must stay. */
#include <mp_core.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(TRUTH) \
    do { \
        if (!(TRUTH)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #TRUTH); \
            abort(); \
        } \
    } while (0)

enum { MOST = 1 << 20, MOST_BLOCKS = 16, GAP = 0xA5 };
static const ptrdiff_t MOST_COUNT = (ptrdiff_t)1 << 50;

/* ---- what is drawn */

static _Thread_local const uint8_t *at, *end;
static _Thread_local int too_large, nonsense;

static uint64_t take(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | (at < end ? *at++ : 0);
    return value;
}

static int one_in(int n) { return take(1) % (unsigned)n == 0; }

static ptrdiff_t odd(void) {
    static const ptrdiff_t values[] = {-1, -7, PTRDIFF_MIN, PTRDIFF_MAX, (ptrdiff_t)1 << 50, ((ptrdiff_t)1 << 50) + 1,
                                       (ptrdiff_t)1 << 61, (ptrdiff_t)1 << 62, 4096, 131072, 1 << 20};
    return values[take(1) % (sizeof values / sizeof *values)];
}

static ptrdiff_t any(void) { return one_in(24) ? odd() : (ptrdiff_t)take(1) % 70; }

static ptrdiff_t count(void) {
    const ptrdiff_t value = any();
    if (value < 0 || value > MOST_COUNT) nonsense = 1;
    return value;
}

/* How far rows of `length` elements are apart. */
static ptrdiff_t row_stride(ptrdiff_t length) {
    if (one_in(24)) return odd();
    return one_in(2) ? length : (ptrdiff_t)((uint64_t)length + take(1) % 9 - (uint64_t)one_in(12));
}

/* A value of an enum with so many, or any integer. */
static int number(int below) { return one_in(24) ? (int)take(4) : (int)(take(1) % (unsigned)below); }
static int type(void) { return number(12); }
static int threads(void) { return one_in(24) ? (int)take(4) : 1 + (int)(take(1) % 3); }

/* ---- memory */

static _Thread_local void *blocks[MOST_BLOCKS];
static _Thread_local int used_blocks;

static int element_bytes(int of) {
    static const int bytes[] = {4, 2, 2, 1, 1, 8, 1, 1, 4, 1, 1, 1};
    return of >= 0 && of < 12 ? bytes[of] : 1;
}

/* Memory of so many elements and not a byte more, filled with drawn bytes; NULL once in a while. */
static void *memory(__int128 elements, int size) {
    if (one_in(40)) return NULL;
    if (elements > MOST / size) too_large = 1;
    const int one = too_large || nonsense || elements < 0;
    const ptrdiff_t lead = one_in(2) ? size : 0, bytes = one ? 1 : (ptrdiff_t)elements * size;
    CHECK(used_blocks < MOST_BLOCKS);
    char *start = malloc((size_t)(lead + bytes));
    CHECK(start);
    uint32_t state = (uint32_t)take(2);
    for (ptrdiff_t i = 0; i < lead + bytes; i++) state = state * 1664525u + 1013904223u, start[i] = (char)(state >> 24);
    blocks[used_blocks++] = start;
    return start + lead;
}

static __int128 spanned(ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n) {
    if (rows <= 0 || n <= 0) return 0;
    return (__int128)(rows - 1) * stride + n;
}

static void *row_memory(ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, int size) {
    return memory(stride < n ? 1 : spanned(rows, stride, n), size);
}

static float *floats(__int128 n) {
    float *x = memory(n, 4);
    const __int128 filled = too_large || nonsense || !x ? 0 : n;
    for (ptrdiff_t i = 0; i < filled; i++) x[i] = 0.25f + (float)(i % 7);
    return x;
}

static int32_t *integers(__int128 n, int low) {
    int32_t *x = memory(n, 4);
    const __int128 filled = too_large || nonsense || !x ? 0 : n;
    for (ptrdiff_t i = 0; i < filled; i++) x[i] = low + (int32_t)(i % 8);
    return x;
}

/* Mark the gaps between rows, and check the marks. */
static void gaps(char *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, int size, int marks) {
    if (!x || too_large || nonsense || stride <= n || n <= 0) return;
    for (ptrdiff_t row = 0; row + 1 < rows; row++)
        for (ptrdiff_t i = (row * stride + n) * size; i < (row + 1) * stride * size; i++) {
            if (marks) x[i] = (char)GAP;
            else CHECK((uint8_t)x[i] == GAP);
        }
}

static atomic_ullong done; /* calls that were not refused */

static void check_status(int status) {
    done += status == MP_CORE_OK;
    CHECK(status == MP_CORE_OK || status == MP_CORE_INVALID || status == MP_CORE_NO_MEMORY);
    CHECK(!nonsense || status == MP_CORE_INVALID);
}

/* ---- calls */

static void call_cast(void) {
    const ptrdiff_t n = count();
    const int from = type(), to = type();
    const void *src = memory(n, element_bytes(from));
    void *dst = memory(n, element_bytes(to));
    if (!too_large) check_status(mp_core_cast(n, from, src, to, dst, (int)take(1) % 2, threads()));
}

/* A matrix of any strides: the address of its first element. */
static void *strided(ptrdiff_t k, ptrdiff_t n, ptrdiff_t rs, ptrdiff_t cs, int size) {
    __int128 low = 0, high = 0;
    const __int128 ends[] = {((__int128)k - 1) * rs, ((__int128)n - 1) * cs};
    for (int i = 0; i < 2; i++) *(ends[i] < 0 ? &low : &high) += ends[i];
    char *start = memory(k > 0 && n > 0 ? high - low + 1 : 0, size);
    return start && !too_large && !nonsense && k > 0 && n > 0 ? start - (ptrdiff_t)low * size : start;
}

static ptrdiff_t element_stride(ptrdiff_t length) {
    const ptrdiff_t value = one_in(3) ? 1 : one_in(24) ? odd() : (ptrdiff_t)((uint64_t)length + take(1) % 5);
    return one_in(8) && value != PTRDIFF_MIN ? -value : value;
}

static void call_pack(void) {
    const int of = type();
    const ptrdiff_t k = count(), n = count(), rs = element_stride(n), cs = element_stride(k);
    const ptrdiff_t bytes = mp_core_packed_bytes(of, k, n);
    if (nonsense) CHECK(bytes == -1);
    const void *b = strided(k, n, rs, cs, element_bytes(of));
    void *packed = memory(bytes < 0 ? 1 : bytes / 4 + (bytes % 4 > 0), 4);
    if (!too_large) check_status(mp_core_pack(of, k, n, b, rs, cs, packed, threads()));
}

/* What mp_core_pack wrote of a drawn matrix; if the call is left out or must be refused, any bytes. */
static void *packed_memory(int of, ptrdiff_t k, ptrdiff_t n) {
    const ptrdiff_t bytes = mp_core_packed_bytes(of, k, n);
    void *packed = memory(bytes < 0 ? 1 : bytes / 4 + (bytes % 4 > 0), 4);
    const void *b = memory((__int128)k * n, element_bytes(of));
    if (!packed || too_large || nonsense) return packed;
    if (mp_core_pack(of, k, n, b, n, 1, packed, 1) != MP_CORE_OK) return NULL;
    return packed;
}

static void draw_operands(mp_core_product *p) {
    p->m = count(), p->n = count(), p->k = count();
    p->a_type = type(), p->b_type = type(), p->out_type = one_in(2) ? MP_CORE_FLOAT32 : type();
    if (one_in(2)) p->b_type = p->a_type;
    p->lda = row_stride(p->k), p->ldo = row_stride(p->n);
    p->a = row_memory(p->m, p->lda, p->k, element_bytes(p->a_type));
    p->out = row_memory(p->m, p->ldo, p->n, element_bytes(p->out_type));
    if (one_in(2)) {
        p->packed = packed_memory(p->b_type, p->k, p->n);
    } else {
        p->b_rs = element_stride(p->n), p->b_cs = element_stride(p->k);
        p->b = strided(p->k, p->n, p->b_rs, p->b_cs, element_bytes(p->b_type));
    }
}

static void draw_epilogue(mp_core_product *p) {
    if (one_in(4)) p->b_group = one_in(2) ? 8 : any();
    const ptrdiff_t groups = p->b_group > 0 && p->k > 0 ? (p->k - 1) / p->b_group + 1 : 1;
    if (one_in(2)) p->b_scale = floats((__int128)groups * p->n);
    if (one_in(4)) p->b_zero_point = integers(p->n, -4);
    p->quantize_a = one_in(4), p->a_shared = one_in(2);
    if (one_in(4)) p->a_scale = floats(p->a_shared ? 1 : p->m);
    if (one_in(4)) p->a_zero_point = integers(p->a_shared ? 1 : p->m, 0);
    if (one_in(3)) p->bias = floats(p->n);
    p->activation = one_in(2) ? 0 : number(8);
    if (one_in(4)) {
        p->residual_type = type(), p->ldr = row_stride(p->n);
        p->residual = row_memory(p->m, p->ldr, p->n, element_bytes(p->residual_type));
    } else if (one_in(8)) p->residual = p->out, p->residual_type = p->out_type, p->ldr = p->ldo;
}

static void call_multiply(void) {
    mp_core_product p = {.size = one_in(40) ? (size_t)take(1) : sizeof p};
    draw_operands(&p);
    draw_epilogue(&p);
    const int by = threads(), size = element_bytes(p.out_type);
    const ptrdiff_t bytes = mp_core_product_scratch(&p, by);
    if (nonsense) CHECK(bytes == -1);
    if (bytes < 0) {
        CHECK(mp_core_multiply(&p, NULL, by) == MP_CORE_INVALID);
        return;
    }
    if (too_large || bytes > 64 * MOST) return;
    void *scratch = one_in(2) ? NULL : aligned_alloc(64, ((size_t)bytes / 64 + 1) * 64);
    gaps(p.out, p.m, p.ldo, p.n, size, 1);
    check_status(mp_core_multiply(&p, scratch, by));
    if (p.residual != p.out) gaps(p.out, p.m, p.ldo, p.n, size, 0);
    free(scratch);
}

static void call_quantization(int forward) {
    mp_core_quantization q = {.size = one_in(40) ? (size_t)take(1) : sizeof q};
    q.rows = count(), q.cols = count(), q.x_type = one_in(2) ? number(3) : type(), q.q_type = type();
    q.scales = number(3), q.from = number(3);
    if (one_in(2)) q.group = one_in(2) ? 8 : any();
    const int halves = q.q_type >= MP_CORE_INT4 && q.q_type <= MP_CORE_FLOAT4_E2M1FN;
    const __int128 elements = q.rows > 0 && q.cols > 0 ? (__int128)q.rows * q.cols : 0;
    const ptrdiff_t along = q.scales == MP_CORE_ROW_SCALES ? q.cols : q.rows;
    const ptrdiff_t groups = q.group > 0 && along > 0 ? (along - 1) / q.group + 1 : 1;
    const ptrdiff_t others = q.scales == MP_CORE_ONE_SCALE ? 1 : q.scales == MP_CORE_ROW_SCALES ? q.rows : q.cols;
    q.x = memory(elements, element_bytes(q.x_type));
    q.q = memory(halves ? (elements + 1) / 2 : elements, element_bytes(q.q_type));
    q.scale = floats(q.scales == MP_CORE_ONE_SCALE ? 1 : (__int128)groups * others);
    if (one_in(2)) q.zero_point = integers(q.scales == MP_CORE_ONE_SCALE ? 1 : (__int128)groups * others, 0);
    if (too_large) return;
    check_status(forward ? mp_core_quantize(&q, threads()) : mp_core_dequantize(&q, threads()));
}

static void call_rows(int function) {
    mp_core_rows r = {.size = one_in(40) ? (size_t)take(1) : sizeof r};
    r.rows = count(), r.n = count(), r.type = one_in(2) ? number(5) : type();
    r.ldx = row_stride(r.n), r.ldo = row_stride(r.n);
    const int size = element_bytes(r.type), by = threads();
    r.x = row_memory(r.rows, r.ldx, r.n, size);
    r.out = r.ldx == r.ldo && one_in(4) ? (void *)r.x : row_memory(r.rows, r.ldo, r.n, size);
    const ptrdiff_t keep_stride = one_in(2) ? 0 : row_stride(r.n);
    const void *other = one_in(2) ? NULL : row_memory(r.rows, r.ldx, r.n, size);
    const ptrdiff_t keep_rows = keep_stride ? r.rows : 1, apart = keep_stride ? keep_stride : r.n;
    const uint8_t *keep = one_in(2) ? NULL : row_memory(keep_rows, apart, r.n, 1);
    const float *gamma = one_in(2) ? NULL : floats(r.n), *beta = one_in(2) ? NULL : floats(r.n);
    if (too_large) return;
    if (r.out != r.x) gaps(r.out, r.rows, r.ldo, r.n, size, 1);
    check_status(function == 0   ? mp_core_softmax(&r, 0.5f, keep, keep_stride, by)
                 : function == 1 ? mp_core_layer_norm(&r, other, gamma, beta, 1e-5f, by)
                 : function == 2 ? mp_core_rms_norm(&r, gamma, 1e-5f, by)
                                 : mp_core_activate(&r, number(8), by));
    if (r.out != r.x) gaps(r.out, r.rows, r.ldo, r.n, size, 0);
}

/* What the library is told and tells: no name but that of the set in use, as scratch is asked for with one set. */
static void call_settings(void) {
    static const char *const names[] = {"", "avx", "scalar\n", "neon ", "avx512_amx_x"};
    const int value = number(3) - 1, status = mp_core_set_reproducible(value);
    CHECK(status == (value == 0 || value == 1 ? MP_CORE_OK : MP_CORE_INVALID));
    CHECK(mp_core_is_reproducible() == 0 || mp_core_is_reproducible() == 1);
    CHECK(mp_core_set_isa(NULL) == MP_CORE_INVALID);
    CHECK(mp_core_set_isa(names[take(1) % 5]) == MP_CORE_BAD_ISA && mp_core_set_isa(mp_core_isa()) == MP_CORE_OK);
    CHECK(*mp_core_status_text(number(8)) && *mp_core_version() && mp_core_cpus() > 0);
    CHECK(mp_core_functions()->abi_version == MP_CORE_ABI_VERSION);
}

/* Structs and plans that are missing. */
static void call_nothing(void) {
    const int by = threads();
    CHECK(mp_core_product_scratch(NULL, by) == -1 && mp_core_multiply(NULL, NULL, by) == MP_CORE_INVALID);
    CHECK(mp_core_quantize(NULL, by) == MP_CORE_INVALID && mp_core_dequantize(NULL, by) == MP_CORE_INVALID);
    CHECK(mp_core_softmax(NULL, 1, NULL, 0, by) == MP_CORE_INVALID);
    CHECK(mp_core_layer_norm(NULL, NULL, NULL, NULL, 1, by) == MP_CORE_INVALID);
    CHECK(mp_core_rms_norm(NULL, NULL, 1, by) == MP_CORE_INVALID);
    CHECK(mp_core_activate(NULL, MP_CORE_RELU, by) == MP_CORE_INVALID);
    CHECK(mp_core_run_plan(NULL, NULL, NULL, by) == MP_CORE_INVALID);
    CHECK(mp_core_plan_bytes(NULL, number(2), number(3)) == -1);
}

/* ---- one case */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    at = data, end = data + size, too_large = nonsense = used_blocks = 0;
    const int function = (int)take(1) % 14;
    if (function == 0) call_cast();
    else if (function == 1) call_pack();
    else if (function < 6) call_multiply();
    else if (function < 8) call_quantization(function == 6);
    else if (function < 12) call_rows(function - 8);
    else if (function == 12) call_settings();
    else call_nothing();
    while (used_blocks) free(blocks[--used_blocks]);
    return 0;
}

#ifndef FUZZER
static uint64_t mixed(uint64_t x) { /* splitmix64 */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

enum { MOST_THREADS = 64 };
static atomic_ullong next;
static uint64_t last;

static void *cases(void *unused) {
    for (uint64_t number; (number = next++) < last;) {
        uint8_t bytes[256];
        for (uint64_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)mixed((number + 1) * 0x9E3779B97F4A7C15u + i);
        LLVMFuzzerTestOneInput(bytes, sizeof bytes);
    }
    return unused;
}

int main(int arguments, char **words) {
    const uint64_t first = arguments > 1 ? strtoull(words[1], NULL, 10) : 0;
    const uint64_t count = arguments > 2 ? strtoull(words[2], NULL, 10) : 10000;
    const int by = arguments > 3 ? atoi(words[3]) : 4;
    pthread_t threads[MOST_THREADS];
    CHECK(by >= 1 && by <= MOST_THREADS);
    next = first;
    last = first + count;
    for (int i = 0; i < by; i++) CHECK(!pthread_create(&threads[i], NULL, cases, NULL));
    for (int i = 0; i < by; i++) CHECK(!pthread_join(threads[i], NULL));
    printf("%llu calls, %llu not refused\n", (unsigned long long)count, (unsigned long long)done);
    return 0;
}
#endif
