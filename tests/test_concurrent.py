"""Eight Python threads at once: each gets the same bits as alone, and leaves nothing behind."""

import os
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import processes
import pytest
from fuzz.held import held
from oracles import assert_same_bits

import mp_core as mp
from mp_core import config, layers
from mp_core.dtype_policies import DTypePolicyMap, policy_scope
from mp_core.utilities.tree import leaves

CALLERS = 8
TEAMS = pytest.mark.parametrize("team", [1, 3])


def together(function, callers=CALLERS):
    """Return function(index) of threads that start at once; the error of one is raised here."""
    gate = threading.Barrier(callers)

    def run(index):
        gate.wait(60)
        return function(index)

    with ThreadPoolExecutor(callers) as pool:
        return list(pool.map(run, range(callers)))


def assert_all_same(results, expected):
    for result in results:
        for actual, wanted in zip(leaves(result), leaves(expected), strict=True):
            assert_same_bits(actual, wanted)


def parts(q):
    return [part for part in (q.values, q.scale, q.zero_point) if part is not None]


@pytest.fixture
def operations(rng):
    """Name -> operation, each large enough for a team of threads; every kind of shared and of per-thread memory."""
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((130, 256), (256, 200)))
    x = rng.standard_normal((130, 2100)).astype(np.float32)
    batch = rng.standard_normal((6, 70, 64)).astype(np.float32)
    bias, h, e = rng.standard_normal(200).astype(np.float32), mp.cast(a, "float16"), mp.cast(b, "bfloat16")
    narrow = mp.cast(x, "bfloat16")
    codes = rng.integers(-128, 128, a.shape, np.int8)
    packed, int8 = mp.pack(e), mp.pack(mp.quantize(b, axis=1))
    int4 = mp.pack(mp.quantize(b, dtype="int4", axis=1, group_size=32))
    q = mp.quantize(x, axis=0)
    return {
        "wide": lambda: mp.matmul(a, b),
        "narrow": lambda: mp.matmul(h, mp.cast(b, "float16")),
        "packed": lambda: mp.matmul(e.T, mp.pack(mp.cast(b[:, ::-1], "bfloat16"))),
        "epilogue": lambda: mp.matmul(e.T, packed, bias=bias, activation="gelu", residual=e[:200]),
        "batched": lambda: mp.matmul(batch, batch.transpose(0, 2, 1)),
        "einsum": lambda: mp.einsum("abc,dbc->ad", batch, batch),
        "integers": lambda: mp.matmul(codes, codes.T),
        "dynamic": lambda: mp.dynamic_matmul(a, int8, bias=bias, activation="relu"),
        "int4": lambda: mp.matmul(h, int4),
        "unpack": lambda: mp.pack(b, dtype="float8_e4m3fn").unpack(),
        "cast": lambda: [
            mp.cast(x, "bfloat16"),
            mp.cast(x[:, ::2], "float8_e5m2"),
            mp.cast(x.astype(float), "float16"),
        ],
        "quantize": lambda: [parts(mp.quantize(x, axis=axis)) for axis in (None, 0, 1)],
        "asymmetric": lambda: parts(mp.quantize(narrow, dtype="uint8", axis=1, symmetric=False)),
        "groups": lambda: parts(mp.quantize(x, dtype="int4", axis=0, group_size=30)),
        "dequantize": lambda: mp.dequantize(q, "bfloat16"),
        "attention": lambda: mp.dot_product_attention(*(narrow[:96].reshape(2, 48, 3, -1),) * 3, is_causal=True),
        "rows": lambda: [mp.softmax(narrow), mp.layer_norm(narrow), mp.gelu(narrow)],
    }


@TEAMS
def test_all_operations_by_all_callers(operations, team):
    with config.num_threads(1):
        expected = {name: run() for name, run in operations.items()}

    def caller(index):
        order = [*operations][index:] + [*operations][:index]  # everyone begins elsewhere
        with config.num_threads(team):
            return {name: operations[name]() for name in order + order[::-1]}

    for results in together(caller):
        for name, result in results.items():
            assert_all_same([result], expected[name])


@TEAMS
def test_one_operation_by_all_callers(operations, team):
    for run in operations.values():
        with config.num_threads(1):
            expected = run()

        def caller(_, run=run):
            with config.num_threads(team):
                return [run() for _ in range(3)]

        assert_all_same(together(caller), [expected] * 3)


@pytest.mark.usefixtures("reproducible")
def test_the_instruction_set_may_change_meanwhile(operations):
    before, done = config.isa(), threading.Event()
    expected = {name: run() for name, run in operations.items()}

    def switch():
        while not done.wait(0.0005):
            for isa in config.available_isas():
                config.set_isa(isa)

    switcher = threading.Thread(target=switch)
    switcher.start()
    try:
        results = together(lambda _: {name: run() for name, run in operations.items()})
    finally:
        done.set()
        switcher.join()
        config.set_isa(before)
    assert_all_same(results, expected)


