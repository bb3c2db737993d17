"""Every layer and every activation in a plan: the bits of its call, under every float policy and on every set."""

import keras_cases
import numpy as np
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.layers import activations
from mp_core.layers.operation import Operation
from mp_core.plans import ForwardPlan, UnseenError
from mp_core.training.graph import Graph, Node, Source

FLOATS = ("float32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")
RNG = np.random.default_rng(0)
NONE = {  # what others are made of: tests of their own below, and test_recurrent.py
    "Layer", "Functional", "InputLayer", "Lambda", "RNN", "StackedRNNCells", "Bidirectional", "LSTMCell", "GRUCell",
    "SimpleRNNCell",
}  # fmt: skip
REFUSED = {"Discretization", "log_softmax", "sparsemax"}  # as docs/plans.md says
WITH_ARGUMENTS = {"threshold"}  # no name alone says them

IMAGES, ROWS, VECTORS = (2, 6, 7, 4), (3, 6, 8), (5, 8)
KINDS = [  # layers, arguments, shapes of inputs
    ("Dense", {"units": 5, "activation": "elu"}, VECTORS),
    ("Dense", {"units": 5, "activation": "selu"}, ROWS),
    ("EinsumDense", {"equation": "abc,cde->abde", "output_shape": (None, 2, 4), "bias_axes": "de"}, ROWS),
    ("Embedding", {"input_dim": 11, "output_dim": 6}, "indices"),
    *(("CategoryEncoding", {"num_tokens": 11, "output_mode": mode}, "indices") for mode in ("multi_hot", "count")),
    ("Conv1D", {"filters": 3, "kernel_size": 3, "padding": "same"}, ROWS),
    ("Conv1D", {"filters": 3, "kernel_size": 3, "padding": "causal"}, ROWS),
    ("Conv2D", {"filters": 3, "kernel_size": 3, "strides": 2, "activation": "softplus"}, IMAGES),
    ("DepthwiseConv2D", {"kernel_size": 3}, IMAGES),
    ("DepthwiseConv2D", {"kernel_size": (3, 2), "padding": "same", "depth_multiplier": 2, "strides": 2}, IMAGES),
    ("DepthwiseConv2D", {"kernel_size": 3, "data_format": "channels_first", "use_bias": False}, (2, 4, 6, 7)),
    ("BatchNormalization", {}, IMAGES),
    ("BatchNormalization", {"axis": 1, "center": False, "scale": False}, ROWS),
    ("LayerNormalization", {"axis": [1, 2]}, ROWS),
    ("RMSNormalization", {}, ROWS),
    ("MultiHeadAttention", {"num_heads": 2, "key_dim": 4}, (ROWS, ROWS)),
    *(("GroupedQueryAttention", {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2} | more, (ROWS, ROWS))
      for more in ({}, {"use_gate": True, "sliding_window": 3})),
    *((kind, {"units": 5}, ROWS) for kind in ("LSTM", "GRU")),
    ("SimpleRNN", {"units": 5, "activation": "softsign", "return_sequences": True}, ROWS),
    ("LSTM", {"units": 3, "return_sequences": True, "recurrent_activation": "softsign", "go_backwards": True}, ROWS),
    ("GRU", {"units": 3, "reset_after": False, "activation": "gelu", "use_bias": False}, ROWS),
    *((f"{kind}Pooling1D", arguments, ROWS) for kind in ("Max", "Average") for arguments in (
        {"pool_size": 2}, {"pool_size": 3, "strides": 2, "padding": "same"})),
    *((f"{kind}Pooling2D", arguments, IMAGES) for kind in ("Max", "Average") for arguments in (
        {"pool_size": 2}, {"pool_size": (3, 2), "padding": "same"}, {"pool_size": 2, "data_format": "channels_first"})),
    *((f"Global{kind}Pooling1D", {"keepdims": keep}, ROWS) for kind in ("Max", "Average") for keep in (False, True)),
    *((f"Global{kind}Pooling2D", {"data_format": last}, IMAGES) for kind in ("Max", "Average") for last in (
        "channels_last", "channels_first")),
    *((name, {}, ([VECTORS, VECTORS],)) for name in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")),
    *((name, {}, ([ROWS, (3, 1), (3, 8)],)) for name in ("Add", "Multiply", "Average", "Maximum", "Minimum")),
    ("Concatenate", {}, ([ROWS, (3, 6, 2)],)),
    ("Concatenate", {"axis": 1}, ([ROWS, ROWS, (3, 1, 8)],)),
    *(("Activation", {"activation": name}, ROWS) for name in activations._FUNCTIONS
      if name not in REFUSED | WITH_ARGUMENTS),
    *(("ReLU", arguments, ROWS) for arguments in ({}, {"max_value": 6.0}, {"negative_slope": 0.3}, {
        "max_value": 1.5, "negative_slope": 0.1, "threshold": 0.5})),
    ("LeakyReLU", {}, ROWS),
    ("ELU", {}, ROWS),
    ("ELU", {"alpha": 0.5}, ROWS),
    ("Softmax", {"axis": [1, 2]}, ROWS),
    *((name, {"rate": 0.1}, ROWS) for name in (
        "Dropout", "SpatialDropout1D", "SpatialDropout2D", "AlphaDropout", "GaussianDropout")),
    ("GaussianNoise", {"stddev": 0.1}, ROWS),
    ("ActivityRegularization", {}, ROWS),
    ("Identity", {}, ROWS),
    ("Flatten", {}, ROWS),
    ("Flatten", {"data_format": "channels_first"}, IMAGES),
    ("Reshape", {"target_shape": (-1, 2)}, ROWS),
    ("Sequential", {"layers": "stack"}, IMAGES),
    ("TimeDistributed", {"layer": "dense"}, ROWS), ("SpectralNormalization", {"layer": "dense"}, ROWS),
    ("TimeDistributed", {"layer": "stack"}, (2, 3, 6, 7, 4)),
    *(("Operation", {"operation": name}, (VECTORS, (8,))) for name in (
        "Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Maximum", "Minimum")),
    *((name, arguments, ([(2, *each) for each in shape],) if isinstance(shape, list) else (2, *shape))
      for name, arguments, shape, *_ in keras_cases.LAYERS if name not in REFUSED | {"Activation", "CategoryEncoding"}),
]  # fmt: skip


def made(name, arguments, **options):
    if name in ("SpectralNormalization", "TimeDistributed"):
        inner = {"dense": ("Dense", {"units": 5}), "stack": ("Sequential", {"layers": "stack"})}[arguments["layer"]]
        return getattr(layers, name)(made(*inner, **options), **options)
    if arguments.get("layers") == "stack":
        arguments = {"layers": [layers.DepthwiseConv2D(3, activation="leaky_relu", **options),
                                layers.BatchNormalization(**options), layers.MaxPooling2D(2, **options),
                                layers.GlobalAveragePooling2D(**options), layers.ELU(0.5, **options)]}  # fmt: skip
    kind = Operation if name == "Operation" else getattr(layers, name)
    return kind(**arguments, **options)


def drawn(shape):
    """An array, or a list of some, with numbers of all kinds."""
    if isinstance(shape, list):
        return [drawn(each) for each in shape]
    if shape == "indices":
        return RNG.integers(0, 11, (3, 4))
    x = (3 * RNG.standard_normal(shape)).astype(np.float32)
    x.reshape(-1)[:: max(7, x.size // 3)] = 0
    return x


def inputs_of(shapes):
    """The inputs of a layer: of one shape, or of several, some of which come as a list."""
    is_one = shapes == "indices" or isinstance(shapes[0], int)
    return [drawn(each) for each in ([shapes] if is_one else shapes)]


def fill(layer):
    """Give the variables of a layer some values, where variances stay positive."""
    values = [np.abs(RNG.standard_normal(w.shape)) + 0.1 for w in layer.get_weights()]
    layer.set_weights([w if w.dtype.kind in "iu" else x for w, x in zip(layer.get_weights(), values, strict=True)])


def built(name, arguments, shapes, policy):
    layer = made(name, arguments, dtype=policy)
    layer(*inputs_of(shapes))
    fill(layer)
    return layer


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_every_layer_is_here():
    kinds = {name for name in layers.__all__ if isinstance(kind := getattr(layers, name), type)
             and issubclass(kind, layers.Layer)}  # fmt: skip
    assert kinds - NONE - REFUSED | {"Operation"} == {name for name, _, _ in KINDS}


@pytest.mark.parametrize(("layer", "inputs"), [
    (layers.Discretization([0.0, 1.0]), [[0.5]]),
    (layers.Activation("sparsemax"), [[0.5]])])  # fmt: skip
def test_what_no_plan_has_is_refused_by_name(layer, inputs):
    with pytest.raises(UnseenError, match="operation of mp_core"):
        mp.compile(layer, np.array(inputs))


@pytest.mark.parametrize("policy", FLOATS)
@pytest.mark.parametrize(("name", "arguments", "shapes"), KINDS)
def test_a_plan_has_the_bits_of_the_layer(name, arguments, shapes, policy):
    layer = built(name, arguments, shapes, policy)
    plan = mp.compile(layer, *inputs_of(shapes))
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            inputs = inputs_of(shapes)
            same(plan(*inputs), layer(*inputs))


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(("name", "arguments", "shapes"), KINDS)
def test_no_instruction_set_changes_a_bit(name, arguments, shapes, policy):
    layer, inputs, before = built(name, arguments, shapes, policy), inputs_of(shapes), mp.config.isa()
    plan = mp.compile(layer, *inputs)
    expected = plan(*inputs)
    try:
        for isa in mp.config.available_isas():
            mp.config.set_isa(isa)
            same(plan(*inputs), expected)
            same(layer(*inputs), expected)
    finally:
        mp.config.set_isa(before)


@pytest.mark.parametrize(("name", "arguments", "shapes"), KINDS)
def test_a_plan_of_any_batch_has_the_bits_or_is_refused(name, arguments, shapes):
    if shapes == "indices" or isinstance(shapes[0], list | tuple):
        return
    layer = built(name, arguments, shapes, "mixed_bfloat16")
    examples = [(drawn((n, *shapes[1:])),) for n in (3, 4)]
    try:
        plan = ForwardPlan(layer, examples[0], {}, (3,), (examples[1], (4,)))
    except UnseenError as error:
        assert "rows" in str(error) or "shape" in str(error)
        return
    for n in (1, 2, 5, 130):
        x = drawn((n, *shapes[1:])).astype(examples[0][0].dtype)
        same(plan.run_rows([x], (n,)), layer(x))


@pytest.mark.parametrize(("name", "arguments", "shapes"), KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38])
def test_special_values_are_those_of_the_layer(name, arguments, shapes, value):
    if shapes == "indices":
        return
    layer, inputs = built(name, arguments, shapes, "float32"), inputs_of(shapes)
    plan = mp.compile(layer, *inputs)
    for x in inputs:
        (x[0] if isinstance(x, list) else x).reshape(-1)[::3] = value
    same(plan(*inputs), layer(*inputs))


@pytest.mark.parametrize(("name", "arguments", "shapes"), KINDS)
def test_integers_and_float64_are_computed_or_refused_by_name(name, arguments, shapes):
    for dtype in (np.int32, np.float64):
        inputs = [[y.astype(dtype) for y in x] if isinstance(x, list) else x.astype(dtype) for x in inputs_of(shapes)]
        layer = made(name, arguments, dtype="float64" if dtype is np.float64 else "float32")
        try:
            expected = layer(*inputs)
        except (TypeError, ValueError, RuntimeWarning):  # a division by zero
            continue
        try:
            plan = mp.compile(layer, *inputs)
        except UnseenError as error:
            assert "operation of mp_core" in str(error)
        else:
            same(plan(*inputs), expected)


def test_a_mask_of_places_is_an_input():
    layer, x = layers.GlobalAveragePooling1D(), drawn(ROWS)
    mask = RNG.integers(0, 2, ROWS[:2]).astype(bool)
    plan = mp.compile(layer, x, mask=mask)
    for each in (mask, ~mask, np.zeros_like(mask)):
        same(plan(2 * x, mask=each), layer(2 * x, mask=each))


def test_layers_of_a_graph():
    first, second = layers.InputLayer((None, 8), name="x"), layers.LeakyReLU(name="y")
    nodes = {"y": [Node((Source("x", 0, 0),), {})]}
    model = layers.Functional.of_graph(Graph([first, second], nodes, Source("x", 0, 0), Source("y", 0, 0)))
    x = drawn(VECTORS)
    same(mp.compile(model, x)(2 * x), model(2 * x))
