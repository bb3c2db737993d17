"""Quantization-aware training: training uses the codes of inference; gradients follow the formulas."""

import copy
import pickle

import numpy as np
import pytest
import servers
import tiny_bert

import mp_core as mp
from mp_core import layers
from mp_core.dtype_policies import DTypePolicyMap
from mp_core.layers.forms.trained import rounded
from mp_core.models import BertEncoder, Reranker

SCHEMES = ["int8/fixed", "int8/weight_only", "int8/weight_only/8", "int4/8", "int4/16", "int4/20"]
rng = np.random.default_rng(0)


def _x(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _calibrated(scheme, x, source="float32"):
    model = layers.Sequential([layers.Dense(12, "gelu"), layers.EinsumDense("ab,bc->ac", 5, bias_axes="c")])
    model(x)
    return mp.calibrate(model, x, f"{scheme.removesuffix('/fixed')}_from_{source}")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_codes_and_outputs_at_first_are_those_of_the_model(scheme):
    x = _x(64, 44)
    model = _calibrated(scheme, x)
    before = [layer.matrix for layer in model.layers]
    want = model(x)
    mp.prepare_qat(model)
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=2e-6)
    for layer, q in zip(model.layers, before, strict=True):
        assert layer.matrix.values.tobytes() == q.values.tobytes() and layer.matrix.scale.tobytes() == q.scale.tobytes()
    mp.convert_qat(model)
    assert model(x).tobytes() == want.tobytes()


@pytest.mark.parametrize("learn_scales", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_in_training_are_those_that_the_converted_model_gives(scheme, learn_scales):
    x, target = _x(64, 44), _x(64, 5)
    model = mp.Sequential(_calibrated(scheme, x).layers)
    scales = [layer.matrix.scale.copy() for layer in model.layers]
    codes = [layer.matrix.values.copy() for layer in model.layers]
    mp.prepare_qat(model, learn_scales=learn_scales)
    model.compile(mp.optimizers.Adam(1e-3), loss="mse")
    losses = model.fit(x, target, batch_size=64, epochs=20, shuffle=False, verbose=0).history["loss"]
    want = model(x)
    mp.convert_qat(model)
    np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-5)
    assert losses[-1] < 0.95 * losses[0]
    for layer, old, scale in zip(model.layers, codes, scales, strict=True):
        assert layer.matrix.values.tobytes() != old.tobytes() and layer.quantized
        assert (layer.matrix.scale.tobytes() == scale.tobytes()) is not learn_scales


def test_gradients_are_those_of_the_formulas():
    layer, x, d = layers.Dense(3, use_bias=False, dtype="int4/4_from_float32"), _x(5, 8), _x(5, 3)
    layer.build((None, 8))
    layer.set_matrix(_x(3, 8))
    mp.prepare_qat(layer)
    q = layer.matrix
    floats = np.float64(layer.form.variables["weights"].numpy()) * 128 + rng.uniform(-0.7, 0.7, (3, 8)).round(2)
    layer.form.variables["weights"].assign(floats / 128)
    zero = np.repeat(np.float64(q.zero_point if q.zero_point is not None else np.zeros(q.scale.shape)), 4, 1)
    scale = np.repeat(np.float64(q.scale), 4, 1)
    codes = np.clip(np.rint(floats), -8 - zero, 7 - zero)
    variables = [layer.form.variables[name] for name in ("weights", "growth")]
    (_, of_x), (of_weights, of_growth) = mp.value_and_grad(
        lambda x, d: (mp.sum(mp.multiply(layer(x), d)), layer(x)), variables, has_aux=True
    )(x, d)
    np.testing.assert_allclose(of_x, x @ (scale * codes).T, rtol=1e-5, atol=1e-5)
    of_lines = np.float64(d).T @ x
    np.testing.assert_allclose(of_weights, np.where(np.rint(floats) == codes, 128 * scale * of_lines, 0), rtol=1e-4)
    np.testing.assert_allclose(of_growth, (of_lines * scale * codes).reshape(3, 2, 4).sum(2), rtol=1e-4, atol=1e-4)


def test_gradients_of_inputs_pass_where_these_are_not_clipped():
    x = np.linspace(-3, 3, 64, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32)
    model = layers.Sequential([layers.Dense(2)])
    model(x)
    model = mp.calibrate(model, x, "int8_from_float32")
    mp.prepare_qat(model)
    variable = mp.AutoCastVariable(np.float32([[0.1, 2.9, 9.0, -9.0]]))
    _, (found,) = mp.value_and_grad(lambda: mp.sum(model(variable.read_value())), [variable])()
    lines = np.float64(mp.dequantize(model.layers[0].matrix)) / model.layers[0].inputs.scale
    np.testing.assert_allclose(found, [lines.sum(0) * [1, 1, 0, 0]], rtol=1e-5)


def test_rounding_is_to_nearest_even_as_in_quantize():
    x = np.arange(-40, 40, dtype=np.float32) / 4
    codes = mp.quantize(x, dtype="int8", scale=np.float32(1)).values
    np.testing.assert_array_equal(rounded(x, np.float32(-128), np.float32(127)), codes)
    np.testing.assert_array_equal(rounded(x, np.float32(-8), np.float32(7)), np.clip(codes, -8, 7))