# ---- layers


def model(policy="mixed_bfloat16"):
    return layers.Sequential(
        [layers.Dense(96, activation="gelu", dtype=policy), layers.LayerNormalization(dtype=policy),
         layers.EinsumDense("ab,bc->ac", 64, bias_axes="c", dtype=policy), layers.Dense(64, dtype=policy)],
        dtype=policy,
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_the_first_call_builds_once(policy, rng):
    x = rng.standard_normal((20, 48)).astype(np.float32)
    for _ in range(5):
        stack = model(policy)
        results = together(lambda _, stack=stack: stack(x))
        assert len(stack.weights) == 8 and len({w.name for w in stack.layers[0].weights}) == 2
        assert_all_same(results, stack(x))


@pytest.mark.parametrize("mode", [None, "int8", "int8/weight_only", "int4/32", "float8"])
def test_the_first_call_packs_for_all(mode, rng):
    """The kernels are packed, the biases widened at the first call of a layer whose weights are new."""
    x, built = rng.standard_normal((20, 48)).astype(np.float32), model()
    built(x)
    policy = "mixed_bfloat16" if mode is None else f"{mode}_from_mixed_bfloat16"
    expected = built.with_policy(policy)(x)
    for _ in range(5):
        copy = built.with_policy(policy)
        assert_all_same(together(lambda _, copy=copy: [copy(x), copy(x)]), [expected, expected])


def test_attention(rng):
    layer = layers.MultiHeadAttention(4, 16, dtype="mixed_bfloat16")
    x = rng.standard_normal((2, 40, 64)).astype(np.float32)
    assert_all_same(together(lambda _: layer(x, x, use_causal_mask=True)), layer(x, x, use_causal_mask=True))


def test_the_first_call_computes_as_the_others(rng):
    """Also where the path, known from the first call on, gives the layer another policy than the map's default."""
    layer = layers.Dense(8, name="fine", dtype=DTypePolicyMap("float16", {"fine": "float32"}))
    x = rng.standard_normal((5, 16)).astype(np.float32)
    assert_all_same(together(lambda _: layer(x)), layer(x))


def test_policies_and_scopes_of_callers(rng):
    names = ("float32", "mixed_float16", "mixed_bfloat16", "bfloat16")
    x = rng.standard_normal((9, 16)).astype(np.float32)

    def caller(index):
        with policy_scope(names[index % 4]):
            dense = layers.Dense(32, kernel_initializer="ones")
            return [dense(x) for _ in range(5)]

    expected = [caller(index) for index in range(4)]
    for index, result in enumerate(together(caller)):
        assert_all_same([result], expected[index % 4])


def test_layers_of_all_callers_have_names_of_their_own():
    made = together(lambda _: [layers.Activation("relu").name for _ in range(200)])
    assert len({name for names in made for name in names}) == 200 * CALLERS


def test_a_call_sees_a_kernel_or_the_next_one():
    x, dense = np.eye(32, dtype=np.float32), layers.Dense(32, dtype="mixed_bfloat16", kernel_initializer="ones")
    dense(x)
    stop = threading.Event()

    def caller(index):
        mixed = 0
        try:
            for number in range(0 if index else 100):
                dense.kernel.assign(np.full((32, 32), number))
        finally:
            if not index:
                stop.set()
        while not stop.is_set():
            output = dense(x)
            mixed += (output != output[0, 0]).any()
        return mixed

    assert together(caller) == [0] * CALLERS
    assert (dense(x) == 99).all()


# ---- what is left behind


@pytest.mark.slow
@pytest.mark.skipif(not held().malloc, reason="needs mallinfo2 of the GNU C library")
def test_scratch_ends_with_its_thread():
    """Bytes of malloc, not resident ones: glibc keeps pages that a thread has freed."""
    x = np.zeros((2, 1 << 22), "bfloat16")  # rows of 32 MB in float32, source and result

    def call(_):
        with config.num_threads(1):
            mp.softmax(x, out=x)

    together(call, 1)
    before = held().malloc
    for _ in range(8):
        together(call, 1)
    assert held().malloc - before < 1e6


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded interpreter")
def test_the_lock_stays_off():
    """An extension module that does not say that it can do without would turn it on for the whole process."""
    root = Path(__file__).parents[1]
    paths = [path.with_suffix("") for path in (root / "mp_core").rglob("*.pyx")]
    modules = [".".join(path.relative_to(root).parts) for path in paths]
    code = f"import sys, {', '.join(modules)}; sys.exit(sys._is_gil_enabled())"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    assert processes.run([sys.executable, "-W", "error", "-c", code], env=environment).returncode == 0
