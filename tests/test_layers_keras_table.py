"""Layers, compared with those of Keras on its NumPy backend, by one table of cases (`keras_cases.py`)."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from conftest import run_with_keras
from keras_cases import INPUTS, LAYERS, NUMBERED, QUANTIZED, layer_name, name_of

import mp_core as mp
from mp_core import layers, quantizers
from mp_core.interop.keras import load_keras

h5py = pytest.importorskip("h5py")

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""By which share outputs of a type may be apart: Keras rounds after each step of a layer, mp_core once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("keras_layers")
    run_with_keras("keras_layers.py", path, "numpy")
    return path


def _check(got, want, dtype):
    assert got.dtype.name == dtype
    largest = np.abs(want[np.isfinite(want)]).max(initial=1)
    bound = ROUNDING.get(dtype, 0) * largest
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=bound)


@pytest.mark.slow
@pytest.mark.parametrize("case", INPUTS, ids=name_of)
def test_inputs_are_cast_to_the_dtype_of_their_input_and_nothing_else(folder, case):
    arrays = np.load(folder / f"{name_of(case)}.npz")
    x, want, dtype = arrays["x"], arrays["want"], str(arrays["dtype"])
    model = load_keras(folder / f"{name_of(case)}.keras")
    _check(model(x), want, dtype)
    _check(arrays["got"].astype(str(arrays["got_dtype"])), want, dtype)
    again = type(model).from_config(model.get_config())
    again.build()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(x).astype(np.float64), model(x).astype(np.float64))


@pytest.mark.parametrize("case", NUMBERED, ids=layer_name)
def test_layers_are_those_of_keras(folder, case):
    policy, _, kind, arguments, *_ = case
    arrays = np.load(folder / f"{layer_name(case)}.npz")
    x = arrays["x"] if "x" in arrays else [arrays[f"x{i}"] for i in range(len(arrays)) if f"x{i}" in arrays]
    model = load_keras(folder / f"{layer_name(case)}.keras")
    promoted = kind == "Dot" or "Attention" in kind  # to float32, by the products of the NumPy backend
    dtype = model.layers[-1].compute_dtype if promoted else str(arrays["dtype"])
    want = arrays["want"]
    outputs = model(x)
    _check(outputs, want, dtype)
    _check(arrays["got"].astype(str(arrays["got_dtype"])), want, dtype)
    own = model.layers[-1]
    assert type(own) is getattr(layers, kind)
    made = getattr(layers, kind)(**arguments, dtype=policy)  # Keras' arguments by their names
    again = type(own).from_config(json.loads(json.dumps(own.get_config())))
    for layer in (made, again, pickle.loads(pickle.dumps(own))):
        layer(x)
        layer.set_weights(own.get_weights())
        np.testing.assert_array_equal(layer(x).astype(np.float64), outputs.astype(np.float64))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_sparsemax_is_the_nearest_distribution(dtype):
    x = mp.cast(np.random.default_rng(0).standard_normal((50, 7)), dtype)
    probabilities = layers.activations.get("sparsemax")(x)
    exact = x.astype(np.float64)
    # It is max(x - t, 0) with the t for which it sums to 1, found here by halving.
    low, high = exact.min(-1, keepdims=True) - 1, exact.max(-1, keepdims=True)
    for _ in range(80):
        middle = (low + high) / 2
        is_low = np.maximum(exact - middle, 0).sum(-1, keepdims=True) > 1
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    assert probabilities.dtype == x.dtype
    epsilon = float(mp.dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(probabilities.astype(np.float64), np.maximum(exact - low, 0), rtol=epsilon, atol=epsilon)


@pytest.mark.parametrize("name", QUANTIZED)
def test_configurations_and_filters_of_quantization_are_those_of_keras(folder, name):
    kind, arguments, filters = QUANTIZED[name]
    arrays = np.load(folder / f"{name}.npz")
    model = load_keras(folder / f"{name}.keras")
    model.quantize(config=getattr(quantizers, kind)(**arguments), filters=filters)
    assert [str(layer.quantization_mode) for layer in model.layers[1:]] == arrays["modes"].tolist()
    ids = np.array([[0, 8, 3]])
    outputs = model(ids)
    for layer in model.layers[1:]:
        policy = str(arrays[f"{layer.name}/policy"])
        want = {key.split("/")[1]: arrays[key] for key in arrays if key.startswith(f"{layer.name}/")}
        del want["policy"]
        store = {}
        layer.save_own_variables(store)
        assert {key: value.shape for key, value in store.items()} == {key: value.shape for key, value in want.items()}
        assert layer.quantization_mode == (policy.split("_from_")[0].split("/")[0] if "_from_" in policy else None)
        for key, value in want.items():
            if value.dtype != np.uint8:  # of int4 codes a scale that is rounded otherwise moves some
                np.testing.assert_allclose(store[key], value, rtol=1e-6, atol=name.startswith("int4"))
        layer.load_own_variables(want)
    bound = 0 if name == "float8" else 0.1
    np.testing.assert_allclose(model(ids), outputs, atol=bound * np.abs(outputs).max())


def test_configurations_say_what_a_mode_says():
    def made(**how):
        layer = layers.Dense(2, kernel_initializer="ones")
        layer.build((None, 8))
        layer.quantize(**how)
        return layer.dtype_policy.name

    assert made(config=quantizers.Int8QuantizationConfig()) == made(mode="int8") == made(config="int8")
    floats = quantizers.Int8QuantizationConfig(activation_quantizer=None)
    assert made(config=floats) == made(mode="int8", config=floats) == made(mode="int8/weight_only")
    assert made(config=quantizers.Int4QuantizationConfig(block_size=None)) == made(mode="int4/-1")
    weights = quantizers.Int8QuantizationConfig(quantizers.AbsMaxQuantizer(axis=0))
    assert made(config=weights) == "int8_from_float32"
    wrong = [
        ({}, ValueError, "without a `config`. Received: mode=None"),
        ({"mode": "int4", "config": quantizers.Int8QuantizationConfig()}, ValueError, "of mode int4"),
        ({"config": 3}, ValueError, "`config` must be one of Int8QuantizationConfig"),
        ({"config": OtherConfig()}, NotImplementedError, "`config` must be one of Int8QuantizationConfig"),
        (
            {"config": quantizers.Int8QuantizationConfig(quantizers.AbsMaxQuantizer(axis=1))},
            ValueError, "mp_core quantizes with `weight_quantizer`",
        ),
        ({"mode": "int8", "filters": 3}, ValueError, "The `filters` argument must be a regex string"),
        ({"mode": "int8", "filters": "x("}, ValueError, "`filters` must be patterns .* 'x.': "),
        ({"mode": "int8", "filters": "(a+)+"}, ValueError, "`filters` must be patterns .* too long"),
        ({"mode": "int8", "filters": "no such"}, ValueError, "`filters` must choose one of"),
    ]  # fmt: skip
    for how, error, match in wrong:
        with pytest.raises(error, match=match):
            made(**how)
    with pytest.raises(ValueError, match="`block_size` must be a positive integer"):
        quantizers.Int4QuantizationConfig(block_size=0)


class OtherConfig:
    """What Keras' has of the interface."""

    mode = "other"

    def get_config(self):
        return {}


