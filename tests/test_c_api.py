"""The interfaces for C, C++ and Cython: projects built with the installed wheel, and the library without Python."""

import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

import c_functions as c
import ml_dtypes
import numpy as np
import processes
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.layers import Dense, LayerNormalization, Sequential

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs/examples"
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def run(*command, **options):
    found = processes.run(
        [*map(str, command)], capture_output=True, text=True, check=False, timeout=processes.LONG, **options
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def outside(wheel, tmp_path_factory):
    """A Python that has the wheel, NumPy, ml_dtypes and Cython, and knows nothing of this checkout."""
    folder = tmp_path_factory.mktemp("outside")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = Path(run(folder / "bin/python", "-c", "import sysconfig; print(sysconfig.get_path('platlib'), end='')"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text("\n".join({sysconfig.get_path(name) for name in ("purelib", "platlib")}))
    where = run(folder / "bin/python", "-c", "import mp_core; print(mp_core.__file__, end='')", cwd=folder)
    assert Path(where).is_relative_to(folder)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def build(outside, tmp_path_factory):
    """Build an example, copied to a folder of its own; return that folder."""

    def built(name, **variables):
        folder = tmp_path_factory.mktemp(name) / name
        shutil.copytree(EXAMPLES / name, folder)
        given = [f"{key}={value}" for key, value in variables.items()]
        run("make", f"PYTHON={outside}", *given, cwd=folder, env={"PATH": os.environ["PATH"]})
        return folder

    return built


@pytest.fixture(scope="module")
def module(build):
    """Build an example that is an extension module, and import it here: beside the package of this checkout."""

    def imported(name):
        (path,) = build(name).glob(f"{name}.*.so")
        spec = importlib.util.spec_from_file_location(name, path)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return imported


@pytest.fixture(scope="module")
def embed_c(module):
    return module("embed_c")


@pytest.fixture
def layer(embed_c, rng):
    """A layer (k, n) = (200, 130) in C, and its weights and bias."""
    weights, bias = rng.standard_normal((200, 130), np.float32), rng.standard_normal(130, np.float32)
    return embed_c.make_layer(weights, bias, 200, 130), weights, bias


def bits(x):
    return x.view(np.uint16)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("m", [1, 6, 64, 300])
def test_c_gives_the_bits_of_python(embed_c, layer, isa, m, threads, rng):
    held, weights, bias = layer
    x = mp.cast(rng.standard_normal((m, 200), np.float32), "bfloat16")
    out = np.empty((m, 130), BFLOAT16)
    embed_c.call(held, bits(x), bits(out), threads)
    packed = mp.pack(mp.cast(weights, "bfloat16"))
    np.testing.assert_array_equal(bits(out), bits(mp.matmul(x, packed, bias=bias, activation="gelu")))


def test_c_refuses_what_it_cannot_do(embed_c, layer):
    held, weights, bias = layer
    x, out = np.zeros((2, 200), np.uint16), np.zeros((2, 130), np.uint16)
    for threads in (0, -1, 1025):
        with pytest.raises(ValueError, match="an argument is not allowed"):
            embed_c.call(held, x, out, threads)
    with pytest.raises(ValueError, match="an argument is not allowed"):
        embed_c.make_layer(weights, bias, -200, -130)


def test_c_runs_a_plan(embed_c, rng):
    model = Sequential([Dense(64, activation="gelu"), LayerNormalization(), Dense(5)], dtype="float32")
    x = rng.standard_normal((9, 33), np.float32)
    plan = mp.compile(model, x)
    capsule, expected = plan.c_plan(), model(x)
    del plan  # the capsule is enough
    for threads in (1, 2, 3):
        out = np.full((9, 5), np.nan, np.float32)
        embed_c.run(capsule, x, out, threads)
        np.testing.assert_array_equal(out, expected)
    for wrong in (x[:8], np.ones((10, 33), np.float32)):
        with pytest.raises(ValueError, match="an argument is not allowed"):
            embed_c.run(capsule, wrong, out, 1)
    other = rng.standard_normal((9, 33), np.float32)
    embed_c.run(capsule, other, out, 2)
    np.testing.assert_array_equal(out, model(other))


class Gives(mp.layers.Layer):
    def __init__(self, outputs):
        super().__init__()
        self.outputs = outputs

    def call(self, inputs):
        return self.outputs(mp.relu(inputs))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda x: x[:, :2], r"an output of shape \(3, 2\) is a view"),
        (lambda x: (x, x), r"an output of shape \(3, 4\) is returned twice"),
        (lambda x: (x, np.ones(5)), r"an output of shape \(5,\) is the same for all inputs"),
    ],
    ids=["a view", "twice", "a constant"],
)
def test_an_output_without_an_array_of_its_own_is_refused(outputs, message, rng):
    plan = mp.compile(Gives(outputs), rng.standard_normal((3, 4), np.float32))
    with pytest.raises(ValueError, match=message):
        plan.c_plan()


