"""LoRA of layers, compared with Keras on JAX and with NumPy in float64."""

import copy
import json
import pickle

import lora_cases
import numpy as np
import pytest
from conftest import run_with_keras

import mp_core as mp
from mp_core import layers

SCHEMES = ["int8", "int8/weight_only", "int4/-1", "int4/8", "int4/128", "float8_e4m3fn"]
rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    path = tmp_path_factory.mktemp("lora")
    run_with_keras("keras_lora.py", path, "jax")
    return path


def _is_code(array):
    return array.dtype.kind in "iu"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), lora_cases.CASES)
def test_outputs_trained_variables_and_saved_matrices_are_those_of_keras(keras_files, kind, mode):
    want = np.load(keras_files / f"{kind}.{mode}.npz")
    found = lora_cases.computed(mp, kind, mode)
    assert sorted(found) == sorted(want)
    assert list(found.pop("trainable")) == list(want["trainable"])
    for name, array in found.items():
        if name == "before.0" and _is_code(array):
            np.testing.assert_array_equal(array, want[name], err_msg=name)
        elif _is_code(array):  # after training, codes are those of weights that differ in their last bits
            assert (array != want[name]).mean() < 0.05, name
        else:
            np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert found["losses"][-1] < found["losses"][0]


def _dense(scheme=None, source="float32", units=7, depth=44, **kwargs):
    layer = layers.Dense(
        units, bias_initializer="ones", dtype=f"{scheme}_from_{source}" if scheme else source, **kwargs
    )
    layer.build((None, depth))
    return layer


def _filled(layer, rank=3, alpha=None):
    layer.enable_lora(rank, lora_alpha=alpha, b_initializer="glorot_uniform")
    return layer


def _delta(layer):
    name = layer._matrix_name
    a, b = (np.float64(getattr(layer, f"lora_{name}_{part}").numpy()) for part in "ab")
    return layer.lora_alpha / layer.lora_rank * a @ b


@pytest.mark.parametrize("scheme", [None, *SCHEMES])
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "bfloat16"])
def test_lora_adds_to_the_outputs_of_every_form(scheme, source):
    layer, x = _dense(scheme, source), rng.standard_normal((5, 44)).astype(np.float32)
    before = np.float64(layer(x))
    _filled(layer, alpha=2.0)
    bound = 2e-6 if source == "float32" else 2e-2
    np.testing.assert_allclose(np.float64(layer(x)), before + x @ _delta(layer), rtol=bound, atol=20 * bound)
    assert layer.lora_kernel_a.true_dtype == layer.lora_kernel_b.true_dtype == np.float32


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_matrix_of_an_adapted_layer_is_the_sum_in_its_own_scheme(scheme):
    layer, other = _dense(scheme), _dense()
    total = np.float64(mp.dequantize(layer.matrix)).T + _delta(_filled(layer))
    other.kernel.assign(total)
    other.quantize(scheme)
    assert layer.matrix.values.tobytes() == other.matrix.values.tobytes()
    np.testing.assert_allclose(layer.matrix.scale, other.matrix.scale, rtol=1e-6)
    stored = {}
    layer.save_own_variables(stored)
    fresh = _dense(scheme)
    fresh.load_own_variables(stored)
    assert fresh.matrix.values.tobytes() == layer.matrix.values.tobytes()


@pytest.mark.parametrize("mode", [None, "int8", "int4", "int4/8"])
@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16"])
def test_the_kernel_is_the_sum_in_the_compute_dtype(mode, source):
    layer = _dense(source=source)
    if mode is not None:
        layer.quantize(mode)
    base = np.float64(layer.kernel)
    if mode == "int8":
        base = base / np.float64(layer.kernel_scale)
    elif mode is not None:
        block = np.intp(layer.g_idx)
        base = (base - np.float64(layer.kernel_zero)[block]) * np.float64(layer.kernel_scale)[block]
    total = base + _delta(_filled(layer, alpha=2.0))
    assert layer.kernel.dtype == layer.compute_dtype
    np.testing.assert_allclose(np.float64(layer.kernel), total, rtol=1e-6 if source == "float32" else 2**-8, atol=1e-6)
    assert layer.form.variables["kernel"].trainable is False and layer.count_params() > 0


