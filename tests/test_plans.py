"""Plans: the bits of the layer, for any number of threads, and errors that name what a plan cannot record."""

import gc
import os
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import random_models

import mp_core as mp
from mp_core import ops
from mp_core.layers import (
    Activation,
    Conv2D,
    Conv2DTranspose,
    Dense,
    Dropout,
    EinsumDense,
    Embedding,
    Layer,
    LayerNormalization,
    MultiHeadAttention,
    Sequential,
    Softmax,
)
from mp_core.layers.plans.arena import Arenas, place
from mp_core.models import TextNetwork
from mp_core.plans import UnseenError

RNG = np.random.default_rng(0)
FLOATS = ("float32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")
LAYERS = {
    "dense": (lambda **k: Dense(5, "gelu", **k), (3, 7)),
    "dense without a fused activation": (lambda **k: Dense(5, "softmax", **k), (2, 3, 7)),
    "einsum": (lambda **k: EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", **k), (2, 3, 8)),
    "einsum that permutes": (lambda **k: EinsumDense("abc,cd->adb", (6, None), **k), (2, 3, 8)),
    "layer norm": (lambda **k: LayerNormalization(**k), (2, 3, 8)),
    "layer norm of two axes": (lambda **k: LayerNormalization(axis=[1, 2], **k), (2, 3, 8)),
    "layer norm of another axis": (lambda **k: LayerNormalization(axis=1, **k), (2, 3, 8)),
    "softmax": (lambda **k: Softmax(**k), (2, 3, 8)),
    "softmax of another axis": (lambda **k: Softmax(axis=1, **k), (2, 3, 8)),
    "softmax of two axes": (lambda **k: Softmax(axis=[1, 2], **k), (2, 3, 8)),
    "convolution": (lambda **k: Conv2D(4, 3, strides=2, **k), (2, 6, 7, 3)),
    "convolution with zeros around": (lambda **k: Conv2D(4, 3, padding="same", activation="relu", **k), (2, 6, 7, 3)),
    "transposed convolution": (lambda **k: Conv2DTranspose(4, 3, strides=2, padding="same", **k), (2, 6, 7, 3)),
    "transposed convolution with zeros behind": (lambda **k: Conv2DTranspose(4, 1, strides=3, **k), (2, 3, 2, 3)),
    "convolution of channels first": (lambda **k: Conv2D(4, 3, data_format="channels_first", **k), (2, 3, 6, 7)),
    "activation": (lambda **k: Activation("tanh", **k), (2, 5, 8)),
    "nothing": (lambda **k: Dropout(0.1, **k), (2, 5, 8)),
    "a stack": (
        lambda **k: Sequential([Dense(16, "silu", **k), LayerNormalization(**k), Dense(4, **k), Softmax(**k)]),
        (9, 6),
    ),
}


def same(plan, layer, *inputs, **options):
    found, expected = plan(*inputs, **options), layer(*inputs, **options)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("make", LAYERS)
def test_a_plan_gives_the_bits_of_the_layer(make, dtype):
    layer, shape = LAYERS[make][0](dtype=dtype), LAYERS[make][1]
    plan = mp.compile(layer, RNG.standard_normal(shape).astype(np.float32))
    for threads in (1, 2, 5):
        with mp.config.num_threads(threads):
            same(plan, layer, RNG.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("policy", ["int8_from_mixed_bfloat16", "int8/weight_only_from_float32",
                                    "int8/weight_only/8_from_bfloat16", "int4/8_from_float32",
                                    "float8_e4m3fn_from_float32"])  # fmt: skip
def test_quantized_products_give_the_bits_of_the_layer(policy):
    layer = Dense(24)
    layer.build((None, 16))
    layer = layer.with_policy(policy)
    same(mp.compile(layer, np.ones((5, 16), np.float32)), layer, RNG.standard_normal((5, 16)).astype(np.float32))


@pytest.mark.parametrize("policy", [*FLOATS, *(f"{scheme}_from_mixed_bfloat16" for scheme in (
    "int8", "int8/tensor", "int8/weight_only/4", "int4/4", "int4/8", "float8_e4m3fn", "float8_e5m2/8"))])  # fmt: skip
def test_a_table_is_looked_up_anew(policy):
    layer = Embedding(11, 6)
    layer.build()
    layer = layer.with_policy(policy) if "_from_" in policy else Embedding(11, 6, dtype=policy)
    plan = mp.compile(layer, np.array([[1, 2], [3, 4]]))
    for kind in (np.int64, np.int32, np.uint32):
        same(plan, layer, np.array([[10, 0], [3, 3]], kind))
    for wrong in (11, -1, 2**31 - 1):
        with pytest.raises(IndexError, match="table"):
            plan(np.array([[1, 2], [3, wrong]]))
    same(plan, layer, np.array([[10, 0], [3, 3]]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_takes_masks_as_inputs(dtype):
    layer = MultiHeadAttention(2, 4, dtype=dtype)
    x, y = (RNG.standard_normal((2, n, 8)).astype(np.float32) for n in (5, 6))
    mask = np.array([[1, 1, 1, 0, 0, 1]] * 2, bool)
    plan = mp.compile(layer, x, y, value_mask=mask)
    same(plan, layer, -x, 2 * y, value_mask=~mask)
    causal = mp.compile(layer, x, y, use_causal_mask=True)
    np.testing.assert_array_equal(causal(-x, 2 * y), layer(-x, 2 * y, use_causal_mask=True))


@pytest.mark.parametrize("name", random_models.PLANNED)
@pytest.mark.parametrize("masked", [False, True])
def test_a_network_gives_the_bits_of_its_calls(name, masked):
    model = TextNetwork(random_models.made(name).config.to_dict())
    model.build((None, None))
    model.set_weights([RNG.standard_normal(weight.shape) * 0.2 for weight in model.get_weights()])
    options = {"mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], bool)} if masked else {}
    plan = mp.compile(model, np.full((2, 5), 3), **options)
    same(plan, model, RNG.integers(2, 20, (2, 5)), **options)


# ---- what a plan cannot see


class Function(Layer):
    """A layer that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def copied(x):
    out = np.empty(x.shape, x.dtype)
    out[...] = x
    return out


UNSEEN = {
    "numpy.cbrt": np.cbrt,
    r"numpy.pad with these arguments .* Use mp_core.ops.pad": lambda x: np.pad(x, 1, "reflect", reflect_type="odd"),
    r"ndarray.sum with these arguments .* Use mp_core.ops.sum": lambda x: x.sum(where=False),
    "numpy.exp with `out`": lambda x: np.exp(x, out=np.empty((2, 3), np.float32)),
    "numpy.power of float64": lambda x: x ** np.float64(2),
    "matmul": lambda x: x @ np.ones((3, 2)),
    "ndarray.tolist": lambda x: x.tolist(),
    "numpy.maximum with `out`": lambda x: np.maximum(x, 1, out=np.empty((2, 3), np.float32)),
    "numpy.multiply with `dtype`": lambda x: np.multiply(x, 2, dtype=np.float32),
    "numpy.maximum.reduce": lambda x: np.maximum.reduce(x),
    r"numpy.mean with these arguments .* Use mp_core.ops.mean": lambda x: np.mean(x, 1, np.float32),
    r"numpy.mean of bool .* Cast it to float32 before, by mp_core.ops.cast": lambda x: np.mean(x > 0),
    "numpy.where ": lambda x: np.where(x > 0),
    r"an operator that writes, in .* Write `x = x \+ y`": lambda x: x.__iadd__(1),
    "a conversion to a NumPy array": lambda x: mp.matmul(np.asarray(x), np.eye(3, dtype=np.float32)),
    "a conversion": copied,
    "a decision by its elements": lambda x: x if x[0, 0] else -x,
    r"indexing by arrays .* Use mp_core.ops.take": lambda x: x[np.array([1, 0])],
    r"an assignment .* Use mp_core.ops.where": lambda x: x.__setitem__(0, 1),
    "by NumPy": lambda x: ops.softmax(ops.cast(x, "float64")),
}


@pytest.mark.parametrize("what", UNSEEN)
def test_what_a_plan_cannot_see_is_named(what):
    x = np.ones((2, 3), np.float32)
    with pytest.raises(UnseenError, match=what):
        mp.compile(Function(UNSEEN[what]), x)


def test_views_are_no_computation():
    def views(x):
        x = np.moveaxis(np.swapaxes(x.reshape(2, 3, 4), 0, 1), -1, 0)
        first, second = np.split(x[1:3].transpose(1, 2, 0).squeeze(), 2, axis=-1)
        assert np.shape(first) == first.shape == (3, 2, 1)
        assert len(x) == 4
        return ops.relu(first.reshape(-1)), second.T, np.broadcast_to(ops.relu(x[0]), (2, 3, 2))

    layer, x = Function(views), RNG.standard_normal((4, 6)).astype(np.float32)
    for found, expected in zip(mp.compile(layer, 0 * x)(x), layer(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_outputs_that_are_inputs_or_constants():
    constant = np.arange(3)
    plan = mp.compile(
        Function(lambda x: {"x": x, "view": x[1:], "c": constant, "n": None}), np.zeros((2, 2), np.float32)
    )
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    found = plan(x)
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["view"], x[1:])
    np.testing.assert_array_equal(found["c"], [0, 1, 2])
    found["c"][0] = 5
    assert constant[0] == plan(x)["c"][0] == 0
    assert found["n"] is None
    found["x"][0, 0] = 7
    assert x[0, 0] == 0


# ---- arguments


def test_wrong_arrays_are_named():
    plan = mp.compile(Dense(2), np.ones((3, 4), np.float32))
    for given in ((), (np.ones((3, 4)),) * 2):
        with pytest.raises(TypeError, match="takes 1 arguments"):
            plan(*given)
    with pytest.raises(TypeError, match="training"):
        plan(np.ones((3, 4), np.float32), training=True)
    with pytest.raises(ValueError, match=r"array 0 of the plan must have shape \(3, 4\); received \(4, 4\)"):
        plan(np.ones((4, 4), np.float32))
    with pytest.raises(TypeError, match="must be of float32; received int64"):
        plan(np.ones((3, 4), np.int64))
    with pytest.raises(ValueError, match="must have at least one array"):
        mp.compile(Dense(2))
    with pytest.raises(IndexError, match="must be from 0 to 2; received 1099511627776"):
        mp.compile(Embedding(3, 2), np.array([2**40]))


def test_inputs_of_other_types_and_layouts():
    layer, x = Dense(2), RNG.standard_normal((6, 4)).astype(np.float32)
    plan = mp.compile(layer, x[:3])
    for given in (x[::2], x[:3].astype(np.float64), np.asfortranarray(x[:3]), x[:3].astype(">f4"), x[2::-1]):
        same(plan, layer, given)
    unaligned = np.frombuffer(b"\0" + x[:3].tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
    same(plan, layer, unaligned)


# ---- changes


def test_assigned_weights_and_policies_count():
    layer, x = Dense(4, kernel_initializer="ones"), RNG.standard_normal((3, 8)).astype(np.float32)
    plan = mp.compile(layer, x)
    layer.kernel.assign(layer.kernel.numpy() * 3)
    same(plan, layer, x)
    layer.bias.assign(np.arange(4))
    same(plan, layer, x)
    layer.dtype_policy = "mixed_bfloat16"
    same(plan, layer, x)
    layer.quantize("int8")
    same(plan, layer, x)


@pytest.mark.usefixtures("reproducible")
def test_another_instruction_set_gives_the_same_bits():
    layer, x = LAYERS["a stack"][0](dtype="mixed_bfloat16"), RNG.standard_normal((9, 6)).astype(np.float32)
    plan, before = mp.compile(layer, x), mp.config.isa()
    expected = plan(x)
    try:
        for isa in mp.config.available_isas():
            mp.config.set_isa(isa)
            np.testing.assert_array_equal(plan(x), expected)
    finally:
        mp.config.set_isa(before)


# ---- memory and threads


def test_buffers_that_live_at_once_do_not_overlap():
    sizes = RNG.integers(1, 1000, 60).tolist()
    lives = [tuple(sorted(pair)) for pair in RNG.integers(0, 30, (60, 2)).tolist()]
    offsets, end = place(sizes, lives)
    for i in range(60):
        assert offsets[i] % 64 == 0
        assert offsets[i] + sizes[i] <= end
        for j in range(i):
            apart = offsets[i] >= offsets[j] + sizes[j] or offsets[j] >= offsets[i] + sizes[i]
            assert apart or lives[i][0] > lives[j][1] or lives[j][0] > lives[i][1]


def test_no_more_blocks_are_lent_than_there_may_be():
    arenas, order = Arenas(1), []
    first = arenas.take(100)

    def second():
        block = arenas.take(50)
        order.append("taken")
        arenas.give(block)

    thread = threading.Thread(target=second)
    thread.start()
    order.append("given")
    arenas.give(first)
    thread.join()
    assert order == ["given", "taken"]


def test_runs_at_once_do_not_disturb_each_other():
    layer = Sequential([Dense(64, "gelu"), LayerNormalization(), Dense(32)])
    inputs = [RNG.standard_normal((16, 24)).astype(np.float32) for _ in range(40)]
    plan = mp.compile(layer, inputs[0])
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(plan, inputs))
    for x, y in zip(inputs, found, strict=True):
        np.testing.assert_array_equal(y, layer(x))


def test_a_run_leaves_no_memory_behind():
    layer, x = Sequential([Dense(64, "gelu"), Dense(32)]), np.ones((16, 24), np.float32)
    plan = mp.compile(layer, x)
    for _ in range(20):
        plan(x)
    gc.collect()
    tracemalloc.start()
    for _ in range(1000):
        plan(x)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4096


def test_what_a_plan_costs_is_told():
    layer = Sequential([Dense(64, "gelu"), LayerNormalization(), Dense(32)])
    plan = mp.compile(layer, np.ones((16, 24), np.float32))
    assert [step.name for step in plan.profile()] == ["product 24x64", "layer norm", "product 64x32"]
    first = plan.profile(repeat=1)[0]
    assert first.operations == 2 * 16 * 24 * 64
    assert first.seconds > 0
    assert plan.memory.arena == 2 * 16 * 64 * 4
    assert plan.memory.constants > 4 * (24 * 64 + 64 * 32)
    assert "3 operations" in repr(plan)


def test_a_product_without_a_depth_is_the_epilogue():
    plan = mp.compile(Function(lambda x: mp.matmul(x, np.zeros((0, 4), np.float32), bias=np.ones(4))), np.ones((3, 0)))
    np.testing.assert_array_equal(plan(np.ones((3, 0))), np.ones((3, 4)))


EMPTY = {  # no array without elements has anything that a plan could not see
    "an input": (lambda x: x, (0, 5)),
    "a part": (lambda x: x[:, :0], (3, 4)),
    "a product": (lambda x: mp.matmul(x, np.ones((0, 3), np.float32)), (4, 0)),
    "sources": (lambda x: ops.dot_product_attention(x, x[:, :0], x[:, :0]), (2, 3, 2, 4)),
    "sizes": (lambda x: ops.dot_product_attention(x[..., :0], x[..., :0], x), (2, 3, 2, 4)),
    "sizes of shared heads": (
        lambda x: ops.dot_product_attention(x[..., :0], x[:, :, :1, :0], x[:, :, :1]),
        (2, 3, 2, 4),
    ),
    "a sum": (lambda x: mp.sum(x, 0), (0, 5)),
    "a mean": (lambda x: mp.mean(x, 1), (3, 0)),
    "an operator": (lambda x: x + 1, (0, 5)),
    "einsum": (lambda x: mp.einsum("abz,bc->ac", x, np.ones((4, 3), np.float32)), (5, 4, 0)),
    "windows": (lambda x: ops.pad(x, [(1, 1), (0, 0)], -1.0), (0, 4)),
}


@pytest.mark.parametrize("what", EMPTY)
def test_nothing_of_an_array_without_elements_is_unseen(what):
    function, shape = EMPTY[what]
    x = np.ones(shape, np.float32)
    plan = mp.compile(Function(function), x)
    same(plan, function, 2 * x)
    same(plan, function, 3 * x)


EQUATIONS = {
    "ab,bc->ac": ((5, 4), (4, 3)), "ab,cb->ca": ((5, 4), (3, 4)), "abc,cad->bd": ((5, 4, 2), (2, 5, 3)),
    "ab,cd->cd": ((5, 4), (3, 4)), "abz,bc->ac": ((5, 4, 2), (4, 3)), "...ab,...bc->...ca": ((1, 5, 4), (2, 4, 3)),
    "ab,ab->ab": ((5, 4), (5, 4)), "ab,ab->": ((5, 4), (5, 4)), "ab,b->ba": ((5, 4), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_einsum_is_an_operation(equation, dtype):
    a, b = (mp.cast(RNG.standard_normal(shape), dtype) for shape in EQUATIONS[equation])
    for function, given in ((lambda a: mp.einsum(equation, a, b), (a,)), (lambda b: mp.einsum(equation, a, b), (b,)),
                            (lambda a, b: mp.einsum(equation, a, b), (a, b))):  # fmt: skip
        plan = mp.compile(function, *(np.zeros_like(x) for x in given))
        same(plan, function, *given)


@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6), (1, 6)])
def test_arrays_without_elements_are_arrays(shape):
    layer = Sequential([Dense(4, "relu"), LayerNormalization(), Softmax()])
    plan = mp.compile(layer, np.ones(shape, np.float32))
    same(plan, layer, np.ones(shape, np.float32))


def test_a_child_of_a_fork_runs_plans_too():
    layer, x = Sequential([Dense(512, "gelu"), Dense(512)]), RNG.standard_normal((64, 512)).astype(np.float32)
    plan = mp.compile(layer, x)
    with mp.config.num_threads(2):
        expected = plan(x)
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # ends a child that hangs
                os._exit(0 if np.array_equal(plan(x), expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
            np.testing.assert_array_equal(plan(x), expected)