def test_a_stack_is_quantized_layer_by_layer_with_filters():
    stack = layers.Sequential([layers.Dense(64, name="a"), layers.Dense(3, name="b")], name="stack")
    x = np.ones((2, 8), np.float32)
    stack(x)
    stack.quantize("int8", filters="a")
    assert (stack.quantization_mode, stack.quantized) == (None, False)
    stack.quantize("int4/32", filters=lambda layer: layer.name == "b")
    assert [layer.quantization_mode for layer in stack.layers] == ["int8", "int4"]
    again = layers.Sequential.from_config(json.loads(json.dumps(stack.get_config())))
    again.build((None, 8))
    again.set_weights(stack.get_weights())
    np.testing.assert_array_equal(again(x), stack(x))
    with pytest.raises(ValueError, match="`filters` must choose one of"):
        stack.quantize("int8", filters="a")


def test_weights_that_no_file_can_hold_are_not_asked_for(tmp_path, folder):
    numbers = {
        kind: [number for number, case in enumerate(LAYERS) if case[0] == kind] for kind in ("PReLU", "Normalization")
    }
    for kind, (_, number, *_) in numbers.items():
        with zipfile.ZipFile(folder / f"float32-{kind}-{number}.keras") as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        config = json.loads(entries["config.json"])
        layer = config["config"]["layers"][-1]
        layer["build_config"]["input_shape"][1:-1] = [10**6] * 2
        layer["config"] |= {"axis": [1, 2]} if kind == "Normalization" else {"shared_axes": None}
        with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
            for name, content in (entries | {"config.json": json.dumps(config)}).items():
                archive.writestr(name, content)
        with pytest.raises(ValueError, match=r"has a length of \d{12,}, but model\.weights\.h5 only"):
            load_keras(tmp_path / "m.keras")