def test_cython_gives_the_bits_of_python(module, rng):
    embed = module("embed_cython")
    x = rng.standard_normal((50, 70), np.float32)
    out = np.empty_like(x)
    embed.gate(x, out, 2.0)
    np.testing.assert_array_equal(out, mp.softmax(np.float32(0.5) * x))
    for by_column in (False, True):
        q = mp.quantize(x, axis=int(by_column))
        y, codes, scale = x.copy(), np.empty(x.shape, np.int8), np.empty(x.shape[by_column], np.float32)
        embed.round_trip(y, codes, scale, by_column, 2)
        np.testing.assert_array_equal(codes, q.values)
        np.testing.assert_array_equal(scale, q.scale.reshape(-1))
        np.testing.assert_array_equal(y, mp.dequantize(q))
    with pytest.raises(ValueError, match="`out` must have the shape"):
        embed.gate(x, out[:3], 1.0)


def numbers_of(program, x, weights):
    (m, k), n = x.shape, weights.shape[1]
    found = processes.run(
        [program, str(m), str(k), str(n), "2"], input=x.tobytes() + weights.tobytes(), capture_output=True, check=True
    )
    return np.frombuffer(found.stdout, np.float32).reshape(m, n)


def test_cpp_without_python_gives_the_bits_of_python(build, rng):
    shutil.which("g++") or pytest.skip("needs a C++ compiler")
    program = build("embed_cpp") / "embed_cpp"
    x, weights = rng.standard_normal((33, 200), np.float32), rng.standard_normal((200, 130), np.float32)
    expected = mp.dynamic_matmul(x, mp.pack(mp.quantize(weights, axis=1)))
    np.testing.assert_array_equal(numbers_of(program, x, weights), expected)
    refused = processes.run([program, "1", "0", "4", "0"], input=b"", capture_output=True, check=False)
    assert refused.returncode == 1 and b"an argument is not allowed" in refused.stderr


# ---- versions

TABLE = """
#include <Python.h>
#include <mp_core.h>
static const char *version(void) {{ return "9.9"; }}
static const mp_core_table table = {{{abi}, {api}, version}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "other", NULL, -1}};
PyMODINIT_FUNC PyInit_other(void) {{
    PyObject *m = PyModule_Create(&module);
    PyModule_AddObject(m, "_C_API", PyCapsule_New((void *)&table, "mp_core.core._C_API", NULL));
    return m;
}}
"""


@pytest.mark.parametrize(
    ("abi", "api", "message"),
    [
        (2, 2, "compiled for version 1 of the ABI of mp_core, and mp_core 9.9 has version 2: compile the module again"),
        (1, 1, "needs version 2 of the C API of mp_core, and mp_core 9.9 has version 1: install a newer mp_core"),
        (1, 7, None),
    ],
    ids=["another ABI", "older", "newer"],
)
def test_another_table_is_a_clear_error(build, outside, abi, api, message, tmp_path):
    (path,) = build("embed_c").glob("embed_c.*.so")
    (tmp_path / "other.c").write_text(TABLE.format(abi=abi, api=api))
    flags = [f"-I{sysconfig.get_path('include')}", f"-I{mp.get_include()}"]
    run("cc", "-shared", "-fPIC", *flags, tmp_path / "other.c", "-o", tmp_path / "other.so")
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(path.parent)!r}]
import mp_core.core, other
mp_core.core._C_API = other._C_API
try:
    import embed_c
except ImportError as error:
    print(error, end="")
