/* An extension module in C that multiplies with the kernels of mp_core: one layer, gelu(x @ weight + bias), with
 * packed bfloat16 weights. */
#include <Python.h>
#include <mp_core_python.h>
#include <time.h>

/* ---- a layer, owned by a capsule */

typedef struct {
    ptrdiff_t k, n;
    float *bias;
    void *packed;
} layer;

static void free_layer(layer *l) {
    if (!l) return;
    free(l->packed);
    free(l->bias);
    free(l);
}

static void free_capsule(PyObject *capsule) { free_layer(PyCapsule_GetPointer(capsule, "embed_c.layer")); }

/* Raise the error of a status; return NULL. */
static PyObject *failed(int status) {
    PyErr_SetString(status == MP_CORE_NO_MEMORY ? PyExc_MemoryError : PyExc_ValueError,
                    mp_core_api->status_text(status));
    return NULL;
}

/* Cast float32 weights (k, n) to bfloat16 and pack them. */
static int pack_weights(layer *l, const float *weights) {
    uint16_t *narrow = malloc((size_t)(l->k * l->n) * sizeof(uint16_t) + 1);
    int status = narrow ? MP_CORE_OK : MP_CORE_NO_MEMORY;
    if (!status)
        status = mp_core_api->cast(l->k * l->n, MP_CORE_FLOAT32, weights, MP_CORE_BFLOAT16, narrow, 0, 1);
    if (!status) status = mp_core_api->pack(MP_CORE_BFLOAT16, l->k, l->n, narrow, l->n, 1, l->packed, 1);
    free(narrow);
    return status;
}

static PyObject *make_layer(PyObject *self, PyObject *args) {
    Py_buffer weights, bias;
    Py_ssize_t k, n;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*nn", &weights, &bias, &k, &n)) return NULL;
    layer *l = calloc(1, sizeof(layer));
    const ptrdiff_t bytes = mp_core_api->packed_bytes(MP_CORE_BFLOAT16, k, n);
    int status = MP_CORE_INVALID;
    if (l && bytes >= 0 && weights.len == k * n * 4 && bias.len == n * 4) {
        l->k = k, l->n = n;
        l->packed = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
        l->bias = malloc((size_t)bias.len + 1);
        status = MP_CORE_NO_MEMORY;
        if (l->packed && l->bias) {
            memcpy(l->bias, bias.buf, (size_t)bias.len);
            status = pack_weights(l, weights.buf);
        }
    }
    PyBuffer_Release(&weights);
    PyBuffer_Release(&bias);
    if (!status) return PyCapsule_New(l, "embed_c.layer", free_capsule);
    free_layer(l);
    return failed(status);
}

/* ---- its calls */

static mp_core_product product_of(const layer *l, const void *x, void *out, ptrdiff_t m) {
    mp_core_product p = {.size = sizeof(p)};
    p.m = m, p.n = l->n, p.k = l->k;
    p.a_type = p.b_type = p.out_type = MP_CORE_BFLOAT16;
    p.a = x, p.lda = l->k, p.packed = l->packed, p.out = out, p.ldo = l->n;
    p.bias = l->bias, p.activation = MP_CORE_GELU;
    return p;
}

/* call(layer, x, out, threads): x and out are bytes of bfloat16. Scratch is the caller's. */
static PyObject *call(PyObject *self, PyObject *args) {
    PyObject *capsule;
    Py_buffer x, out;
    int threads, status = MP_CORE_INVALID;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*w*i", &capsule, &x, &out, &threads)) return NULL;
    const layer *l = PyCapsule_GetPointer(capsule, "embed_c.layer");
    const ptrdiff_t m = l && l->k ? x.len / (l->k * 2) : 0;
    if (l && x.len == m * l->k * 2 && out.len == m * l->n * 2) {
        const mp_core_product p = product_of(l, x.buf, out.buf, m);
        Py_BEGIN_ALLOW_THREADS
        const ptrdiff_t bytes = mp_core_api->product_scratch(&p, threads);
        void *scratch = bytes > 0 ? aligned_alloc(64, (size_t)bytes) : NULL;
        status = bytes > 0 && !scratch ? MP_CORE_NO_MEMORY : mp_core_api->multiply(&p, scratch, threads);
        free(scratch);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    return status ? failed(status) : Py_NewRef(Py_None);
}

/* run(plan, x, out, threads): plan is the result of plan.c_plan(), with one input and one output. */
static PyObject *run(PyObject *self, PyObject *args) {
    PyObject *capsule;
    Py_buffer x, out;
    int threads, status;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy*w*i", &capsule, &x, &out, &threads)) return NULL;
    mp_core_plan *plan = PyCapsule_GetPointer(capsule, "mp_core.plan");
    const void *inputs[] = {x.buf};
    void *outputs[] = {out.buf};
    const int fits = plan && mp_core_api->plan_bytes(plan, 0, 0) == x.len
                     && mp_core_api->plan_bytes(plan, 1, 0) == out.len && mp_core_api->plan_bytes(plan, 0, 1) < 0
                     && mp_core_api->plan_bytes(plan, 1, 1) < 0;
    Py_BEGIN_ALLOW_THREADS
    status = fits ? mp_core_api->run_plan(plan, inputs, outputs, threads) : MP_CORE_INVALID;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&x);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) return NULL;
    return status ? failed(status) : Py_NewRef(Py_None);
}

/* nanoseconds(layer, repeats): the time of one call with one row. */
static PyObject *nanoseconds(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int repeats;
    struct timespec begin, end;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oi", &capsule, &repeats)) return NULL;
    const layer *l = PyCapsule_GetPointer(capsule, "embed_c.layer");
    if (!l) return NULL;
    void *x = calloc((size_t)l->k + 1, 2), *out = calloc((size_t)l->n + 1, 2);
    mp_core_product p = product_of(l, x, out, 1);
    p.bias = NULL, p.activation = MP_CORE_LINEAR;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; x && out && i < repeats; i++) mp_core_api->multiply(&p, NULL, 1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    free(x);
    free(out);
    return PyFloat_FromDouble(((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec))
                              / repeats);
}

static PyMethodDef methods[] = {
    {"make_layer", make_layer, METH_VARARGS, "make_layer(weights, bias, k, n): pack float32 weights as bfloat16."},
    {"call", call, METH_VARARGS, "call(layer, x, out, threads): out = gelu(x @ weights + bias), in bfloat16."},
    {"run", run, METH_VARARGS, "run(plan, x, out, threads): run a plan of mp_core."},
    {"nanoseconds", nanoseconds, METH_VARARGS, "nanoseconds(layer, repeats): of a call with one row."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "embed_c", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_embed_c(void) {
    if (import_mp_core() < 0) return NULL;
    return PyModule_Create(&module);
}
