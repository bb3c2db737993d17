"""LoRA of layers: beside Keras with JAX, and against NumPy in float64."""

import copy
import importlib.util
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
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("Keras or JAX is not installed")
    path = tmp_path_factory.mktemp("lora")
    run_with_keras("keras_lora.py", path, "jax")
    return path


def _is_code(array):
    return array.dtype.kind in "iu"


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
    model.save_weights(tmp_path / "one.weights.h5")
    again = mp.load_model(tmp_path / "one.keras")
    model.load_weights(tmp_path / "one.weights.h5")
    x = rng.standard_normal((5, 44)).astype(np.float32)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_merging_makes_one_trainable_kernel_of_both():
    layer, x = _filled(_dense()), rng.standard_normal((5, 44)).astype(np.float32)
    want, total = layer(x), np.float64(layer.kernel.numpy()) + _delta(layer)
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
    assert not layer.lora_kernel_b.numpy().any() and layer.kernel.numpy().tobytes() == stored["0"].tobytes()
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
    model.save(tmp_path / "one.keras")
    again = mp.load_model(tmp_path / "one.keras")
    assert not again.layers[0].lora_enabled
    np.testing.assert_allclose(again.predict(x, verbose=0), merged.predict(x, verbose=0), rtol=1e-6)


def test_copies_and_pickles_have_variables_of_their_own():
    layer, x = _filled(_dense("int8")), rng.standard_normal((5, 44)).astype(np.float32)
    want = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other(x).tobytes() == want.tobytes()
        other.lora_kernel_b.assign(np.zeros((3, 7)))
        assert other(x).tobytes() != want.tobytes() and layer(x).tobytes() == want.tobytes()
        other.merge_lora()
        assert layer.lora_enabled


@pytest.mark.parametrize("kind", ["Dense", "EinsumDense", "Embedding"])
def test_the_constructor_takes_lora_and_the_configuration_has_it(kind):
    arguments = {"Dense": (3,), "EinsumDense": ("ab,bc->ac", 3), "Embedding": (4, 3)}[kind]
    layer = getattr(layers, kind)(*arguments, lora_rank=2, lora_alpha=5)
    again = type(layer).from_config(layer.get_config())
    assert again.get_config() == layer.get_config() and (again.lora_rank, again.lora_alpha) == (2, 5)
    assert not again.lora_enabled
    again.build((None, 4))
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