def test_own_variables_are_loaded_all_or_none():
    layer = layers.BatchNormalization()
    layer.build((None, 3))
    store = {}
    layer.save_own_variables(store)
    changed = {key: value + 1 for key, value in store.items()}
    layer.load_own_variables(changed)
    np.testing.assert_array_equal(layer.moving_variance, 2)
    for wrong in ({**store, "4": np.ones(3)}, {**store, "3": np.ones(4)}, {"0": store["0"]}, {}):
        with pytest.raises(ValueError, match="has variables of shapes"):
            layer.load_own_variables(wrong)
    with pytest.raises(TypeError):
        layer.load_own_variables({**store, "3": np.array(["a", "b", "c"])})
    np.testing.assert_array_equal(layer.gamma, 2)
    with h5py.File(io.BytesIO(), "w") as file:
        layer.save_own_variables(file)
        layer.load_own_variables(file)
    np.testing.assert_array_equal(layer.gamma, 2)


def test_attention_leaves_masked_keys_and_queries_out():
    rng = np.random.default_rng(0)
    query, value = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 5, 4))
    keys = np.array([[True, True, False, True, False], [True, True, True, True, True]])
    queries = np.array([[True, False, True], [True, True, True]])
    layer = layers.Attention(dtype="float64")
    outputs, weights = layer([query, value], mask=[queries, keys], return_attention_scores=True, use_causal_mask=True)
    keep = keys[:, np.newaxis] & np.tri(3, 5, dtype=bool)
    exact = np.where(keep, np.exp(query @ value.swapaxes(1, 2)), 0)
    exact /= exact.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, exact, rtol=1e-12)
    np.testing.assert_allclose(outputs, np.where(queries[..., np.newaxis], exact @ value, 0), rtol=1e-12)
    assert layer.compute_mask([query, value], [queries, keys]) is queries