def test_the_kernel_in_a_call_of_ones_own_trains_both_thin_matrices():
    class Own(layers.Dense):
        def call(self, inputs):
            return mp.ops.matmul(inputs, self.kernel) + self.bias

    x, found = rng.standard_normal((16, 8)).astype(np.float32), []
    for kind in (Own, layers.Dense):
        mp.random.set_seed(3)
        model = mp.Sequential([mp.Input((8,)), kind(4)])
        _filled(model.layers[0])
        model.compile(mp.optimizers.SGD(0.1), "mse")
        before = model.layers[0].form.variables["kernel"].numpy()
        model.fit(x, x[:, :4], epochs=3, verbose=0)
        assert model.layers[0].form.variables["kernel"].numpy().tobytes() == before.tobytes()
        found.append([v.numpy() for v in model.trainable_weights])
    for own, other in zip(*found, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-6)


def test_fixed_scales_of_inputs_stay_where_lora_is_merged():
    x = rng.standard_normal((64, 44)).astype(np.float32)
    model = layers.Sequential([_dense()])
    model(x)
    model = mp.calibrate(model, x, "int8")
    layer = _filled(model.layers[0])
    scale, want = layer.inputs.scale.copy(), model(x)
    layer.merge_lora()
    assert layer.quantization_mode == "int8" and layer.inputs.scale.tobytes() == scale.tobytes()
    assert np.abs(model(x) - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize(
    ("equation", "output", "shape"),
    [("ab,cb->ac", 4, (6, 5)), ("abc,cde->abde", (None, 2, 4), (2, 6, 5)), ("...x,xy->...y", 4, (2, 6, 5)),
     ("abc,dc->abd", (None, 4), (2, 6, 5)), ("abc,cd->adb", (4, None), (2, 6, 5))],
)  # fmt: skip
def test_every_equation_of_an_einsum_dense_can_be_adapted(equation, output, shape):
    layer, x = layers.EinsumDense(equation, output), rng.standard_normal(shape).astype(np.float32)
    layer(x)
    total = np.float64(layer.kernel.numpy()) + _delta(_filled(layer))
    np.testing.assert_allclose(layer(x), np.einsum(equation, np.float64(x), total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", ["int8", "int4/8"])
def test_a_layer_that_is_quantized_after_lora_keeps_it_as_in_keras(scheme):
    layer, x = _filled(_dense()), rng.standard_normal((5, 44)).astype(np.float32)
    want = layer(x)
    layer.quantize(scheme)
    assert layer.lora_enabled and [v.name for v in layer.trainable_weights] == [
        "bias",
        "lora_kernel_a",
        "lora_kernel_b",
    ]
    assert np.abs(layer(x) - want).max() < 0.2 * np.abs(want).max()


@pytest.mark.parametrize("scheme", ["int8", "int4/8"])
@pytest.mark.parametrize("of_keras", [False, True])
def test_files_load_of_layers_that_were_quantized_after_lora(tmp_path, scheme, of_keras):
    model = mp.Sequential([layers.Input((44,)), layers.Dense(8)])
    _filled(model.layers[0]).quantize(scheme.partition("/")[0] if of_keras else scheme)
    model.save(tmp_path / "one.keras")
    model.save(tmp_path / "sum.keras", include_optimizer=False)
    model.save_weights(tmp_path / "one.weights.h5")
    again, merged = (mp.load_model(tmp_path / f"{name}.keras") for name in ("one", "sum"))
    x = rng.standard_normal((5, 44)).astype(np.float32)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    model.load_weights(tmp_path / "one.weights.h5")
    np.testing.assert_array_equal(merged.predict(x, verbose=0), model.predict(x, verbose=0))


def test_merging_makes_one_trainable_kernel_of_both():
    layer, x = _filled(_dense()), rng.standard_normal((5, 44)).astype(np.float32)
    want, total = layer(x), np.float64(layer.form.variables["kernel"].numpy()) + _delta(layer)
    layer.merge_lora()
    assert not layer.lora_enabled and not hasattr(layer, "lora_kernel_a")
    assert [v.name for v in layer.trainable_weights] == ["kernel", "bias"]
    np.testing.assert_allclose(layer.kernel.numpy(), total, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(layer(x), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="has no LoRA to merge"):
        layer.merge_lora()


def test_loading_clears_what_lora_added():
    layer = _filled(_dense())
    stored = {}
    layer.save_own_variables(stored)
    layer.load_own_variables(stored)
    assert not layer.lora_kernel_b.numpy().any() and layer.kernel.tobytes() == stored["0"].tobytes()
    _filled(other := _dense()).set_matrix(stored["0"].T)
    assert other.matrix.tobytes() == layer.matrix.tobytes()


@pytest.mark.parametrize("scheme", [None, "int8", "int4/8"])
def test_files_of_models_hold_the_sum(tmp_path, scheme):
    x = rng.standard_normal((5, 44)).astype(np.float32)
    model = mp.Sequential([layers.Input((44,)), layers.Dense(8, name="hidden"), layers.Dense(2)])
    if scheme:
        model.quantize(scheme)
    _filled(model.layers[0])
    merged = copy.deepcopy(model)
    merged.layers[0].merge_lora()
    model.save_weights(tmp_path / "one.weights.h5")
    model.load_weights(tmp_path / "one.weights.h5")
    assert not model.layers[0].lora_kernel_b.numpy().any()
    assert model.predict(x, verbose=0).tobytes() == merged.predict(x, verbose=0).tobytes()
    model.save(tmp_path / "one.keras", include_optimizer=False)
    again = mp.load_model(tmp_path / "one.keras")
    assert again.layers[0].lora_enabled and not again.layers[0].lora_kernel_b.numpy().any()
    np.testing.assert_allclose(again.predict(x, verbose=0), merged.predict(x, verbose=0), rtol=1e-6)


CONVOLUTIONS = {
    "Conv1D": ({"kernel_size": 3, "padding": "causal"}, (2, 7, 4)),
    "Conv2D": ({"kernel_size": (2, 3), "strides": 2, "groups": 2, "activation": "relu"}, (2, 6, 5, 4)),
    "Conv2D channels first": ({"kernel_size": 3, "dilation_rate": 2, "data_format": "channels_first"}, (2, 4, 6, 7)),
}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_an_adapted_convolution_is_that_of_the_sum(case, policy):
    arguments, shape = CONVOLUTIONS[case]
    kind, x = getattr(layers, case.split()[0]), rng.standard_normal(shape)
    layer = kind(6, **arguments, bias_initializer="ones", dtype=policy)
    layer.build(shape)
    kernel = np.float64(layer.kernel.numpy())
    _filled(layer, alpha=2.0)
    exact = kind(6, **arguments, dtype="float64")
    exact.build(shape)
    exact.set_weights([kernel + _delta(layer), np.ones(6)])
    bound = 2e-2 if policy == "mixed_bfloat16" else 2e-6
    np.testing.assert_allclose(np.float64(layer(x)), exact(x), rtol=bound, atol=10 * bound)
    np.testing.assert_allclose(np.float64(layer.kernel), kernel + _delta(layer), rtol=bound, atol=bound)
    layer.merge_lora()
    np.testing.assert_allclose(np.float64(layer(x)), exact(x), rtol=bound, atol=10 * bound)
    assert layer.kernel.trainable and not layer.lora_enabled


@pytest.mark.slow
def test_files_of_adapted_convolutions_go_both_ways(keras_files, tmp_path):
    arrays = np.load(keras_files / "Conv.npz")
    theirs, saved, mine = (mp.load_model(keras_files / f"Conv.{name}.keras") for name in ("keras", "plain", "keras"))
    np.testing.assert_allclose(theirs(arrays["x"]), arrays["want"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal([theirs.layers[0].lora_rank, theirs.layers[0].lora_alpha], [2, 3])
    np.testing.assert_allclose(saved(arrays["x"]), arrays["want"], rtol=1e-5, atol=1e-5)
    mine.layers[0].lora_kernel_b.assign(np.ones((2, 6), np.float32))
    mine.layers[0].lora_kernel_a.assign(rng.standard_normal((2, 3, 4, 2)))
    mine.save(tmp_path / "mine.keras")
    mine.save_weights(tmp_path / "mine.weights.h5")
    again = mp.load_model(tmp_path / "mine.keras")
    assert again(arrays["x"]).tobytes() == mine(arrays["x"]).tobytes()
    saved.load_weights(tmp_path / "mine.weights.h5")
    np.testing.assert_allclose(saved(arrays["x"]), mine(arrays["x"]), rtol=1e-5, atol=1e-5)


def test_copies_and_pickles_have_variables_of_their_own():
    layer, x = _filled(_dense("int8")), rng.standard_normal((5, 44)).astype(np.float32)
    want = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other(x).tobytes() == want.tobytes()
        other.lora_kernel_b.assign(np.zeros((3, 7)))
        assert other(x).tobytes() != want.tobytes() and layer(x).tobytes() == want.tobytes()
        other.merge_lora()
        assert layer.lora_enabled


CONSTRUCTED = {
    "Dense": ((3,), (None, 4)),
    "EinsumDense": (("ab,bc->ac", 3), (None, 4)),
    "Embedding": ((4, 3), (None, 4)),
    "Conv1D": ((3, 2), (None, 5, 4)),
    "Conv2D": ((3, 2), (None, 5, 5, 4)),
    "Conv3D": ((3, 2), (None, 5, 5, 5, 4)),
}


@pytest.mark.parametrize("kind", CONSTRUCTED)
def test_the_constructor_takes_lora_and_the_configuration_has_it(kind):
    arguments, shape = CONSTRUCTED[kind]
    layer = getattr(layers, kind)(*arguments, lora_rank=2, lora_alpha=5)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and (again.lora_rank, again.lora_alpha) == (2, 5)
    assert json.dumps(again.get_config()) == json.dumps(layer.get_config())  # 5 stays 5, and is not 5.0
    assert not again.lora_enabled
    again.build(shape)
    assert again.lora_enabled and (again.lora_rank, again.lora_alpha) == (2, 5)
    assert "lora_rank" not in getattr(layers, kind)(*arguments).get_config()


def test_a_regularizer_of_the_kernel_is_one_of_both_thin_matrices():
    layer = _filled(_dense(kernel_regularizer="l2"))
    want = 0.01 * sum(np.square(np.float64(v.numpy())).sum() for v in (layer.lora_kernel_a, layer.lora_kernel_b))
    assert sum(map(float, layer.losses)) == pytest.approx(want)


def test_refusals_change_nothing():
    layer = _dense()
    for arguments, error in (
        ((0,), "`rank` must be a positive integer"), ((2, -1.0), "`lora_alpha`"), ((2, None, "nothing"), "nothing"),
        ((2, None, "ones", "nothing"), "nothing"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=error):
            layer.enable_lora(*arguments)
        assert not layer.lora_enabled and len(layer.weights) == 2 and layer.kernel.trainable
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="already enabled"):
        layer.enable_lora(2)
    with pytest.raises(NotImplementedError, match="float8"):
        layer.quantize("float8")
    with pytest.raises(NotImplementedError, match="float8"):
        _dense("float8").enable_lora(2)
    with pytest.raises(ValueError, match="isn't yet built"):
        layers.Dense(2).enable_lora(2)
    with pytest.raises(ValueError, match="incompatible with constraints"):
        _dense(kernel_constraint="non_neg").enable_lora(2)
    with pytest.raises(ValueError, match="incompatible with constraints"):
        layers.Dense(2, kernel_constraint="non_neg", lora_rank=2)


def test_both_thin_matrices_stay_float32_under_another_policy():
    layer = _filled(_dense()).with_policy("int8_from_bfloat16")
    assert {v.name: v.true_dtype.name for v in layer.weights} == {
        "bias": "bfloat16", "lora_kernel_a": "float32", "lora_kernel_b": "float32", "codes": "int8", "scale": "float32",
    }  # fmt: skip


def test_an_embedding_that_was_built_without_a_shape_is_saved_with_lora_and_opened(tmp_path):
    layer = mp.layers.Embedding(10, 4)
    layer.build()
    layer.enable_lora(2)
    model = mp.Sequential([layer])
    model.compile("sgd", "mse")
    x = np.arange(6).reshape(2, 3)
    model.fit(x, np.ones((2, 3, 4), np.float32), verbose=0)
    model.save(tmp_path / "model.keras")
    again = mp.saving.load_model(tmp_path / "model.keras")
    assert again.layers[0].lora_enabled
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-6)
