"""Functional models and their layers, compared with NumPy in float64."""

import json
import pickle
import time

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.layers import Functional, InputLayer
from mp_core.layers.operation import Operation
from mp_core.training.graph import Graph, Node, Source

rng = np.random.default_rng(0)
X, Y = Source("x", 0, 0), Source("y", 0, 0)


def _x(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def _model(**kwargs):
    parts = [InputLayer((None, 3), name="x"), layers.Dense(3, name="y"), layers.Add(name="sum")]
    nodes = {"y": [Node((X,), {}), Node((Y,), {})], "sum": [Node(([X, Y, Source("y", 1, 0)],), {})]}
    return Functional.of_graph(Graph(parts, nodes, X, {"sum": Source("sum", 0, 0), "y": Y}), **kwargs)


def test_a_layer_at_two_nodes_has_one_kernel():
    model, x = _model(name="model"), _x(4, 3)
    outputs = model(x)
    kernel = model.layers[1].kernel.numpy().astype(np.float64)
    np.testing.assert_allclose(outputs["y"], x @ kernel, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["sum"], x + x @ kernel + x @ kernel @ kernel, rtol=1e-5, atol=1e-6)
    assert [w.name for w in model.weights] == ["kernel", "bias"]
    assert (model.path, model.layers[1].path) == ("model", "y")  # as in Keras


def test_configurations_and_pickles_make_the_same_model():
    model, x = _model(), _x(4, 3)
    want = model(x)
    config = json.loads(json.dumps(mp.saving.serialize_keras_object(model)))
    again = mp.saving.deserialize_keras_object(config)
    again.build()
    again.set_weights(model.get_weights())
    stack = layers.Sequential.from_config(layers.Sequential([model]).get_config())
    stack.build((None, 3))
    stack.set_weights(model.get_weights())
    for copy in (again, pickle.loads(pickle.dumps(model)), stack):
        np.testing.assert_array_equal(copy(x)["sum"], want["sum"])


def test_the_calls_of_a_model_in_a_model_are_counted_as_keras_counts_them():
    inner = _model(name="inner")
    outer = Functional.of_graph(
        Graph([InputLayer((None, 3), name="x"), inner], {"inner": [Node((X,), {})]}, X, [Source("inner", 0, 1)]),
        name="outer",
    )
    assert outer.get_config()["output_layers"] == [["inner", 1, 1]]
    assert Functional.from_config(outer.get_config()).graph.outputs == [Source("inner", 0, 1)]
    np.testing.assert_array_equal(outer(np.ones((2, 3))), inner(np.ones((2, 3), np.float32))["y"])


def test_masks_go_from_layer_to_layer():
    table = layers.Embedding(5, 2, mask_zero=True, name="table", weights=_x(5, 2))
    nodes = {"table": [Node((X,), {})], "mean": [Node((Source("table", 0, 0),), {})]}
    parts = [InputLayer((None, 3), dtype="int32", name="x"), table, layers.GlobalAveragePooling1D(name="mean")]
    model = Functional.of_graph(Graph(parts, nodes, X, [Source("mean", 0, 0), Source("table", 0, 0)]))
    ids = np.array([[3, 1, 0], [2, 2, 2]])
    means, rows = model(ids)
    np.testing.assert_allclose(means, [rows[0, :2].mean(0), rows[1].mean(0)], rtol=1e-6)
    masks = model.compute_mask(ids)
    assert masks[0] is None
    np.testing.assert_array_equal(masks[1], ids != 0)


def _refused(nodes, outputs=X, parts=(), inputs=X):
    return lambda: Functional.of_graph(Graph([InputLayer((None, 3), name="x"), *parts], nodes, inputs, outputs))


DENSE = layers.Dense(3, name="y")
ERRORS = [
    (_refused({"z": []}), "nodes of .'z'."),
    (_refused({}, Source("y", 0, 0)), "has no output Source"),
    (_refused({}, Source("x", 1, 0)), "has no output Source"),
    (_refused({"y": [Node((Y,), {})]}, Y, [DENSE]), "has a cycle among .'y'."),
    (_refused({}, X, [DENSE], Y), "must be sources that are input layers"),
    (_refused({}, X, [InputLayer((None, 3), name="x")]), "must have different names"),
    (lambda: InputLayer((None, 3), sparse=True), "`sparse` must be False"),
    (lambda: InputLayer(3), "`batch_shape` must be a sequence"),
    (lambda: InputLayer((None, -1)), "`batch_shape` must be a positive integer"),
    (lambda: InputLayer(), "give `shape`, with or without `batch_size`"),
    (lambda: InputLayer((None, 3), batch_size=2), "give `shape`, with or without `batch_size`"),
    (lambda: Operation("Kaiser"), "`operation` must be one of Absolute, AdaptiveAveragePool"),
    (lambda: Operation("Add", {"axis": 1}), "`options` of Add must be of"),
    (lambda: layers.Add()([_x(2, 3), _x(2, 4)]), "do not fit"),
    (lambda: layers.Add()(_x(2, 3)), "must be a list of 1 or more arrays"),
    (lambda: layers.Subtract()([_x(2, 3)] * 3), "must be a list of 2 arrays"),
    (lambda: layers.Concatenate()([_x(2, 3), _x(3, 3)]), "do not fit"),
    (lambda: layers.Reshape((-1, -1)), "at most one of them -1"),
    (lambda: layers.Reshape((2, -1))(_x(2, 3)), "as many elements"),
    (lambda: layers.MaxPooling2D(0), "`pool_size` must be a positive integer"),
    (lambda: layers.MaxPooling2D((2, 2, 2)), "a pair of them"),
    (lambda: layers.MaxPooling2D(2, padding="causal"), "`padding` must be 'valid' or 'same'"),
    (lambda: layers.MaxPooling2D(4)(_x(1, 3, 3, 1)), "are smaller than"),
    (lambda: layers.MaxPooling1D(2)(_x(1, 3, 3, 1)), "expected 3 axes"),
    (lambda: layers.GlobalMaxPooling1D()(_x(2, 0, 3)), "have an empty spatial axis"),
    (lambda: layers.GlobalAveragePooling1D()(_x(2, 4, 3), mask=np.ones((2, 3), bool)), "`mask` must have shape"),
    (lambda: layers.BatchNormalization(renorm=True), "no `renorm`"),
    (lambda: layers.BatchNormalization().build((None, None)), "must have a known length"),
    (lambda: layers.DepthwiseConv2D(3).build((None, 3)), "must be known"),
    (lambda: layers.DepthwiseConv2D(4)(_x(1, 3, 3, 1)), "smaller than the kernel"),
    (lambda: layers.Conv1D(2, 3)(_x(1, 3, 3, 1)), "expected 3 axes"),
    (lambda: layers.RMSNormalization(axis=(1, 1))(_x(2, 3)), "must name different axes"),
    (lambda: layers.ReLU(max_value=-1.0), "`max_value` must be a number of at least 0"),
]


@pytest.mark.parametrize(("call", "match"), ERRORS)
def test_what_is_wrong_is_named(call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call()


def test_inputs_are_checked_by_name():
    model = _model()
    with pytest.raises(ValueError, match=r"Input 'x' must have shape \(None, 3\); received \(2, 4\)"):
        model(_x(2, 4))
    assert model(np.arange(6).reshape(2, 3))["y"].dtype == np.float32  # integers become floats


BF16 = ml_dtypes.bfloat16
A, B = _x(2, 5, 5, 3, dtype=BF16), _x(2, 5, 5, 3, dtype=BF16)
A64, B64 = A.astype(np.float64), B.astype(np.float64)
LAST = (1, 2)
FORMULAS = [
    (layers.Add, [A, B], A64 + B64),
    (layers.Subtract, [A, B], A64 - B64),
    (layers.Multiply, [A, B], A64 * B64),
    (layers.Average, [A, B], (A64 + B64) / 2),
    (layers.Maximum, [A, B], np.maximum(A64, B64)),
    (layers.Minimum, [A, B], np.minimum(A64, B64)),
    (layers.Concatenate, [A, B], np.concatenate([A64, B64], -1)),
    (layers.GlobalAveragePooling2D, A, A64.mean(LAST)),
    (layers.GlobalMaxPooling2D, A, A64.max(LAST)),
    (lambda **k: layers.MaxPooling2D(2, **k), A, A64[:, :4, :4].reshape(2, 2, 2, 2, 2, 3).max((2, 4))),
    (lambda **k: layers.AveragePooling2D(2, **k), A, A64[:, :4, :4].reshape(2, 2, 2, 2, 2, 3).mean((2, 4))),
    (layers.ELU, A, np.where(A64 < 0, np.expm1(A64), A64)),
    (layers.LeakyReLU, A, np.where(A64 < 0, 0.3 * A64, A64)),
    (lambda **k: layers.ReLU(1.0, 0.1, 0.5, **k), A, np.where(A64 < 0.5, 0.1 * (A64 - 0.5), np.minimum(A64, 1))),
    (layers.RMSNormalization, A, A64 / np.sqrt((A64**2).mean(-1, keepdims=True) + 1e-6)),
    (layers.BatchNormalization, A, A64 / np.sqrt(1.001)),
    (lambda **k: layers.Activation("softplus", **k), A, np.log1p(np.exp(A64))),
    (lambda **k: layers.Activation("selu", **k), A, 1.05070099 * np.where(A64 < 0, 1.67326324 * np.expm1(A64), A64)),
    (lambda **k: layers.Activation("hard_silu", **k), A, A64 * np.clip(A64 / 6 + 0.5, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("make", "inputs", "want"), FORMULAS)
def test_layers_round_their_formula_once(make, inputs, want):
    got = make(dtype="bfloat16")(inputs)
    assert got.dtype == BF16
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2.0**-8, atol=1e-6)


def test_layers_of_training_are_the_identity():
    x = _x(2, 3, 4)
    made = [
        layers.SpatialDropout1D(0.5), layers.GaussianNoise(0.1), layers.GaussianDropout(0.5), layers.AlphaDropout(0.5),
        layers.Identity(), layers.ActivityRegularization(1.0),
    ]  # fmt: skip
    for layer in made:
        np.testing.assert_array_equal(layer(x), x)
        assert type(layer).from_config(layer.get_config()).name == layer.name


def test_empty_batches_pass():
    for layer, shape in (
        (layers.DepthwiseConv2D(2), (0, 3, 3, 2)), (layers.MaxPooling2D(2), (0, 4, 4, 2)),
        (layers.Flatten(), (0, 3, 4)), (layers.Reshape((-1, 2)), (0, 4)), (layers.Conv1D(2, 2), (0, 4, 3)),
    ):  # fmt: skip
        assert layer(np.zeros(shape, np.float32)).shape[0] == 0


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_residual_sums_and_products_are_steps_of_a_plan(policy):
    def source(name):
        return Source(name, 0, 0)

    y = source("y")
    model = Functional.of_graph(
        Graph(
            [
                InputLayer((None, 3), name="x"),
                layers.Dense(3, name="y", dtype=policy),
                layers.Add(name="sum", dtype=policy),
                layers.LayerNormalization(name="norm", dtype=policy),
                layers.Multiply(name="gated", dtype=policy),
            ],
            {
                "y": [Node((source("x"),), {})],
                "sum": [Node(([y, y],), {})],
                "norm": [Node((source("sum"),), {})],
                "gated": [Node(([source("norm"), y],), {})],
            },
            source("x"),
            source("gated"),
        )
    )
    plan = mp.compile(model, _x(2, 3))
    x = _x(2, 3)
    np.testing.assert_array_equal(plan(x), model(x))


# ---- the dtypes of inputs

INDICES = np.array([[257, 3]])
TABLE = np.arange(1003.0, dtype=np.float32)[:, np.newaxis]


def _look_up(dtype, stacked, **kwargs):
    """Return a model that looks rows up, whose Input has this dtype."""
    table = layers.Embedding(1003, 1, weights=TABLE, name="table", **kwargs)
    start = InputLayer((None, 2), dtype=dtype, name="x")
    if stacked:
        return layers.Sequential([start, table], **kwargs)
    return Functional.of_graph(Graph([start, table], {"table": [Node((X,), {})]}, X, Source("table", 0, 0)))


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int16", "float16"])
def test_plans_take_integers_where_the_dtype_of_the_input_holds_every_index(stacked, dtype):
    model = _look_up(dtype, stacked)
    want = TABLE[INDICES]
    plan = mp.compile(model, INDICES)
    for found in (model(INDICES), plan(INDICES), plan(INDICES)):
        np.testing.assert_array_equal(found, want)


def test_an_input_that_does_not_hold_every_index_rounds_it_as_in_keras():
    for stacked in (True, False):
        np.testing.assert_array_equal(_look_up("bfloat16", stacked)(INDICES), [[[256.0], [3.0]]])
        np.testing.assert_array_equal(_look_up("int8", stacked)(INDICES), [[[1.0], [3.0]]])  # 257 wraps around
        plan = mp.compile(_look_up("bfloat16", stacked), INDICES)
        np.testing.assert_array_equal(plan(INDICES), [[[256.0], [3.0]]])


@pytest.mark.parametrize("stacked", [True, False])
def test_a_copy_under_another_policy_keeps_the_dtype_of_its_inputs(stacked):
    model = _look_up("int32", stacked)
    model(INDICES)
    copy = model.with_policy("bfloat16")
    np.testing.assert_array_equal(copy(INDICES).astype(np.float32), TABLE[[[256, 3]]])  # the value 257 is rounded
    odd = _look_up("float32", stacked)
    odd.build((None, 2))
    odd.set_weights([(TABLE % 2).astype(np.float32)])
    np.testing.assert_array_equal(odd.with_policy("bfloat16")(INDICES).astype(np.float32), [[[1.0], [1.0]]])


def test_an_output_that_a_users_layer_does_not_return_is_named():
    class One(layers.Layer):
        def call(self, inputs):
            return inputs

    model = Functional.of_graph(
        Graph([InputLayer((None, 3), name="x"), One(name="y")], {"y": [Node((X,), {})]}, X, Source("y", 0, 1))
    )
    with pytest.raises(ValueError, match=r"layer 'y' must return the output 1 in its call 0, which the graph reads"):
        model(_x(2, 3))


def test_the_dtype_of_an_input_is_its_own():
    mp.config.set_dtype_policy("mixed_bfloat16")
    try:
        layer = InputLayer((None, 2))
        stack = layers.Sequential([InputLayer((None, 2)), layers.Identity()])
        assert layer.dtype == layer.compute_dtype == "float32"  # and not that of the default policy
        assert (layer(np.ones((1, 2))).dtype, stack(np.ones((1, 2))).dtype.name) == (np.float32, "bfloat16")
    finally:
        mp.config.set_dtype_policy("float32")
    assert layer.get_config()["dtype"] == "float32"  # Keras reads this too
    assert InputLayer((None, 2), dtype="mixed_float16").dtype == "float16"
    assert InputLayer.from_config({"batch_input_shape": [None, 2]}).batch_shape == (None, 2)
    assert InputLayer(shape=(2,)).batch_shape == (None, 2)
    assert InputLayer(shape=(2,), batch_size=4).get_config()["batch_shape"] == (4, 2)
    for dtype in ("uint8", "int64", "bool", "float64", "bfloat16"):
        assert InputLayer((None, 2), dtype=dtype)(np.array([[0, 2]])).dtype.name == dtype
    with pytest.raises(ValueError, match="Invalid dtype: 'integer'"):
        InputLayer((None, 2), dtype="integer")


def test_a_stack_keeps_its_input():
    start = InputLayer((None, 3), name="start")
    stack = layers.Sequential([start, layers.Dense(2, name="dense")], name="stack")
    stack.build()
    assert stack.input_layer is start and len(stack.layers) == 1
    assert (start.path, stack.layers[0].path) == ("stack/start", "stack/dense")
    again = layers.Sequential.from_config(json.loads(json.dumps(stack.get_config())))
    assert again.input_layer.batch_shape == (None, 3)
    assert pickle.loads(pickle.dumps(stack)).input_layer.batch_shape == (None, 3)
    with pytest.raises(ValueError, match="must not be an InputLayer unless it is the first"):
        stack.add(InputLayer((None, 3)))
    with pytest.raises(ValueError, match="must not be an InputLayer unless it is the first"):
        layers.Sequential([layers.Dense(2), start])
    with pytest.raises(ValueError, match=r"Input 'start' must have shape \(None, 3\); received \(2, 3, 4\)"):
        stack(_x(2, 3, 4))
    with pytest.raises(ValueError, match=r"`input_shape` must be a shape: .* received None"):
        layers.Sequential([layers.Dense(2)]).build()


def test_one_axis_of_length_1_may_be_missing_or_too_many_at_the_end():
    stack = layers.Sequential([InputLayer((None, 1)), layers.Dense(2, kernel_initializer="ones")])
    x = _x(3)
    want = np.repeat(x[:, np.newaxis], 2, axis=1)
    for given in (x, x[:, np.newaxis], x[:, np.newaxis, np.newaxis]):
        np.testing.assert_array_equal(stack(given), want)


def test_a_stack_without_an_input_casts_nothing_itself():
    large = np.array([[1e5, 2e5, 3e5, 1.0]], np.float32)
    stack = layers.Sequential([layers.LayerNormalization(dtype="mixed_float16")], dtype="mixed_float16")
    expected = layers.LayerNormalization(dtype="mixed_float16")(large)
    np.testing.assert_array_equal(stack(large), expected)
    assert np.isfinite(expected).all()


def test_the_order_of_a_chain_of_calls_is_found_in_linear_time():
    def seconds(count):
        parts = [InputLayer((2,), name="x"), layers.ReLU(name="y")]
        calls = [*(Node((Source("y", n + 1, 0),), {}) for n in range(count - 1)), Node((X,), {})]
        start = time.process_time()
        graph = Graph(parts, {"y": calls}, X, Y)
        taken = time.process_time() - start
        assert graph.order == [("y", n) for n in reversed(range(count))]
        return taken

    few, many = min(seconds(250) for _ in range(3)), min(seconds(4000) for _ in range(3))
    assert many < 64 * few  # 16 times the calls: 16 if it is linear, 256 if it is quadratic