REFUSED = [
    (lambda: layers.Attention()(np.ones((2, 3, 4))), "must be a list of query, value"),
    (lambda: layers.Attention()([np.ones((2, 3, 4)), np.ones((2, 3, 5))]), "do not fit"),
    (lambda: layers.Attention()([np.ones((2, 3, 4))] * 2, mask=np.ones((2, 3))), "`mask` of layer"),
    (lambda: layers.Attention(score_mode="sum"), "`score_mode` must be"),
    (lambda: layers.Cropping2D((1, 2, 3)), "`cropping` must be integers from 0 on, one or two for each axis"),
    (lambda: layers.Cropping1D((1, -2)), "`cropping` must be integers from 0 on"),
    (lambda: layers.ZeroPadding2D("ab"), "`padding` must be an integer"),
    (lambda: layers.Cropping1D(2)(np.ones((1, 4, 2))), "must be larger than cropping"),
    (lambda: layers.UpSampling2D(interpolation="bilinear"), "`interpolation` must be 'nearest'"),
    (lambda: layers.UpSampling1D(0), "`size` must be a positive integer"),
    (lambda: layers.UpSampling1D(2)(np.ones((1, 4))), "expected 3 axes"),
    (lambda: layers.Permute((1, 3)), "`dims` must be all integers from 1"),
    (lambda: layers.Permute(3), "`dims` must be a sequence"),
    (lambda: layers.Permute((1,))(np.ones((1, 4, 2))), "must have 2 axes"),
    (lambda: layers.RepeatVector(0), "`n` must be a positive integer"),
    (lambda: layers.RepeatVector(2)(np.ones((1, 4, 2))), "must have 2 axes"),
    (lambda: layers.Rescaling(np.nan), "`scale` must be finite numbers"),
    (lambda: layers.Rescaling("x"), "`scale` must be"),
    (lambda: layers.Normalization(mean=1.0), "`mean` and `variance` must be both None"),
    (lambda: layers.Normalization(mean=[[1.0]], variance=[[1.0]]), "at most 1 axes"),
    (lambda: layers.Normalization(axis=3).build((None, 2)), "`axis` must name different axes"),
    (lambda: layers.Normalization(mean=[1.0, 2.0], variance=[1.0, 1.0]).build((None, 3)), "do not fit"),
    (lambda: layers.GroupNormalization(3).build((None, 4)), "divisible by `groups`"),
    (lambda: layers.GroupNormalization(0), "`groups` must be a positive integer"),
    (lambda: layers.PReLU(shared_axes=[3]).build((None, 4)), "`shared_axes` must lie in"),
    (lambda: layers.PReLU().build((None, None)), "must have known lengths"),
    (lambda: layers.AdaptiveMaxPooling2D((1, 2, 3)), "`output_size` must be a positive integer or a pair"),
    (lambda: layers.AdaptiveMaxPooling1D(2)(np.ones((1, 0, 3))), "have an empty spatial axis"),
    (lambda: layers.Dot((1, 2, 3)), "`axes` must be an integer or a pair"),
    (lambda: layers.Dot(0)([np.ones((2, 3))] * 2), "do not fit"),
    (lambda: layers.Dot(1)([np.ones((2, 3)), np.ones((2, 4))]), "do not fit"),
    (lambda: layers.Add()([[np.ones(2)], [np.ones(2)]]), "must be a list of 1 or more arrays"),
    (lambda: layers.CategoryEncoding(3)(np.array([[3]])), "must be from 0 to 2; received 3 to 3"),
    (lambda: layers.CategoryEncoding(3, "int"), "`output_mode` must be one of multi_hot"),
    (lambda: layers.Discretization([1.0, 0.5]), "`bin_boundaries` must ascend"),
    (lambda: layers.AdditiveAttention()(np.ones((1, 2, 2))), "must be a list of query, value"),
    (lambda: layers.RandomFlip("horizontal", None, None, None), "takes"),
    (lambda: layers.RandomFlip(mode="horizontal", seed=3), "has no `seed`"),
    (lambda: layers.activations.get("glu")(np.ones((2, 3), np.float32)), "the length of axis -1 must be even"),
]


@pytest.mark.parametrize(("call", "match"), REFUSED)
def test_wrong_arguments_are_named(call, match):
    with pytest.raises((ValueError, TypeError), match=match):
        call()


def test_a_mask_goes_from_masking_to_pooling():
    x = np.array([[[1.0, 3.0], [0.0, 0.0], [5.0, 0.0]]], np.float32)
    stack = layers.Sequential([layers.Masking(), layers.GlobalAveragePooling1D()])
    np.testing.assert_array_equal(stack(x), [[3.0, 1.5]])