"""
    said = run(outside, "-c", code, cwd=tmp_path)
    assert said == "" if message is None else message in said


# ---- the plain library


@pytest.mark.compiles
def test_the_plain_library_passes_its_tests_in_c(tmp_path):
    environment = os.environ | {"PATH": TOOLS}
    folder = tmp_path / "build"
    options = ["-Dpython=false", "-Disas=scalar", f"--prefix={tmp_path / 'prefix'}", "--libdir=lib"]
    run("meson", "setup", *options, folder, ROOT, env=environment)
    run("meson", "test", "-C", folder, env=environment)
    run("meson", "install", "--no-rebuild", "-C", folder, env=environment)
    prefix = tmp_path / "prefix"
    found = sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file())
    names = ["libmp_core.a", "libmp_core.so", "libmp_core.so.1", "pkgconfig/mp_core.pc"]
    assert found == ["include/mp_core.h", *(f"lib/{name}" for name in names)]
    exported = {
        line.split()[2] for line in run("nm", "-D", "--defined-only", prefix / "lib/libmp_core.so").splitlines()
    }
    assert exported and all(name.startswith("mp_core_") for name in exported)
    needed = run("ldd", prefix / "lib/libmp_core.so")
    assert "python" not in needed


def test_header_and_declarations_for_cython_name_the_same():
    header = Path(mp.get_include(), "mp_core.h").read_text()
    declared = (ROOT / "mp_core/core/__init__.pxd").read_text()
    constants = re.findall(r"^    (MP_CORE_\w+) = ", header, re.MULTILINE)
    assert len(constants) == 32 and all(re.search(rf"\b{name}\b", declared) for name in constants)
    table = header.split("typedef struct mp_core_table {")[1].split("}")[0]
    functions = re.compile(r"\(\*(\w+)\)\(")
    assert functions.findall(table) == functions.findall(declared)


# ---- counts and strides

BEYOND = 2**50 + 1  # elements: more than any call takes
HOSTILE = [-1, -(2**63), BEYOND, 2**61, 2**62, 2**63 - 1]
X, OUT = np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)
KEEP, CODES, SCALES = np.ones((4, 6), np.uint8), np.zeros((4, 6), np.int8), np.zeros(24, np.float32)


def rows(**changed):
    return c.described(c.Rows, **{"rows": 4, "n": 6, "type": 0, "x": X, "ldx": 6, "out": OUT, "ldo": 6} | changed)


def softmax(keep_stride=6, **changed):
    return c.call("softmax", rows(**changed), 1.0, KEEP, keep_stride, 1)


def product(**changed):
    fields = {"m": 4, "n": 6, "k": 4, "a": X, "lda": 4, "b": X, "b_rs": 6, "b_cs": 1, "out": OUT, "ldo": 6}
    return c.described(c.Product, **fields | {"residual": X, "ldr": 6} | changed)


def multiply(**changed):
    return c.call("multiply", product(**changed), None, 1)


def quantization(name):
    def called(**changed):
        fields = {"rows": 4, "cols": 6, "x_type": 0, "q_type": c.TYPES["int8"], "x": X, "q": CODES, "scale": SCALES}
        return c.call(name, c.described(c.Quantization, scales=1, **fields | changed), 1)

    return called


def pack(k=4, n=6, rs=6, cs=1):
    return c.call("pack", 0, k, n, X, rs, cs, PACKED, 1)


PACKED = np.zeros(c.call("packed_bytes", 0, 4, 6), np.uint8)
COUNTED = {
    "softmax": (softmax, ["rows", "n", "ldx", "ldo", "keep_stride"]),
    "layer_norm": (
        lambda **to: c.call("layer_norm", rows(**to), None, None, None, 1.0, 1),
        ["rows", "n", "ldx", "ldo"],
    ),
    "rms_norm": (lambda **to: c.call("rms_norm", rows(**to), None, 1.0, 1), ["rows", "n", "ldx", "ldo"]),
    "activate": (lambda **to: c.call("activate", rows(**to), 1, 1), ["rows", "n", "ldx", "ldo"]),
    "multiply": (multiply, ["m", "n", "k", "lda", "ldo", "ldr", "b_rs", "b_cs"]),
    "product_scratch": (
        lambda **to: c.call("product_scratch", product(**to), 1),
        ["m", "n", "k", "lda", "ldo", "ldr", "b_rs", "b_cs"],
    ),
    "quantize": (quantization("quantize"), ["rows", "cols"]),
    "dequantize": (quantization("dequantize"), ["rows", "cols"]),
    "pack": (pack, ["k", "n", "rs", "cs"]),
    "packed_bytes": (lambda k=4, n=6: c.call("packed_bytes", 0, k, n), ["k", "n"]),
    "cast": (lambda n=6: c.call("cast", n, 0, X, 1, OUT, 0, 1), ["n"]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counts_and_strides_that_cannot_be_are_refused_before_anything_is_written(name):
    call, fields = COUNTED[name]
    refusal = -1 if name in ("product_scratch", "packed_bytes") else c.INVALID
    assert call() != refusal
    before = [part.copy() for part in (OUT, CODES, SCALES, PACKED)]
    for field in fields:
        may_go_back = field in ("rs", "cs", "b_rs", "b_cs")
        for value in HOSTILE[may_go_back:]:
            assert call(**{field: value}) == refusal, (field, value)
    for part, kept in zip((OUT, CODES, SCALES, PACKED), before, strict=True):
        np.testing.assert_array_equal(part, kept)


def test_strides_count_with_their_rows():
    """Each is below the largest count, and their product is not."""
    for name in ("softmax", "layer_norm", "rms_norm", "activate"):
        call, fields = COUNTED[name]
        for field in (field for field in fields if field.endswith(("ldx", "ldo", "stride"))):
            assert call(**{field: 2**49}) == c.INVALID
    for field in ("lda", "ldo", "ldr", "b_rs"):
        assert multiply(**{field: 2**49}) == c.INVALID
    assert quantization("quantize")(rows=2**26, cols=2**26) == c.INVALID


def test_counts_of_nothing_write_nothing():
    for name, field in (
        ("softmax", "rows"),
        ("rms_norm", "n"),
        ("activate", "rows"),
        ("quantize", "rows"),
        ("cast", "n"),
    ):
        assert COUNTED[name][0](**{field: 0}) == c.OK


NO_STRUCT = {
    "softmax": lambda struct: c.call("softmax", struct, 1.0, None, 0, 1),
    "layer_norm": lambda struct: c.call("layer_norm", struct, None, None, None, 1.0, 1),
    "rms_norm": lambda struct: c.call("rms_norm", struct, None, 1.0, 1),
    "activate": lambda struct: c.call("activate", struct, 1, 1),
    "multiply": lambda struct: c.call("multiply", struct, None, 1),
    "product_scratch": lambda struct: c.call("product_scratch", struct, 1),
    "quantize": lambda struct: c.call("quantize", struct, 1),
    "dequantize": lambda struct: c.call("dequantize", struct, 1),
}


@pytest.mark.parametrize("name", NO_STRUCT)
def test_a_struct_that_is_missing_or_of_another_size_is_refused(name):
    call, refusal = NO_STRUCT[name], -1 if name == "product_scratch" else c.INVALID
    made = {"multiply": product, "product_scratch": product}.get(name, rows)
    if name.endswith("quantize"):
        fields = {"rows": 4, "cols": 6, "x_type": 0, "q_type": c.TYPES["int8"], "x": X, "q": CODES, "scale": SCALES}

        def made():
            return c.described(c.Quantization, scales=1, **fields)

    assert call(made()) != refusal and call(None) == refusal
    for change in (-8, -1, 1, 8, 2**62):
        struct = made()
        struct.size += change
        assert call(struct) == refusal
    struct.size = 0
    assert call(struct) == refusal


@pytest.mark.parametrize("threads", [0, -1, 1025, 2**31 - 1, -(2**31)])
def test_numbers_of_threads_that_cannot_be_are_refused(threads):
    assert c.call("multiply", product(), None, threads) == c.INVALID
    assert c.call("softmax", rows(), 1.0, None, 0, threads) == c.INVALID
    assert c.call("cast", 6, 0, X, 1, OUT, 0, threads) == c.INVALID
    assert c.call("product_scratch", product(), threads) == -1


@pytest.mark.parametrize("quantize_a", [0, 1])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxint8"])
def test_products_with_microscaling_formats_have_the_bits_of_python(name, quantize_a, rng):
    m, k, n = 5, 96, 70
    q = mp.quantize(rng.standard_normal((k, n)).astype(np.float32), axis=1, dtype=name)
    b_type = c.TYPES[q.dtype.name]
    packed = np.zeros(c.call("packed_bytes", b_type, k, n), np.uint8)
    codes = np.ascontiguousarray(mp.pack(q).unpack()).view(np.uint8)
    assert c.call("pack", b_type, k, n, codes, n, 1, packed, 1) == c.OK
    a, out = rng.standard_normal((m, k)).astype(np.float32), np.zeros((m, n), np.float32)
    fields = {"m": m, "n": n, "k": k, "b_type": b_type, "a": a, "lda": k, "packed": packed, "out": out, "ldo": n}
    call = c.described(c.Product, **fields, b_scale=q.scale, b_group=q.group_size, quantize_a=quantize_a)
    assert c.call("multiply", call, None, 1) == c.OK
    assert_same_bits(out, (mp.dynamic_matmul if quantize_a else mp.matmul)(a, mp.pack(q)))
    call.b_group = 0
    assert c.call("multiply", call, None, 1) == (c.INVALID if quantize_a and "fp4" in name else c.OK)


def test_float4_is_quantized_as_in_python(rng):
    x = rng.standard_normal((6, 64)).astype(np.float32)
    codes, scale = np.zeros((6, 32), np.uint8), np.zeros((6, 2), np.float32)
    fields = {"rows": 6, "cols": 64, "x": x, "q": codes, "scale": scale, "q_type": c.TYPES["float4_e2m1fn"]}
    call = c.described(c.Quantization, **fields, scales=1, group=32)
    assert c.call("quantize", call, 1) == c.OK
    expected = mp.quantize(x, axis=0, group_size=32, dtype="float4_e2m1fn")
    assert_same_bits(codes, expected.values)
    assert_same_bits(scale, expected.scale)
    assert c.call("dequantize", call, 1) == c.OK
    assert_same_bits(x, mp.dequantize(expected))
    call.zero_point = codes.ctypes.data
    assert c.call("quantize", call, 1) == c.INVALID