def test_what_is_prepared_can_be_copied_and_pickled():
    x = _x(64, 44)
    model = _calibrated("int4/8", x)
    mp.prepare_qat(model)
    want = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other(x).tobytes() == want.tobytes()
        mp.convert_qat(other)
    assert model.layers[0].form.is_trained


def test_refusals_change_nothing():
    x = _x(64, 44)
    floats = layers.Sequential([layers.Dense(4)])
    floats(x)
    with pytest.raises(ValueError, match="but has none"):
        mp.prepare_qat(floats)
    with pytest.raises(ValueError, match="call `prepare_qat` first"):
        mp.convert_qat(floats)
    with pytest.raises(TypeError, match="`model`"):
        mp.prepare_qat(x)
    for policy, error in (("int8_from_float32", "inputs dynamically"), ("float8_e4m3fn_from_float32", "int8 or int4")):
        with pytest.raises(ValueError, match=error):
            mp.prepare_qat(floats.with_policy(policy))
    model = _calibrated("int8/fixed", x)
    model.layers[1].enable_lora(2)
    with pytest.raises(ValueError, match="`merge_lora` first"):
        mp.prepare_qat(model)
    assert not model.layers[0].form.is_trained
    model.layers[1].merge_lora()
    mp.prepare_qat(model)
    with pytest.raises(ValueError, match="prepared already"):
        mp.prepare_qat(model)
    with pytest.raises(ValueError, match="`convert_qat` first"):
        model.layers[0].enable_lora(2)
    with pytest.raises(ValueError, match="`convert_qat` before saving"):
        model.layers[0].save_own_variables({})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return BertEncoder.from_folder(tiny_bert.write(tmp_path_factory.mktemp("distilled") / "model"))


@pytest.mark.parametrize(("policy", "rate", "share"), [("int8", 1e-4, 1.1), ("int4/8", 3e-4, 0.6)])
def test_a_distilled_encoder_is_nearer_to_its_teacher_and_is_saved_as_codes(encoder, policy, rate, share, tmp_path):
    words, draws = tiny_bert.WORDS[4:], np.random.default_rng(0)
    texts = [" ".join(draws.choice(words, draws.integers(2, 8))) for _ in range(64)]
    train, held = texts[:48], texts[48:]
    teacher = encoder.encode(held)
    students = []  # int8 is at its floor: calibrated and distilled errors differ by some per cent either way
    for threads in (1, 2):
        with mp.config.num_threads(threads):
            students.append(mp.distill(encoder, train, policy, epochs=20, learning_rate=rate, verbose=0))
    calibrated = mp.calibrate(encoder, train, policy, alpha=0.85)
    error = [np.square(model.encode(held) - teacher).sum(1).mean() for model in (calibrated, students[0])]
    assert error[1] < share * error[0]
    students[0].save(tmp_path / "student")
    again = BertEncoder.from_folder(tmp_path / "student")
    for other in (students[1], again):
        assert other.encode(held).tobytes() == students[0].encode(held).tobytes()


def test_a_distilled_reranker_is_nearer_to_the_scores_of_its_teacher(tmp_path):
    reranker = Reranker.from_folder(servers.scorer(tmp_path / "reranker", 1))
    words, draws = tiny_bert.WORDS[4:], np.random.default_rng(0)
    pairs = [tuple(" ".join(draws.choice(words, 3)) for _ in range(2)) for _ in range(64)]
    train, held = pairs[:48], pairs[48:]
    calibrated = mp.calibrate(reranker, [[pair] for pair in train], "int4/8", alpha=0.85)
    student = mp.distill(reranker, train, "int4/8", epochs=20, learning_rate=3e-4, verbose=0)
    scores = [each.predict(held, activation="linear") for each in (reranker, calibrated, student)]
    before, after = (np.abs(each - scores[0]).mean() for each in scores[1:])
    assert after < 0.85 * before


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ("int8", 2e-5),
        ("int4/8", 1e-4),
        (DTypePolicyMap("float32", {".*(query|value)": "int8_from_float32"}), 2e-5),
        (DTypePolicyMap("int4/8_from_float32", {".*(query|value)": "int8_from_float32"}), 1e-4),
    ],
)
def test_the_learning_rate_follows_the_codes_that_run(encoder, policies, expected):
    class Steps(mp.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.rate = self.model.optimizer.learning_rate

    steps = Steps()
    mp.distill(encoder, ["a b", "c"], policies, epochs=1, callbacks=[steps], verbose=0)
    np.testing.assert_allclose(steps.rate, expected)


def test_distill_refuses_what_is_no_encoder(encoder):
    with pytest.raises(TypeError, match="`encoder` must be an encoder of texts or a reranker; received Dense"):
        mp.distill(layers.Dense(2), ["a"], "int8")
    with pytest.raises(ValueError, match="`epochs`"):
        mp.distill(encoder, ["a"], "int8", epochs=0)
    with pytest.raises(ValueError, match="`texts` must have at least one text; received none"):
        mp.distill(encoder, [], "int8")
    with pytest.raises(TypeError, match="`texts` must be a sequence of texts; received one text"):
        mp.distill(encoder, "a b", "int8")
